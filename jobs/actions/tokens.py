"""The only code that creates and revokes tokens and sets roles. Each change writes its Event."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction

from acmeweb.common.errors import InvalidInput, StateConflict
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.models import Membership, Team, TeamRole, Token, TokenScope, clock


def max_token_scope(user: Any, team: Team | None) -> TokenScope:
    """Return the highest scope for a token of this user: that of their role in the token's team, or of their highest
    role."""
    if user.is_superuser:
        return TokenScope(TokenScope.ADMIN)
    memberships = Membership.objects.filter(user=user)
    # A token without a team acts in all teams of its user, so the highest role counts
    roles = (memberships.filter(team=team) if team else memberships).values_list("role", flat=True)
    return TokenScope(TokenScope.values[max((TeamRole(role).rank for role in roles), default=0)])


def max_token_lifetime() -> timedelta | None:
    """Return the maximum lifetime of a new token (ACME_TOKEN_MAX_DAYS); None means unlimited."""
    return timedelta(days=settings.ACME_TOKEN_MAX_DAYS) if settings.ACME_TOKEN_MAX_DAYS else None


def token_expiry_error(expires_at: datetime | None, now: datetime) -> str:
    """Return why a new token may not be valid that long, as a sentence, or an empty string."""
    limit = max_token_lifetime()
    if limit is None or (expires_at is not None and expires_at <= now + limit):
        return ""
    requested = "without an end" if expires_at is None else f"until {expires_at:%Y-%m-%d}"
    return f"A token may be valid for at most {limit.days} days (ACME_TOKEN_MAX_DAYS), not {requested}."


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
    """Create a token and return it with its secret, which cannot be read again. Raises InvalidInput if it would be
    valid too long."""
    if why := token_expiry_error(expires_at, clock.now()):
        raise InvalidInput(why)
    token, secret = Token.make(
        user=user, team=team, name=name, scope=scope, networks=networks or [], expires_at=expires_at
    )
    token.save()
    journal_token("token.created", token, author)
    return token, secret


@transaction.atomic
def revoke(token: Token, *, author: Author, why: str = "") -> None:
    """Revoke the token permanently, effective with its next request."""
    # The guard keeps the time and the author of the first revocation
    if not Token.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=clock.now()):
        raise StateConflict(f"{token} is already revoked")
    token.refresh_from_db()
    journal_token("token.revoked", token, author, why)


@transaction.atomic
def revoke_user_tokens(user: Any, *, author: Author, why: str) -> int:
    """Revoke every token of this user. Return their number."""
    tokens = Token.objects.filter(user=user, revoked_at__isnull=True).select_related("user", "team")
    for token in (locked := list(tokens.select_for_update(of=("self",)))):
        revoke(token, author=author, why=why)
    return len(locked)


def journal_token(what: str, token: Token, author: Author, why: str = "") -> None:
    detail = {"token": token.prefix, "name": token.name, "user": token.user.get_username(), "scope": token.scope}
    if token.team_id:
        detail["team"] = token.team.name
    journal.new_event(what, author, why=why, detail=detail).save()


@transaction.atomic
def set_roles(user: Any, roles: Mapping[int, TeamRole | None], *, author: Author, why: str) -> int:
    """Set the user's role in each of these teams, None for none. Return how many changed. Other teams are not
    affected."""
    before = dict(Membership.objects.filter(user=user, team__in=roles).values_list("team_id", "role"))
    # Only changed roles write an Event
    changed = {team: role for team, role in roles.items() if before.get(team) != role}
    for team in Team.objects.filter(pk__in=changed):
        role = changed[team.pk]
        if role is None:
            Membership.objects.filter(user=user, team=team).delete()
        else:
            Membership.objects.update_or_create(user=user, team=team, defaults={"role": role})
        detail = {"user": user.get_username(), "team": team.name, "from": before.get(team.pk), "to": role}
        journal.new_event("team.role_changed", author, why=why, detail=detail).save()
    return len(changed)
