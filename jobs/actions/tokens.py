"""The only code that makes and revokes tokens and gives roles, each with its Event."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction

from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.models import Membership, Team, TeamRole, Token, TokenScope, clock


class TokenError(Exception):
    """The message is a sentence."""


def max_token_scope(user: Any, team: Team | None) -> TokenScope:
    """What a token of theirs may do at most: as much as their role in its team, or their highest role anywhere."""
    if user.is_superuser:
        return TokenScope(TokenScope.ADMIN)
    mine = Membership.objects.filter(user=user)
    roles = (mine.filter(team=team) if team else mine).values_list("role", flat=True)
    return TokenScope(TokenScope.values[max((TeamRole(role).rank for role in roles), default=0)])


def max_token_lifetime() -> timedelta | None:
    """How long a new token may live (ACME_TOKEN_MAX_DAYS); None: as long as anybody likes."""
    return timedelta(days=settings.ACME_TOKEN_MAX_DAYS) if settings.ACME_TOKEN_MAX_DAYS else None


def token_expiry_error(expires_at: datetime | None, now: datetime) -> str:
    """Why a new token may not live that long, as a sentence; empty if it may."""
    most = max_token_lifetime()
    if most is None or (expires_at is not None and expires_at <= now + most):
        return ""
    asked = "without an end" if expires_at is None else f"until {expires_at:%Y-%m-%d}"
    return f"A token may live for at most {most.days} days here (ACME_TOKEN_MAX_DAYS), not {asked}."


@transaction.atomic
def create_token(
    *,
    user: Any,
    name: str,
    scope: str,
    author: Author,
    team: Team | None = None,
    networks: list[str] | None = None,
    expires_at: datetime | None = None,
) -> tuple[Token, str]:
    """A new token and its secret, which is shown this once. TokenError if it would live longer than allowed."""
    if why := token_expiry_error(expires_at, clock.now()):
        raise TokenError(why)
    token, secret = Token.make(
        user=user, team=team, name=name, scope=scope, networks=networks or [], expires_at=expires_at
    )
    token.save()
    journal_token("token.made", token, author)
    return token, secret


@transaction.atomic
def revoke(token: Token, *, author: Author, why: str = "") -> None:
    """From its next request on; for good."""
    if not Token.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=clock.now()):
        raise TokenError(f"{token} is revoked already")
    token.refresh_from_db()
    journal_token("token.revoked", token, author, why)


@transaction.atomic
def revoke_user_tokens(user: Any, *, author: Author, why: str) -> int:
    """Every token that acts for this user; how many were revoked."""
    tokens = Token.objects.filter(user=user, revoked_at__isnull=True).select_related("user", "team")
    for token in (found := list(tokens.select_for_update(of=("self",)))):
        revoke(token, author=author, why=why)
    return len(found)


def journal_token(what: str, token: Token, author: Author, why: str = "") -> None:
    detail = {"token": token.prefix, "name": token.name, "user": token.user.get_username(), "scope": token.scope}
    if token.team_id:
        detail["team"] = token.team.name
    journal.new_event(what, author, why=why, detail=detail).save()


@transaction.atomic
def set_roles(user: Any, roles: Mapping[int, TeamRole | None], *, author: Author, why: str) -> int:
    """Team by team the role they have from now on, None for none; how many changed. Other teams stay as they are."""
    before = dict(Membership.objects.filter(user=user, team__in=roles).values_list("team_id", "role"))
    changed = {team: role for team, role in roles.items() if before.get(team) != role}
    for team in Team.objects.filter(pk__in=changed):
        role = changed[team.pk]
        if role is None:
            Membership.objects.filter(user=user, team=team).delete()
        else:
            Membership.objects.update_or_create(user=user, team=team, defaults={"role": role})
        detail = {"user": user.get_username(), "team": team.name, "from": before.get(team.pk), "to": role}
        journal.new_event("team.role", author, why=why, detail=detail).save()
    return len(changed)
