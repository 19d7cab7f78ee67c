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

from acmeweb.env import OidcSettings
from jobs import token_actions
from jobs.journal import Author
from jobs.models import Identity, Role, Team

log = logging.getLogger(__name__)

SESSION = "oidc"
SIGNED_IN = "oidc_id_token"  # says at the provider who wants to leave
LONGEST_HINT = 4000  # of an address; a longer one is left out, and the provider asks
MOST_OPEN, OPEN_S = 5, 600
KEPT_S = 3600
LEEWAY_S = 60
SIGNED_WITH = ["RS256", "RS384", "RS512", "ES256", "ES384", "PS256", "EdDSA"]  # never none, never a shared secret


class NotSignedIn(Exception):
    """The message is a sentence for the person who tried."""


@dataclass(kw_only=True)
class Provider:
    """What is known of it, and for how long."""

    asked: OidcSettings
    transport: httpx.BaseTransport | None = None
    found: dict[str, tuple[float, Any]] = field(default_factory=dict)

    def metadata(self) -> Mapping[str, Any]:
        about: Mapping[str, Any] = self._get(f"{self.asked.issuer.rstrip('/')}/.well-known/openid-configuration")
        if about.get("issuer") != self.asked.issuer:
            raise NotSignedIn("The provider calls itself by another name than OIDC_ISSUER.")
        return about

    def keys(self, fresh: bool = False) -> Any:
        return self._get(self.metadata()["jwks_uri"], fresh)

    def exchange(self, code: str, verifier: str, came_back_to: str) -> str:
        """The ID token for a code."""
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": came_back_to}
        form |= {"code_verifier": verifier, "client_id": self.asked.client_id}
        who = (self.asked.client_id, self.asked.client_secret) if self.asked.client_secret else None
        said = self._ask("POST", self.metadata()["token_endpoint"], data=form, auth=who)
        if not isinstance(said, dict) or not isinstance(said.get("id_token"), str):
            raise NotSignedIn("The provider gave no ID token.")
        return said["id_token"]

    def _get(self, address: str, fresh: bool = False) -> Any:
        at, said = self.found.get(address, (0.0, None))
        if fresh or time.monotonic() - at > KEPT_S or said is None:
            said = self._ask("GET", address)
            self.found[address] = time.monotonic(), said
        return said

    def _ask(self, method: str, address: str, **more: Any) -> Any:
        try:
            with httpx.Client(transport=self.transport, timeout=10) as client:
                answer = client.request(method, address, **more)
            answer.raise_for_status()
            return answer.json()
        except (httpx.HTTPError, ValueError) as error:
            log.warning("the OIDC provider: %s %s: %s", method, address, error)
            raise NotSignedIn("The provider does not answer as it should; try again in a moment.") from None


_providers: dict[OidcSettings, Provider] = {}


def provider() -> Provider:
    if not settings.OIDC:
        raise Http404("no provider is configured")
    return _providers.setdefault(settings.OIDC, Provider(asked=settings.OIDC))


# --- there and back


@login_not_required
@require_safe
def begin(request: HttpRequest) -> HttpResponse:
    known = provider()
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    try:
        address = known.metadata()["authorization_endpoint"]
    except NotSignedIn as why:
        return _refused(request, why)
    open_now = {name: one for name, one in request.session.get(SESSION, {}).items() if one["at"] > time.time() - OPEN_S}
    kept = dict(list(open_now.items())[-(MOST_OPEN - 1) :])
    one = {"nonce": nonce, "verifier": verifier, "next": request.GET.get("next", ""), "at": time.time()}
    request.session[SESSION] = kept | {state: one}
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
def back(request: HttpRequest) -> HttpResponse:
    try:
        known, one = provider(), _opened(request)
        if "error" in request.GET:
            raise NotSignedIn("The provider refused; nobody was signed in.")
        here = request.build_absolute_uri(reverse("oidc-back"))
        raw = known.exchange(request.GET.get("code", ""), one["verifier"], here)
        claims = checked(known, raw, one["nonce"])
        user = user_of(known.asked, claims, request)
    except NotSignedIn as why:
        return _refused(request, why)
    login(request, user, backend=settings.AUTHENTICATION_BACKENDS[0])
    request.session[SIGNED_IN] = raw
    there = one["next"]
    safe = url_has_allowed_host_and_scheme(there, {request.get_host()}, require_https=request.is_secure())
    return redirect(there if safe else settings.LOGIN_REDIRECT_URL)


def _opened(request: HttpRequest) -> dict[str, Any]:
    """What this browser asked for under this state; it is good once."""
    waiting = dict(request.session.get(SESSION, {}))
    one = waiting.pop(request.GET.get("state", ""), None)
    request.session[SESSION] = waiting
    if one is None or one["at"] < time.time() - OPEN_S:
        raise NotSignedIn("This sign-in was not begun here, or too long ago; begin again.")
    return dict(one)


@login_not_required
@require_POST
def leave(request: HttpRequest) -> HttpResponse:
    """Sign out here; who came by the provider is then sent there, or the next click would sign him in again.

    A page that goes on by itself, because our content policy lets no form end at another server.
    """
    there = _way_out(request)
    logout(request)
    return (
        render(request, "signed_out.html", {"there": there, "at": settings.OIDC.label}) if there else redirect("login")
    )


def _way_out(request: HttpRequest) -> str:
    """The provider's address for signing out; empty where there is none, or where the provider is away."""
    hint = request.session.get(SIGNED_IN)
    if not hint or not settings.OIDC:
        return ""
    try:
        address = provider().metadata().get("end_session_endpoint")
    except NotSignedIn:
        return ""
    if not isinstance(address, str) or urlsplit(address).scheme not in ("https", "http"):
        return ""
    asked = {
        "client_id": settings.OIDC.client_id,
        "post_logout_redirect_uri": request.build_absolute_uri(reverse("login")),
    }
    asked |= {"id_token_hint": hint} if len(hint) <= LONGEST_HINT else {}
    return f"{address}{'&' if '?' in address else '?'}{urlencode(asked)}"


def _refused(request: HttpRequest, why: NotSignedIn) -> HttpResponse:
    messages.error(request, str(why))
    return redirect("login")


# --- who it is


def checked(known: Provider, raw: str, nonce: str) -> Mapping[str, Any]:
    """The claims of an ID token that is signed by the provider, for us, now, and in answer to our question."""
    from joserfc import jwt
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    claims: Mapping[str, Any] = {}
    for fresh in (False, True):  # a key that is not known may be a new one
        try:
            claims = jwt.decode(raw, KeySet.import_key_set(known.keys(fresh)), algorithms=SIGNED_WITH).claims
            break
        except (JoseError, ValueError, KeyError, TypeError) as error:
            if fresh:
                log.warning("an ID token was refused: %s", error)
                raise NotSignedIn("The provider's ID token is not signed as it should be.") from None
    now = time.time()
    audience = claims.get("aud")
    meant = audience if isinstance(audience, list) else [audience]
    right = (
        claims.get("iss") == known.asked.issuer
        and known.asked.client_id in meant
        and (len(meant) == 1 or claims.get("azp") == known.asked.client_id)
        and _number(claims.get("exp")) > now - LEEWAY_S
        and _number(claims.get("iat")) < now + LEEWAY_S
        and _number(claims.get("nbf", 0)) < now + LEEWAY_S
        and constant_time_compare(str(claims.get("nonce", "")), nonce)
        and isinstance(claims.get("sub"), str)
        and claims["sub"]
    )
    if not right:
        raise NotSignedIn("The provider's ID token is not for this sign-in.")
    return claims


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")


@transaction.atomic
def user_of(asked: OidcSettings, claims: Mapping[str, Any], request: HttpRequest) -> Any:
    known = Identity.objects.select_related("user").filter(issuer=asked.issuer, subject=claims["sub"][:255]).first()
    user = known.user if known else _newcomer(asked, claims)
    if not user.is_active:
        raise NotSignedIn("This user is switched off here.")
    author = Author(
        by=user.get_username(),
        user_id=user.pk,
        request_id=getattr(request, "acme_id", ""),
        source=request.META.get("REMOTE_ADDR") or None,
    )
    token_actions.set_roles(user, roles_of(asked, claims), author=author, why="As the groups of the sign-in say.")
    return user


def _newcomer(asked: OidcSettings, claims: Mapping[str, Any]) -> Any:
    people = get_user_model()
    name = claims.get(asked.username_claim)
    if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= 150:
        raise NotSignedIn(f"The provider gave no usable {asked.username_claim}.")
    there = people.objects.select_for_update().filter(username=name).first()
    if there is not None and not _prepared(there):
        raise NotSignedIn(f"The name {name} is taken by a user who signs in otherwise; ask an administrator.")
    if there is None and asked.new_users != "create":
        raise NotSignedIn(f"There is no user {name} here; ask an administrator.")
    user = there or people(username=name, email=_text(claims.get("email")), first_name=_text(claims.get("given_name")))
    if there is None:
        user.last_name = _text(claims.get("family_name"))
        user.set_unusable_password()
        user.save()
    Identity.objects.create(user=user, issuer=asked.issuer, subject=claims["sub"][:255])
    return user


def _prepared(user: Any) -> bool:
    """Made by an operator to be taken over: nobody else's, and without powers that a chosen name could steal."""
    taken = Identity.objects.filter(user=user).exists()
    return not (user.has_usable_password() or user.is_superuser or user.is_staff or taken)


def _text(value: Any) -> str:
    return value[:150] if isinstance(value, str) and value.isprintable() else ""


def roles_of(asked: OidcSettings, claims: Mapping[str, Any]) -> dict[int, Role | None]:
    """For every team that OIDC_TEAMS names: the highest role that a group of theirs gives, or none."""
    groups = claims.get(asked.groups_claim)
    mine = {one for one in groups if isinstance(one, str)} if isinstance(groups, list) else set()
    teams = {team.name: team.pk for team in Team.objects.filter(name__in={team for _, team, _ in asked.teams})}
    found: dict[int, Role | None] = dict.fromkeys(teams.values())
    for group, team, role in asked.teams:
        if group in mine and team in teams:
            given, before = Role(role), found[teams[team]]
            found[teams[team]] = given if before is None or given.rank > before.rank else before
    return found
