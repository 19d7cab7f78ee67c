"""The only code that makes and revokes tokens and gives roles, each with its Event."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import transaction

from jobs import clock, journal
from jobs.journal import Author
from jobs.models import Membership, Role, Scope, Team, Token


class TokenError(Exception):
    """The message is a sentence."""


def widest_scope(user: Any, team: Team | None) -> Scope:
    """What a token of theirs may do at most: as much as their role in its team, or their highest role anywhere."""
    if user.is_superuser:
        return Scope(Scope.ADMIN)
    mine = Membership.objects.filter(user=user)
    roles = (mine.filter(team=team) if team else mine).values_list("role", flat=True)
    return Scope(Scope.values[max((Role(role).rank for role in roles), default=0)])


@transaction.atomic
def make(
    *,
    user: Any,
    name: str,
    scope: str,
    author: Author,
    team: Team | None = None,
    networks: list[str] | None = None,
    expires_at: datetime | None = None,
) -> tuple[Token, str]:
    """A new token and its secret, which is shown this once."""
    token, secret = Token.make(
        user=user, team=team, name=name, scope=scope, networks=networks or [], expires_at=expires_at
    )
    token.save()
    note("token.made", token, author)
    return token, secret


@transaction.atomic
def revoke(token: Token, *, author: Author, why: str = "") -> None:
    """From its next request on; for good."""
    if not Token.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=clock.now()):
        raise TokenError(f"{token} is revoked already")
    token.refresh_from_db()
    note("token.revoked", token, author, why)


def note(what: str, token: Token, author: Author, why: str = "") -> None:
    detail = {"token": token.prefix, "name": token.name, "user": token.user.get_username(), "scope": token.scope}
    if token.team_id:
        detail["team"] = token.team.name
    journal.event(what, author, why=why, detail=detail).save()


@transaction.atomic
def set_roles(user: Any, roles: Mapping[int, Role | None], *, author: Author, why: str) -> int:
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
        journal.event("team.role", author, why=why, detail=detail).save()
    return len(changed)
