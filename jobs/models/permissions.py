"""Who may do what to which rows: asked by pages, API and sockets alike.

Two things must both allow it: the role in the team, and the scope of the token if the caller came with one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from django.db.models import QuerySet

from jobs.models import Job, Membership, Team, TeamRole, Token, TokenScope

FULL_SCOPE = TokenScope(TokenScope.ADMIN)


class TeamOwnedRow(Protocol):
    """A row of a person and a team."""

    user_id: Any
    team_id: Any


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The user behind a request, as far as their token lets them go; without one, as far as they may go themselves."""

    user: Any
    scope: TokenScope = FULL_SCOPE
    token: Token | None = None

    @property
    def is_site_admin(self) -> bool:
        """Whoever runs the site has every role everywhere, unless the token is bound to one team."""
        return self.user.is_superuser and self.bound_team_id is None

    @property
    def bound_team_id(self) -> int | None:
        return self.token.team_id if self.token else None

    @cached_property
    def roles(self) -> Mapping[int, Any]:
        """Team by team; read with the token, or by one query a request."""
        if self.user.is_superuser:
            return {self.bound_team_id: TeamRole.ADMIN} if self.bound_team_id else {}
        known = getattr(self.user, "known_roles", None)
        if known is None:
            known = dict(Membership.objects.filter(user=self.user).values_list("team_id", "role"))
        return {team: TeamRole(role) for team, role in known.items() if self.bound_team_id in (None, team)}

    @cached_property
    def may_operate_clusters(self) -> bool:
        """A token of one team is no key to machines that all teams share."""
        return self.bound_team_id is None and self.user.has_perm("jobs.operate_cluster")

    def may(self, *any_of: str) -> bool:
        """Has one of these permissions; as above, never by a token of one team."""
        return self.bound_team_id is None and any(self.user.has_perm(one) for one in any_of)

    def has(self, role: str, team_id: int) -> bool:
        return self.is_site_admin or (team_id in self.roles and self.roles[team_id].rank >= TeamRole(role).rank)

    def teams(self, role: str = TeamRole.VIEWER) -> QuerySet[Team]:
        if self.is_site_admin:
            return Team.objects.all()
        return Team.objects.filter(pk__in=[team for team, has in self.roles.items() if has.rank >= TeamRole(role).rank])

    def jobs(self) -> QuerySet[Job]:
        """The ids of the teams as numbers, not as a subquery: the planner then knows which index is good."""
        return Job.objects.all() if self.is_site_admin else Job.objects.filter(team_id__in=sorted(self.roles))

    def rows_of_visible_jobs(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Those rows that belong to a job which they may see."""
        return rows if self.is_site_admin else rows.filter(job__team_id__in=sorted(self.roles))

    def may_change(self, row: TeamOwnedRow) -> bool:
        """Researchers change what is their own, operators all of their team."""
        if row.user_id == self.user.pk and self.has(TeamRole.RESEARCHER, row.team_id):
            return True
        return self.may_operate(row)

    def may_operate(self, row: TeamOwnedRow) -> bool:
        return self.scope.covers(TokenScope.OPERATE) and self.has(TeamRole.OPERATOR, row.team_id)

    def denial_reason(self, row: TeamOwnedRow, what: str) -> str:
        """What is lacking to change it: a role, or a token that reaches as far as its owner."""
        if row.user_id == self.user.pk:
            return f"{what} is yours, but a viewer changes nothing; this needs the role researcher or above."
        if self.has(TeamRole.OPERATOR, row.team_id):
            return f"{what} is somebody else's: this takes the scope operate, and this token has {self.scope}."
        return f"{what} is somebody else's: this needs the role operator in its team."
