"""Permission checks on rows, shared by pages, API and WebSockets.

A request needs both: a sufficient role in the team and, if it uses a token, a sufficient scope.
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
    """A row that has an owner and a team."""

    user_id: Any
    team_id: Any


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The user of a request with their rights, reduced to those of the token if the request uses one."""

    user: Any
    scope: TokenScope = FULL_SCOPE
    token: Token | None = None

    @property
    def is_site_admin(self) -> bool:
        """Whether the user has every role in every team: a superuser whose token is not bound to one team."""
        return self.user.is_superuser and self.bound_team_id is None

    @property
    def bound_team_id(self) -> int | None:
        return self.token.team_id if self.token else None

    @cached_property
    def roles(self) -> Mapping[int, Any]:
        """The role in each team. Loaded together with the token, or with one query per request."""
        if self.user.is_superuser:
            # A superuser with a token of one team is limited to that team
            return {self.bound_team_id: TeamRole.ADMIN} if self.bound_team_id else {}
        # Set by the token authentication, which loads user and roles in one query
        roles = getattr(self.user, "known_roles", None)
        if roles is None:
            roles = dict(Membership.objects.filter(user=self.user).values_list("team_id", "role"))
        return {team: TeamRole(role) for team, role in roles.items() if self.bound_team_id in (None, team)}

    @cached_property
    def may_operate_clusters(self) -> bool:
        """Whether the user may operate clusters. A token bound to a team may not, because clusters are shared by all
        teams."""
        return self.bound_team_id is None and self.user.has_perm("jobs.operate_cluster")

    @property
    def acts_for_all_teams(self) -> bool:
        return bool(self.may_operate_clusters or self.is_site_admin)

    def may(self, *any_of: str) -> bool:
        """Return whether the user has one of these permissions. Never true for a token bound to a team."""
        return self.bound_team_id is None and any(self.user.has_perm(permission) for permission in any_of)

    def has(self, role: str, team_id: int) -> bool:
        return self.is_site_admin or (team_id in self.roles and self.roles[team_id].rank >= TeamRole(role).rank)

    def teams(self, role: str = TeamRole.VIEWER) -> QuerySet[Team]:
        if self.is_site_admin:
            return Team.objects.all()
        ids = [team for team, own_role in self.roles.items() if own_role.rank >= TeamRole(role).rank]
        return Team.objects.filter(pk__in=ids)

    def visible_team_ids(self) -> list[int] | None:
        """Return the teams whose jobs the caller may see; None: all."""
        return None if self.is_site_admin else sorted(self.roles)

    def visible_team_names(self) -> set[str] | None:
        """Return the names of the teams whose jobs the caller may see; None: all. Takes one query."""
        if self.is_site_admin:
            return None
        bound = {"pk": self.bound_team_id} if self.bound_team_id else {}
        return set(Team.objects.where(self.user).filter(**bound).values_list("name", flat=True))

    def jobs(self) -> QuerySet[Job]:
        """Return the visible jobs. Team ids are passed as numbers, not as a subquery, so that the planner chooses the
        right index."""
        return Job.objects.all() if self.is_site_admin else Job.objects.filter(team_id__in=sorted(self.roles))

    def rows_of_visible_jobs(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows that belong to a visible job."""
        return rows if self.is_site_admin else rows.filter(job__team_id__in=sorted(self.roles))

    def may_change(self, row: TeamOwnedRow) -> bool:
        """Return whether the caller may change the row: researchers their own, operators all of their team."""
        if row.user_id == self.user.pk and self.has(TeamRole.RESEARCHER, row.team_id):
            return True
        return self.may_operate(row)

    def may_operate(self, row: TeamOwnedRow) -> bool:
        return self.scope.covers(TokenScope.OPERATE) and self.has(TeamRole.OPERATOR, row.team_id)

    def denial_reason(self, row: TeamOwnedRow, what: str) -> str:
        """Explain which role or scope is missing to change the row."""
        if row.user_id == self.user.pk:
            return f"{what} is yours, but viewers cannot make changes. This needs the role researcher or above."
        if self.has(TeamRole.OPERATOR, row.team_id):
            return f"{what} belongs to another user. This needs a token with the scope operate, not {self.scope}."
        return f"{what} belongs to another user. This needs the role operator in its team."
