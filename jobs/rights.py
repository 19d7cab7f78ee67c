"""Who may do what to which rows: asked by pages, API and sockets alike.

Two things must both allow it: the role in the team, and the scope of the token if the caller came with one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from django.db.models import QuerySet

from jobs.models import Job, Membership, Role, Scope, Team, Token

UNLIMITED = Scope(Scope.ADMIN)


class Owned(Protocol):
    """A row of a person and a team."""

    user_id: Any
    team_id: Any


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The user behind a request, as far as their token lets them go; without one, as far as they may go themselves."""

    user: Any
    scope: Scope = UNLIMITED
    token: Token | None = None

    @property
    def everywhere(self) -> bool:
        """Whoever runs the site has every role everywhere, unless the token is bound to one team."""
        return self.user.is_superuser and self.bound_to is None

    @property
    def bound_to(self) -> int | None:
        return self.token.team_id if self.token else None

    @cached_property
    def roles(self) -> Mapping[int, Any]:
        """Team by team; read with the token, or by one query a request."""
        if self.user.is_superuser:
            return {self.bound_to: Role.ADMIN} if self.bound_to else {}
        known = getattr(self.user, "known_roles", None)
        if known is None:
            known = dict(Membership.objects.filter(user=self.user).values_list("team_id", "role"))
        return {team: Role(role) for team, role in known.items() if self.bound_to in (None, team)}

    @cached_property
    def operates(self) -> bool:
        """A token of one team is no key to machines that all teams share."""
        return self.bound_to is None and self.user.has_perm("jobs.operate_cluster")

    def may(self, *any_of: str) -> bool:
        """Has one of these permissions; as above, never by a token of one team."""
        return self.bound_to is None and any(self.user.has_perm(one) for one in any_of)

    def has(self, role: str, team_id: int) -> bool:
        return self.everywhere or (team_id in self.roles and self.roles[team_id].rank >= Role(role).rank)

    def teams(self, role: str = Role.VIEWER) -> QuerySet[Team]:
        if self.everywhere:
            return Team.objects.all()
        return Team.objects.filter(pk__in=[team for team, has in self.roles.items() if has.rank >= Role(role).rank])

    def jobs(self) -> QuerySet[Job]:
        """The ids of the teams as numbers, not as a subquery: the planner then knows which index is good."""
        return Job.objects.all() if self.everywhere else Job.objects.filter(team_id__in=sorted(self.roles))

    def of_jobs(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Those rows that belong to a job which they may see."""
        return rows if self.everywhere else rows.filter(job__team_id__in=sorted(self.roles))

    def may_change(self, row: Owned) -> bool:
        """Researchers change what is their own, operators all of their team."""
        if row.user_id == self.user.pk and self.has(Role.RESEARCHER, row.team_id):
            return True
        return self.may_operate(row)

    def may_operate(self, row: Owned) -> bool:
        return self.scope.covers(Scope.OPERATE) and self.has(Role.OPERATOR, row.team_id)

    def why_not(self, row: Owned, what: str) -> str:
        """What is lacking to change it: a role, or a token that reaches as far as its owner."""
        if row.user_id == self.user.pk:
            return f"{what} is yours, but a viewer changes nothing; this needs the role researcher or above."
        if self.has(Role.OPERATOR, row.team_id):
            return f"{what} is somebody else's: this takes the scope operate, and this token has {self.scope}."
        return f"{what} is somebody else's: this needs the role operator in its team."
