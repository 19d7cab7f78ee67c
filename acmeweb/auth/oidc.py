"""Signing in with OpenID Connect: authorization code with PKCE, at one provider that the environment names.

A person is who their provider says (issuer and subject), never a name: names can be chosen. The first time they come,
`OIDC_NEW_USERS` decides: `refuse` lets in whom an operator has prepared (a user of that name without a password, and
without powers over the site), `create` also makes a user. Groups become roles by `OIDC_TEAMS`; teams it does not name
are left alone. State, nonce and verifier lie in the session of the browser that asked, and are good for one answer.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import get_user_model, login, logout
from django.contrib.auth.decorators import login_not_required
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.crypto import constant_time_compare
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST, require_safe

from acmeweb.common.env import OidcSettings
from jobs.actions import tokens as token_actions
from jobs.actions.journal import Author
from jobs.models import Identity, Team, TeamRole

log = logging.getLogger(__name__)

OIDC_SESSION_KEY = "oidc"
ID_TOKEN_SESSION_KEY = "oidc_id_token"  # noqa: S105 - session key; says at the provider who wants to leave
MAX_HINT_LENGTH = 4000  # of an address; a longer one is left out, and the provider asks
MAX_PENDING_LOGINS, PENDING_LOGIN_S = 5, 600
METADATA_CACHE_S = 3600
LEEWAY_S = 60
ID_TOKEN_ALGORITHMS = [
    "RS256",
    "RS384",
    "RS512",
    "ES256",
    "ES384",
    "PS256",
    "EdDSA",
]  # never none, never a shared secret


class SignInError(Exception):
    """The message is a sentence for the person who tried."""


@dataclass(kw_only=True)
class OidcProvider:
    """What is known of it, and for how long."""

    asked: OidcSettings
    transport: httpx.BaseTransport | None = None
    found: dict[str, tuple[float, Any]] = field(default_factory=dict)

    def metadata(self) -> Mapping[str, Any]:
        about: Mapping[str, Any] = self._get(f"{self.asked.issuer.rstrip('/')}/.well-known/openid-configuration")
        if about.get("issuer") != self.asked.issuer:
            raise SignInError("The provider calls itself by another name than OIDC_ISSUER.")
        return about

    def keys(self, fresh: bool = False) -> Any:
        return self._get(self.metadata()["jwks_uri"], fresh)

    def exchange_code(self, code: str, verifier: str, came_back_to: str) -> str:
        """The ID token for a code."""
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": came_back_to}
        form |= {"code_verifier": verifier, "client_id": self.asked.client_id}
        who = (self.asked.client_id, self.asked.client_secret) if self.asked.client_secret else None
        said = self._send_request("POST", self.metadata()["token_endpoint"], data=form, auth=who)
        if not isinstance(said, dict) or not isinstance(said.get("id_token"), str):
            raise SignInError("The provider gave no ID token.")
        return said["id_token"]

    def _get(self, address: str, fresh: bool = False) -> Any:
        at, said = self.found.get(address, (0.0, None))
        if fresh or time.monotonic() - at > METADATA_CACHE_S or said is None:
            said = self._send_request("GET", address)
            self.found[address] = time.monotonic(), said
        return said

    def _send_request(self, method: str, address: str, **more: Any) -> Any:
        try:
            with httpx.Client(transport=self.transport, timeout=10) as client:
                answer = client.request(method, address, **more)
            answer.raise_for_status()
            return answer.json()
        except (httpx.HTTPError, ValueError) as error:
            log.warning("the OIDC provider: %s %s: %s", method, address, error)
            raise SignInError("The provider does not answer as it should; try again in a moment.") from None


_providers: dict[OidcSettings, OidcProvider] = {}


def configured_provider() -> OidcProvider:
    if not settings.OIDC:
        raise Http404("no provider is configured")
    return _providers.setdefault(settings.OIDC, OidcProvider(asked=settings.OIDC))


# --- there and back


@login_not_required
@require_safe
def begin_sign_in(request: HttpRequest) -> HttpResponse:
    known = configured_provider()
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    try:
        address = known.metadata()["authorization_endpoint"]
    except SignInError as why:
        return _redirect_to_login(request, why)
    open_now = {
        name: one
        for name, one in request.session.get(OIDC_SESSION_KEY, {}).items()
        if one["at"] > time.time() - PENDING_LOGIN_S
    }
    kept = dict(list(open_now.items())[-(MAX_PENDING_LOGINS - 1) :])
    one = {"nonce": nonce, "verifier": verifier, "next": request.GET.get("next", ""), "at": time.time()}
    request.session[OIDC_SESSION_KEY] = kept | {state: one}
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
    asked = {
        "response_type": "code",
        "client_id": known.asked.client_id,
        "redirect_uri": request.build_absolute_uri(reverse("oidc-back")),
        "scope": known.asked.scopes,
        "state": state,
        "nonce": nonce,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    return redirect(f"{address}{'&' if '?' in address else '?'}{urlencode(asked)}")


@login_not_required
@require_safe
def finish_sign_in(request: HttpRequest) -> HttpResponse:
    try:
        known, one = configured_provider(), _take_pending_login(request)
        if "error" in request.GET:
            raise SignInError("The provider refused; nobody was signed in.")
        here = request.build_absolute_uri(reverse("oidc-back"))
        raw = known.exchange_code(request.GET.get("code", ""), one["verifier"], here)
        claims = verified_claims(known, raw, one["nonce"])
        user = sign_in_user(known.asked, claims, request)
    except SignInError as why:
        return _redirect_to_login(request, why)
    login(request, user, backend=settings.AUTHENTICATION_BACKENDS[0])
    request.session[ID_TOKEN_SESSION_KEY] = raw
    there = one["next"]
    safe = url_has_allowed_host_and_scheme(there, {request.get_host()}, require_https=request.is_secure())
    return redirect(there if safe else settings.LOGIN_REDIRECT_URL)


def _take_pending_login(request: HttpRequest) -> dict[str, Any]:
    """What this browser asked for under this state; it is good once."""
    waiting = dict(request.session.get(OIDC_SESSION_KEY, {}))
    one = waiting.pop(request.GET.get("state", ""), None)
    request.session[OIDC_SESSION_KEY] = waiting
    if one is None or one["at"] < time.time() - PENDING_LOGIN_S:
        raise SignInError("This sign-in was not begun here, or too long ago; begin again.")
    return dict(one)


@login_not_required
@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    """Sign out here; who came by the provider is then sent there, or the next click would sign him in again.

    A page that goes on by itself, because our content policy lets no form end at another server.
    """
    there = _provider_logout_url(request)
    logout(request)
    return (
        render(request, "signed_out.html", {"there": there, "at": settings.OIDC.label}) if there else redirect("login")
    )


def _provider_logout_url(request: HttpRequest) -> str:
    """The provider's address for signing out; empty where there is none, or where the provider is away."""
    hint = request.session.get(ID_TOKEN_SESSION_KEY)
    if not hint or not settings.OIDC:
        return ""
    try:
        address = configured_provider().metadata().get("end_session_endpoint")
    except SignInError:
        return ""
    if not isinstance(address, str) or urlsplit(address).scheme not in ("https", "http"):
        return ""
    asked = {
        "client_id": settings.OIDC.client_id,
        "post_logout_redirect_uri": request.build_absolute_uri(reverse("login")),
    }
    asked |= {"id_token_hint": hint} if len(hint) <= MAX_HINT_LENGTH else {}
    return f"{address}{'&' if '?' in address else '?'}{urlencode(asked)}"


def _redirect_to_login(request: HttpRequest, why: SignInError) -> HttpResponse:
    messages.error(request, str(why))
    return redirect("login")


# --- who it is


def verified_claims(known: OidcProvider, raw: str, nonce: str) -> Mapping[str, Any]:
    """The claims of an ID token that is signed by the provider, for us, now, and in answer to our question."""
    from joserfc import jwt
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    claims: Mapping[str, Any] = {}
    for fresh in (False, True):  # a key that is not known may be a new one
        try:
            claims = jwt.decode(raw, KeySet.import_key_set(known.keys(fresh)), algorithms=ID_TOKEN_ALGORITHMS).claims
            break
        except (JoseError, ValueError, KeyError, TypeError) as error:
            if fresh:
                log.warning("an ID token was refused: %s", error)
                raise SignInError("The provider's ID token is not signed as it should be.") from None
    now = time.time()
    audience = claims.get("aud")
    meant = audience if isinstance(audience, list) else [audience]
    right = (
        claims.get("iss") == known.asked.issuer
        and known.asked.client_id in meant
        and (len(meant) == 1 or claims.get("azp") == known.asked.client_id)
        and _float_or_nan(claims.get("exp")) > now - LEEWAY_S
        and _float_or_nan(claims.get("iat")) < now + LEEWAY_S
        and _float_or_nan(claims.get("nbf", 0)) < now + LEEWAY_S
        and constant_time_compare(str(claims.get("nonce", "")), nonce)
        and isinstance(claims.get("sub"), str)
        and claims["sub"]
    )
    if not right:
        raise SignInError("The provider's ID token is not for this sign-in.")
    return claims


def _float_or_nan(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")


@transaction.atomic
def sign_in_user(asked: OidcSettings, claims: Mapping[str, Any], request: HttpRequest) -> Any:
    known = Identity.objects.select_related("user").filter(issuer=asked.issuer, subject=claims["sub"][:255]).first()
    user = known.user if known else _create_user(asked, claims)
    if not user.is_active:
        raise SignInError("This user is switched off here.")
    author = Author(
        by=user.get_username(),
        user_id=user.pk,
        request_id=getattr(request, "acme_id", ""),
        source=request.META.get("REMOTE_ADDR") or None,
    )
    token_actions.set_roles(user, team_roles_of(asked, claims), author=author, why="As the groups of the sign-in say.")
    return user


def _create_user(asked: OidcSettings, claims: Mapping[str, Any]) -> Any:
    people = get_user_model()
    name = claims.get(asked.username_claim)
    if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= 150:
        raise SignInError(f"The provider gave no usable {asked.username_claim}.")
    there = people.objects.select_for_update().filter(username=name).first()
    if there is not None and not _is_claimable(there):
        raise SignInError(f"The name {name} is taken by a user who signs in otherwise; ask an administrator.")
    if there is None and asked.new_users != "create":
        raise SignInError(f"There is no user {name} here; ask an administrator.")
    user = there or people(
        username=name, email=_claim_text(claims.get("email")), first_name=_claim_text(claims.get("given_name"))
    )
    if there is None:
        user.last_name = _claim_text(claims.get("family_name"))
        user.set_unusable_password()
        user.save()
    Identity.objects.create(user=user, issuer=asked.issuer, subject=claims["sub"][:255])
    return user


def _is_claimable(user: Any) -> bool:
    """Made by an operator to be taken over: nobody else's, and without powers that a chosen name could steal."""
    taken = Identity.objects.filter(user=user).exists()
    return not (user.has_usable_password() or user.is_superuser or user.is_staff or taken)


def _claim_text(value: Any) -> str:
    return value[:150] if isinstance(value, str) and value.isprintable() else ""


def team_roles_of(asked: OidcSettings, claims: Mapping[str, Any]) -> dict[int, TeamRole | None]:
    """For every team that OIDC_TEAMS names: the highest role that a group of theirs gives, or none."""
    groups = claims.get(asked.groups_claim)
    mine = {one for one in groups if isinstance(one, str)} if isinstance(groups, list) else set()
    teams = {team.name: team.pk for team in Team.objects.filter(name__in={team for _, team, _ in asked.teams})}
    found: dict[int, TeamRole | None] = dict.fromkeys(teams.values())
    for group, team, role in asked.teams:
        if group in mine and team in teams:
            given, before = TeamRole(role), found[teams[team]]
            found[teams[team]] = given if before is None or given.rank > before.rank else before
    return found
