"""What each method of the door asks of a caller; what that one may do to rows is in `jobs.models.permissions`.

A method that an endpoint has no Rule for is closed. Rows of a team that the caller is not in do not exist for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import BasePermission

from jobs.models import Token, TokenScope
from jobs.models.permissions import Caller
from jobs.rest.shapes import ResourceShape, Schema


@dataclass(frozen=True, kw_only=True)
class EndpointRule:
    """What one method of an endpoint asks for and promises; permissions, tests and the schema read it."""

    scope: str
    says: str
    body: ResourceShape | None = None
    answer: ResourceShape | None = None
    many: bool = False
    status: int = 200
    operator: bool = False  # needs the permission to operate clusters, whatever the team
    permissions: tuple[str, ...] = ()  # needs one of these, whatever the team
    conflicts: bool = False  # may answer 409
    team: bool = False  # rows belong to teams: others get 404
    refused: ResourceShape | None = None  # what a 400 may look like besides the fields that are wrong
    media: str = "application/json"  # what the answer is, when it is no Shape; or may be besides one
    query: Mapping[str, tuple[Schema, str]] = field(default_factory=dict)  # parameters of its own, and what they mean
    headers: Mapping[str, str] = field(default_factory=dict)  # headers that it reads
    also: Mapping[int, str] = field(default_factory=dict)  # further statuses; from 400 on they are errors in JSON

    @property
    def permission_text(self) -> str:
        names = [name.partition(".")[2] for name in self.permissions]
        return f"the permission {' or '.join(names)}"


def caller_with(token: Token) -> Caller:
    """A session may do what its user may; a token never more than its scope."""
    return Caller(user=token.user, scope=TokenScope(token.scope), token=token)


def caller_of(request: Any) -> Caller:
    if not hasattr(request, "acme_caller"):
        mine = isinstance(request.auth, Token)
        request.acme_caller = caller_with(request.auth) if mine else Caller(user=request.user)
    return request.acme_caller


class EndpointRulePermission(BasePermission):
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
        if rule.operator and not caller.may_operate_clusters:
            raise PermissionDenied("This needs the permission to operate clusters.")
        if rule.permissions and not caller.may(*rule.permissions):
            raise PermissionDenied(f"This needs {rule.permission_text}.")
        return True
