"""Authentication of API callers: by the session of a browser or by a bearer token."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from django.contrib.auth import get_user_model
from django.db import connection
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed

from jobs.models import Token

LAST_USED_INTERVAL = timedelta(minutes=1)  # one write per request would turn every read into a write


class BearerTokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer acme_…`; request.auth is the Token."""

    def authenticate(self, request: Any) -> tuple[Any, Token] | None:
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        digest = Token.secret_digest(secret.strip())
        tokens, now = find_tokens([digest])
        token = tokens.get(digest)
        if why := token_refusal(token, request.META.get("REMOTE_ADDR", ""), now):
            raise AuthenticationFailed(why)
        assert token
        update_last_used([token], now)
        return token.user, token

    def authenticate_header(self, request: Any) -> str:
        return 'Bearer realm="acme"'


class BrowserSessionAuthentication(SessionAuthentication):
    """The session of the dashboard, with its CSRF check."""


def token_refusal(token: Token | None, address: str, now: datetime) -> str:
    """Return why the token is refused; empty if it is accepted."""
    if token is None or not token.is_usable(now):
        return "This token is unknown, expired or revoked."
    if not _from_allowed_network(token, address):
        return "This token may not be used from your network."
    return ""


def update_last_used(tokens: Iterable[Token], now: datetime) -> None:
    idle = [token.pk for token in tokens if token.last_used_at is None or token.last_used_at < now - LAST_USED_INTERVAL]
    if idle:
        Token.objects.filter(pk__in=idle).update(last_used_at=now)


def find_tokens(digests: Sequence[str]) -> tuple[dict[str, Token], datetime]:
    """Return the tokens with their users and roles, and the database's time, in one query: every request runs it.

    Nothing is cached between requests, so a revoked token is refused from the next request on.
    """
    with connection.cursor() as cursor:
        cursor.execute(_tokens_sql(), [list(digests)])
        rows = cursor.fetchall()
    tokens = [_build_token(roles, values) for _, roles, *values in rows if values[0] is not None]
    return {token.digest: token for token in tokens}, rows[0][0]


def _build_token(roles: Mapping[str, str] | None, values: Sequence[Any]) -> Token:
    fields, user = _model_fields(Token), get_user_model()
    token = Token.from_db(connection.alias, [field.attname for field in fields], values[: len(fields)])
    names = [field.attname for field in _model_fields(user)]
    token.user = user.from_db(connection.alias, names, values[len(fields) :])
    token.user.known_roles = {int(team): role for team, role in (roles or {}).items()}
    return token


def _model_fields(model: Any) -> tuple[Any, ...]:
    return tuple(model._meta.concrete_fields)


@cache
def _tokens_sql() -> str:
    user = get_user_model()
    columns = [f't."{field.column}"' for field in _model_fields(Token)] + [
        f'u."{field.column}"' for field in _model_fields(user)
    ]
    return f"""
        SELECT clock_timestamp(),
               (SELECT json_object_agg(m.team_id, m.role) FROM jobs_membership m WHERE m.user_id = t.user_id),
               {", ".join(columns)}
        FROM unnest(%s::text[]) AS requested (digest)
        LEFT JOIN {Token._meta.db_table} t ON t.digest = requested.digest
        LEFT JOIN {user._meta.db_table} u ON u.id = t.user_id
    """  # noqa: S608 - table and column names come from Django


def _from_allowed_network(token: Token, address: str) -> bool:
    if not token.networks:
        return True
    try:
        client = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(client in ipaddress.ip_network(network, strict=False) for network in token.networks)
