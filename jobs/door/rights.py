"""Who may do what through the door. Two things must both allow it: the scope of the token and the role in the team.

A method that an endpoint has no Rule for is closed. Rows of a team that the caller is not in do not exist for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from django.db.models import QuerySet
from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import BasePermission

from jobs.door.shapes import Schema, Shape
from jobs.models import Job, Membership, Role, Scope, Team, Token


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What one method of an endpoint asks for and promises; permissions, tests and the schema read it."""

    scope: str
    says: str
    body: Shape | None = None
    answer: Shape | None = None
    many: bool = False
    status: int = 200
    operator: bool = False  # needs the permission to operate clusters, whatever the team
    conflicts: bool = False  # may answer 409
    team: bool = False  # rows belong to teams: others get 404
    refused: Shape | None = None  # what a 400 may look like besides the fields that are wrong
    media: str = "application/json"  # what the answer is, when it is no Shape; or may be besides one
    query: Mapping[str, tuple[Schema, str]] = field(default_factory=dict)  # parameters of its own, and what they mean
    headers: Mapping[str, str] = field(default_factory=dict)  # headers that it reads
    also: Mapping[int, str] = field(default_factory=dict)  # further statuses; from 400 on they are errors in JSON


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The user behind a request, as far as their token lets them go."""

    user: Any
    scope: Scope
    token: Token | None

    @property
    def everywhere(self) -> bool:
        """Whoever runs the site has every role everywhere, unless the token is bound to one team."""
        return self.user.is_superuser and self.bound_to is None

    @property
    def bound_to(self) -> int | None:
        return self.token.team_id if self.token else None

    @cached_property
    def roles(self) -> Mapping[int, Any]:
        """Team by team; one query a request."""
        if self.user.is_superuser:
            return {self.bound_to: Role.ADMIN} if self.bound_to else {}
        rows = Membership.objects.filter(user=self.user).values_list("team_id", "role")
        return {team: Role(role) for team, role in rows if self.bound_to in (None, team)}

    @cached_property
    def operates(self) -> bool:
        """A token of one team is no key to machines that all teams share."""
        return self.bound_to is None and self.user.has_perm("jobs.operate_cluster")

    def has(self, role: str, team_id: int) -> bool:
        return self.everywhere or (team_id in self.roles and self.roles[team_id].rank >= Role(role).rank)

    def teams(self, role: str = Role.VIEWER) -> QuerySet[Team]:
        if self.everywhere:
            return Team.objects.all()
        return Team.objects.filter(pk__in=[team for team, has in self.roles.items() if has.rank >= Role(role).rank])

    def jobs(self) -> QuerySet[Job]:
        """The ids of the teams as numbers, not as a subquery: the planner then knows which index is good."""
        return Job.objects.all() if self.everywhere else Job.objects.filter(team_id__in=sorted(self.roles))

    def may_change(self, job: Job) -> bool:
        """Researchers change their own jobs, operators those of their team."""
        if job.user_id == self.user.pk and self.has(Role.RESEARCHER, job.team_id):
            return True
        return self.may_operate(job)

    def may_operate(self, job: Job) -> bool:
        return self.scope.covers(Scope.OPERATE) and self.has(Role.OPERATOR, job.team_id)


def scope_of(request: Any) -> Any:
    """A session may do what its user may; a token never more than its scope."""
    return Scope(request.auth.scope) if isinstance(request.auth, Token) else Scope.ADMIN


def caller_of(request: Any) -> Caller:
    if not hasattr(request, "acme_caller"):
        token = request.auth if isinstance(request.auth, Token) else None
        request.acme_caller = Caller(user=request.user, scope=scope_of(request), token=token)
    return request.acme_caller


class ByRule(BasePermission):
    """The default of every endpoint: closed, unless its Rule lets this caller in."""

    def has_permission(self, request: Any, view: Any) -> bool:
        if request.user is None or not request.user.is_authenticated:
            return False  # DRF answers 401, because nobody has said who they are
        if request.method not in view.allowed_methods:
            return True  # nobody may: DRF answers 405
        rule = getattr(view, "rules", {}).get("GET" if request.method == "HEAD" else request.method)
        if rule is None:
            return False
        caller = caller_of(request)
        if not caller.scope.covers(rule.scope):
            raise PermissionDenied(f"This needs a token of scope {rule.scope} or above; yours is {caller.scope}.")
        if rule.operator and not caller.operates:
            raise PermissionDenied("This needs the permission to operate clusters.")
        return True
