"""Sign-in with OpenID Connect: authorization code with PKCE, at the one provider that the environment names.

A user is identified by issuer and subject, never by name, because names can be chosen. At the first sign-in,
`OIDC_NEW_USERS` decides: `refuse` accepts only users whom an operator has prepared (same name, no password and no
permissions for the site), `create` also creates users. `OIDC_TEAMS` maps groups to roles; teams that it does not name
are not changed. State, nonce and verifier are stored in the browser's session and are valid for one callback.

joserfc verifies the ID token. Authlib is not used for the requests: its client limits neither the size nor the duration
of an answer, and it leaves httpx for httpx2.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping
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

from acmeweb.auth.login_events import record_refused_sign_in
from acmeweb.common import http_client
from acmeweb.common.env import OidcSettings
from jobs.actions import tokens as token_actions
from jobs.actions.journal import Author
from jobs.models import Identity, Team, TeamRole

log = logging.getLogger(__name__)

OIDC_SESSION_KEY = "oidc"
ID_TOKEN_SESSION_KEY = "oidc_id_token"  # noqa: S105 - session key; tells the provider which user signs out
MAX_HINT_LENGTH = 4000  # of a URL; a longer token is omitted, and the provider asks the user
MAX_PENDING_LOGINS, PENDING_LOGIN_S = 5, 600
METADATA_CACHE_S = 3600
PROVIDER_TIMEOUT_S, MAX_ANSWER_BYTES = 10, 1 << 20
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
LEEWAY_S = 60
# never "none", never a shared secret
ID_TOKEN_ALGORITHMS = ["RS256", "RS384", "RS512", "ES256", "ES384", "PS256", "EdDSA"]


class SignInError(Exception):
    """Why the sign-in failed. The message is shown to the user."""


@dataclass(kw_only=True)
class OidcProvider:
    """A provider: its settings, and a cache of its metadata and keys."""

    config: OidcSettings
    cache: dict[str, tuple[float, Any]] = field(default_factory=dict)

    def metadata(self) -> Mapping[str, Any]:
        about = self._get(f"{self.config.issuer.rstrip('/')}/.well-known/openid-configuration")
        if not isinstance(about, dict) or about.get("issuer") != self.config.issuer:
            raise SignInError("The provider's issuer is not the one in OIDC_ISSUER.")
        if not all(isinstance(about.get(name), str) for name in ENDPOINTS):
            raise SignInError(f"The provider's metadata lacks an address: it needs {', '.join(ENDPOINTS)}.")
        return about

    def keys(self, fresh: bool = False) -> Any:
        return self._get(self.metadata()["jwks_uri"], fresh)

    def exchange_code(self, code: str, verifier: str, redirect_uri: str) -> str:
        """Exchange an authorization code for the ID token."""
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri}
        form |= {"code_verifier": verifier, "client_id": self.config.client_id}
        credentials = (self.config.client_id, self.config.client_secret) if self.config.client_secret else None
        tokens = self._send_request("POST", self.metadata()["token_endpoint"], data=form, auth=credentials)
        if not isinstance(tokens, dict) or not isinstance(tokens.get("id_token"), str):
            raise SignInError("The provider did not return an ID token.")
        return tokens["id_token"]

    def _get(self, address: str, fresh: bool = False) -> Any:
        at, document = self.cache.get(address, (0.0, None))
        if fresh or time.monotonic() - at > METADATA_CACHE_S or document is None:
            document = self._send_request("GET", address)
            self.cache[address] = time.monotonic(), document
        return document

    def _send_request(self, method: str, address: str, **more: Any) -> Any:
        """Return the JSON of the answer. Redirects are not followed: the request contains our secret."""
        try:
            with (
                http_client.new_client() as client,
                client.stream(method, address, timeout=PROVIDER_TIMEOUT_S, **more) as answer,
            ):
                return json.loads(limited_body(answer.raise_for_status()))
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as error:
            log.warning("OIDC provider: %s %s failed: %s", method, address, error)
            raise SignInError("The provider is not responding correctly. Try again in a moment.") from None


def limited_body(answer: httpx.Response, monotonic: Callable[[], float] = time.monotonic) -> bytes:
    """Return the body. Raise ValueError if it is too large or takes too long: httpx limits only each read."""
    body, until = b"", monotonic() + PROVIDER_TIMEOUT_S
    for chunk in answer.iter_bytes():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES or monotonic() > until:
            raise ValueError(f"the answer exceeds {MAX_ANSWER_BYTES} bytes or {PROVIDER_TIMEOUT_S} s")
    return body


_providers: dict[OidcSettings, OidcProvider] = {}


def configured_provider() -> OidcProvider:
    if not settings.OIDC:
        raise Http404("No OIDC provider is configured.")
    return _providers.setdefault(settings.OIDC, OidcProvider(config=settings.OIDC))


# --- the redirect to the provider and back


@login_not_required
@require_safe
def begin_sign_in(request: HttpRequest) -> HttpResponse:
    provider = configured_provider()
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    try:
        address = provider.metadata()["authorization_endpoint"]
    except SignInError as why:
        return _redirect_to_login(request, why)
    pending = {
        state: entry
        for state, entry in request.session.get(OIDC_SESSION_KEY, {}).items()
        if entry["at"] > time.time() - PENDING_LOGIN_S
    }
    newest = dict(list(pending.items())[-(MAX_PENDING_LOGINS - 1) :])
    entry = {"nonce": nonce, "verifier": verifier, "next": request.GET.get("next", ""), "at": time.time()}
    request.session[OIDC_SESSION_KEY] = newest | {state: entry}
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
    query = {
        "response_type": "code",
        "client_id": provider.config.client_id,
        "redirect_uri": request.build_absolute_uri(reverse("oidc-back")),
        "scope": provider.config.scopes,
        "state": state,
        "nonce": nonce,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    return redirect(f"{address}{'&' if '?' in address else '?'}{urlencode(query)}")


@login_not_required
@require_safe
def finish_sign_in(request: HttpRequest) -> HttpResponse:
    try:
        provider, entry = configured_provider(), _take_pending_login(request)
        if "error" in request.GET:
            raise SignInError("The provider refused the sign-in.")
        redirect_uri = request.build_absolute_uri(reverse("oidc-back"))
        raw = provider.exchange_code(request.GET.get("code", ""), entry["verifier"], redirect_uri)
        claims = verified_claims(provider, raw, entry["nonce"])
        user = _sign_in_or_record_refusal(provider.config, claims, request)
    except SignInError as why:
        return _redirect_to_login(request, why)
    login(request, user, backend=settings.AUTHENTICATION_BACKENDS[0])
    request.session[ID_TOKEN_SESSION_KEY] = raw
    safe = url_has_allowed_host_and_scheme(entry["next"], {request.get_host()}, require_https=request.is_secure())
    return redirect(entry["next"] if safe else settings.LOGIN_REDIRECT_URL)


def _sign_in_or_record_refusal(config: OidcSettings, claims: Mapping[str, Any], request: HttpRequest) -> Any:
    try:
        return sign_in_user(config, claims, request)
    except SignInError as why:
        record_refused_sign_in(request, str(claims.get(config.username_claim, "")), str(why))
        raise


def _take_pending_login(request: HttpRequest) -> dict[str, Any]:
    """Remove and return the pending sign-in of this state; each is valid once."""
    pending = dict(request.session.get(OIDC_SESSION_KEY, {}))
    entry = pending.pop(request.GET.get("state", ""), None)
    request.session[OIDC_SESSION_KEY] = pending
    if entry is None or entry["at"] < time.time() - PENDING_LOGIN_S:
        raise SignInError("This sign-in was not started in this browser, or it has expired. Start again.")
    return dict(entry)


@login_not_required
@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    """Sign out here, and at the provider too if the session came from it. Otherwise the next click signs in again.

    The browser goes to the provider from a page, because our content policy forbids forms that end at another server.
    """
    url = _provider_logout_url(request)
    logout(request)
    return render(request, "signed_out.html", {"there": url, "at": settings.OIDC.label}) if url else redirect("login")


def _provider_logout_url(request: HttpRequest) -> str:
    """Return the provider's sign-out URL; empty if there is none or the provider is unavailable."""
    hint = request.session.get(ID_TOKEN_SESSION_KEY)
    if not hint or not settings.OIDC:
        return ""
    try:
        address = configured_provider().metadata().get("end_session_endpoint")
    except SignInError:
        return ""
    if not isinstance(address, str) or urlsplit(address).scheme not in ("https", "http"):
        return ""
    query = {
        "client_id": settings.OIDC.client_id,
        "post_logout_redirect_uri": request.build_absolute_uri(reverse("login")),
    }
    query |= {"id_token_hint": hint} if len(hint) <= MAX_HINT_LENGTH else {}
    return f"{address}{'&' if '?' in address else '?'}{urlencode(query)}"


def _redirect_to_login(request: HttpRequest, why: SignInError) -> HttpResponse:
    messages.error(request, str(why))
    return redirect("login")


# --- identity and roles


def verified_claims(provider: OidcProvider, raw: str, nonce: str) -> Mapping[str, Any]:
    """Return the claims of an ID token that the provider signed for us, now, and for this nonce."""
    from joserfc.errors import JoseError
    from joserfc.jwt import JWTClaimsRegistry

    claims, client_id = _signed_claims(provider, raw), provider.config.client_id
    rules = JWTClaimsRegistry(
        leeway=LEEWAY_S,
        iss={"essential": True, "value": provider.config.issuer},
        aud={"essential": True, "value": client_id},
        sub={"essential": True},
        exp={"essential": True},
        iat={"essential": True},
    )
    try:
        rules.validate(claims)
    except JoseError as error:
        log.warning("ID token refused: %s", error)
        raise SignInError("The provider's ID token is not valid for this sign-in.") from None
    has_other_audience = claims["aud"] not in (client_id, [client_id])
    is_for_us = not has_other_audience or claims.get("azp") == client_id
    if not is_for_us or not constant_time_compare(str(claims.get("nonce", "")), nonce):
        raise SignInError("The provider's ID token is not valid for this sign-in.")
    return claims


def _signed_claims(provider: OidcProvider, raw: str) -> dict[str, Any]:
    """Return the claims of a token with a valid signature. An unknown key may be new, so the keys are read again."""
    from joserfc import jwt
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    for fresh in (False, True):
        try:
            keys = KeySet.import_key_set(provider.keys(fresh))
            return jwt.decode(raw, keys, algorithms=ID_TOKEN_ALGORITHMS).claims
        except (JoseError, ValueError, KeyError, TypeError) as error:
            log.warning("ID token not verified with the %s keys: %s", "new" if fresh else "cached", error)
    raise SignInError("The signature of the provider's ID token is not valid.")


@transaction.atomic
def sign_in_user(config: OidcSettings, claims: Mapping[str, Any], request: HttpRequest) -> Any:
    """Return the user of the claims, with the roles of its groups; create the user if the settings allow it."""
    identity = Identity.objects.select_related("user").filter(issuer=config.issuer, subject=claims["sub"][:255]).first()
    user = identity.user if identity else _create_user(config, claims)
    if not user.is_active:
        raise SignInError("This user is deactivated.")
    author = Author(
        by=user.get_username(),
        user_id=user.pk,
        request_id=getattr(request, "acme_id", ""),
        source=request.META.get("REMOTE_ADDR") or None,
    )
    token_actions.set_roles(user, team_roles_of(config, claims), author=author, why="From the groups of the sign-in.")
    return user


def _create_user(config: OidcSettings, claims: Mapping[str, Any]) -> Any:
    users = get_user_model()
    name = claims.get(config.username_claim)
    if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= 150:
        raise SignInError(f"The provider did not return a usable {config.username_claim}.")
    existing = users.objects.select_for_update().filter(username=name).first()
    if existing is not None and not _is_claimable(existing):
        raise SignInError(f"The name {name} belongs to a user with another sign-in. Ask an administrator.")
    if existing is None and config.new_users != "create":
        raise SignInError(f"User {name} does not exist here. Ask an administrator.")
    user = existing or users(
        username=name, email=_claim_text(claims.get("email")), first_name=_claim_text(claims.get("given_name"))
    )
    if existing is None:
        user.last_name = _claim_text(claims.get("family_name"))
        user.set_unusable_password()
        user.save()
    Identity.objects.create(user=user, issuer=config.issuer, subject=claims["sub"][:255])
    return user


def _is_claimable(user: Any) -> bool:
    """Whether an operator prepared this user for a sign-in: no identity, no password, and no permissions to steal."""
    has_identity = Identity.objects.filter(user=user).exists()
    return not (user.has_usable_password() or user.is_superuser or user.is_staff or has_identity)


def _claim_text(value: Any) -> str:
    return value[:150] if isinstance(value, str) and value.isprintable() else ""


def team_roles_of(config: OidcSettings, claims: Mapping[str, Any]) -> dict[int, TeamRole | None]:
    """Return, for every team in OIDC_TEAMS, the highest role that the user's groups give, or None."""
    claimed = claims.get(config.groups_claim)
    groups = {group for group in claimed if isinstance(group, str)} if isinstance(claimed, list) else set()
    teams = {team.name: team.pk for team in Team.objects.filter(name__in={team for _, team, _ in config.teams})}
    roles: dict[int, TeamRole | None] = dict.fromkeys(teams.values())
    for group, team, role_name in config.teams:
        if group in groups and team in teams:
            role, before = TeamRole(role_name), roles[teams[team]]
            roles[teams[team]] = role if before is None or role.rank > before.rank else before
    return roles
