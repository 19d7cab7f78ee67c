"""The only code that makes teams and changes who is in them, each with its Event.

Whoever administers a team gives and takes roles up to their own; whoever runs the site gives every role. A team that
has an administrator keeps one: the last may go only when somebody who runs the site does it.
"""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction

from jobs.actions import journal
from jobs.actions import tokens as token_actions
from jobs.actions.journal import Author
from jobs.models import Membership, Team, TeamRole


class TeamError(Exception):
    """Nothing was changed; the message is a sentence without its full stop."""


@transaction.atomic
def create_team(name: str, title: str, *, first: Any, author: Author) -> Team:
    """With its first administrator."""
    try:
        with transaction.atomic():
            team = Team.objects.create(name=name, title=title)
    except IntegrityError:
        raise TeamError(f"there is a team {name} already") from None
    journal.new_event("team.made", author, detail={"team": name, "title": title}).save()
    token_actions.set_roles(first, {team.pk: TeamRole.ADMIN}, author=author, why="Made the team.")
    return team


@transaction.atomic
def set_team_title(team: Team, title: str, *, author: Author) -> None:
    before = Team.objects.select_for_update().get(pk=team.pk).title
    if before == title:
        raise TeamError(f"{team} is called so already")
    Team.objects.filter(pk=team.pk).update(title=title)
    journal.new_event("team.retitled", author, detail={"team": team.name, "from": before, "to": title}).save()


@transaction.atomic
def set_team_role(team: Team, member: Any, role: TeamRole | None, *, by: Any, author: Author, why: str = "") -> None:
    """None: no role any more. The team's row is locked, so that two administrators cannot each remove the other."""
    Team.objects.select_for_update().get(pk=team.pk)
    roles = {user: TeamRole(has) for user, has in Membership.objects.filter(team=team).values_list("user_id", "role")}
    before = roles.get(member.pk)
    if before == role:
        raise TeamError(f"{member} {f'is {role}' if role else 'has no role'} in {team} already")
    if not by.is_superuser:
        _check_role_change(roles, member.pk, role, own=roles.get(by.pk))
    token_actions.set_roles(member, {team.pk: role}, author=author, why=why)


def _check_role_change(roles: dict[int, TeamRole], member: int, role: TeamRole | None, *, own: TeamRole | None) -> None:
    """Who asks must administer the team; an administrator's rank is the highest, so no role is out of reach."""
    if own != TeamRole.ADMIN:
        raise TeamError("this needs the role admin in the team")
    others = [user for user, has in roles.items() if has == TeamRole.ADMIN and user != member]
    if roles.get(member) == TeamRole.ADMIN and role != TeamRole.ADMIN and not others:
        raise TeamError("the last administrator stays: make somebody else one first")
