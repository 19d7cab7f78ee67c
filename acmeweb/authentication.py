"""Who knocks at the API: a browser's session, or a bearer token."""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from typing import Any

from django.db.models import Q
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed

from jobs import clock
from jobs.door.rights import scope_of as scope_of
from jobs.models import Token

LAST_USED_EVERY = timedelta(minutes=1)  # a write per request would make every read a write


class BearerTokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer acme_…`; request.auth is the Token."""

    def authenticate(self, request: Any) -> tuple[Any, Token] | None:
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        now = clock.now()
        token = Token.objects.usable(now).select_related("user").filter(digest=Token.digest_of(secret.strip())).first()
        if token is None:
            raise AuthenticationFailed("This token is unknown, expired or revoked.")
        if not _from_allowed_network(token, request.META.get("REMOTE_ADDR", "")):
            raise AuthenticationFailed("This token may not be used from your network.")
        stale = Q(last_used_at__isnull=True) | Q(last_used_at__lt=now - LAST_USED_EVERY)
        Token.objects.filter(stale, pk=token.pk).update(last_used_at=now)
        return token.user, token

    def authenticate_header(self, request: Any) -> str:
        return 'Bearer realm="acme"'


class BrowserSessionAuthentication(SessionAuthentication):
    """The session of the dashboard, with its CSRF check."""


def _from_allowed_network(token: Token, address: str) -> bool:
    if not token.networks:
        return True
    try:
        client = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(client in ipaddress.ip_network(network, strict=False) for network in token.networks)
