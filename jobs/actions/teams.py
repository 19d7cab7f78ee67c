"""The only code that creates teams and changes their members. Each change writes its Event.

An administrator of a team grants and revokes roles in it; a superuser may do so in every team. The last administrator
of a team can only be removed by a superuser.
"""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction

from acmeweb.common.errors import NotAllowed, StateConflict
from jobs.actions import journal
from jobs.actions import tokens as token_actions
from jobs.actions.journal import Author
from jobs.models import Membership, Team, TeamRole


@transaction.atomic
def create_team(name: str, title: str, *, first: Any, author: Author) -> Team:
    """Create a team with its first administrator."""
    try:
        with transaction.atomic():
            team = Team.objects.create(name=name, title=title)
    except IntegrityError:
        raise StateConflict(f"a team named {name} already exists") from None
    journal.new_event("team.created", author, detail={"team": name, "title": title}).save()
    token_actions.set_roles(first, {team.pk: TeamRole.ADMIN}, author=author, why="Created the team.")
    return team


@transaction.atomic
def set_team_title(team: Team, title: str, *, author: Author) -> None:
    before = Team.objects.select_for_update().get(pk=team.pk).title
    if before == title:
        raise StateConflict(f"{team} already has this title")
    Team.objects.filter(pk=team.pk).update(title=title)
    journal.new_event("team.title_changed", author, detail={"team": team.name, "from": before, "to": title}).save()


@transaction.atomic
def set_team_role(team: Team, member: Any, role: TeamRole | None, *, by: Any, author: Author, why: str = "") -> None:
    """Set or, with None, remove a role. The team's row is locked, so that two administrators cannot remove each
    other."""
    Team.objects.select_for_update().get(pk=team.pk)
    roles = {user: TeamRole(has) for user, has in Membership.objects.filter(team=team).values_list("user_id", "role")}
    before = roles.get(member.pk)
    if before == role:
        raise StateConflict(f"{member} already {f'is {role}' if role else 'has no role'} in {team}")
    # A superuser has every role in every team and may remove the last administrator
    if not by.is_superuser:
        _check_role_change(roles, member.pk, role, own=roles.get(by.pk))
    token_actions.set_roles(member, {team.pk: role}, author=author, why=why)


def _check_role_change(roles: dict[int, TeamRole], member: int, role: TeamRole | None, *, own: TeamRole | None) -> None:
    """Check that the caller administers the team and that an administrator remains."""
    if own != TeamRole.ADMIN:
        raise NotAllowed("this needs the role admin in the team")
    # A team whose last administrator leaves could only be administered by a superuser
    others = [user for user, other_role in roles.items() if other_role == TeamRole.ADMIN and user != member]
    if roles.get(member) == TeamRole.ADMIN and role != TeamRole.ADMIN and not others:
        raise StateConflict("the team needs an administrator: appoint another one first")
