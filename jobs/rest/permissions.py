"""Access rules of API methods. Permissions on single rows are in `jobs.models.permissions`.

A method without an EndpointRule is closed. Callers get 404 for rows of teams of which they are not members.
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
    """The requirements and the contract of one API method. Permission checks, tests and the schema use it."""

    scope: str
    says: str
    body: ResourceShape | None = None
    answer: ResourceShape | None = None
    many: bool = False
    status: int = 200
    operator: bool = False  # needs the permission to operate clusters, regardless of team roles
    permissions: tuple[str, ...] = ()  # needs one of these, regardless of team roles
    conflicts: bool = False  # may answer 409
    team: bool = False  # rows belong to teams: callers who are not members get 404
    refused: ResourceShape | None = None  # another possible body of a 400 besides the usual field errors
    media: str = "application/json"  # media type of a response without a shape, or an alternative to the shape
    media_schema: Schema = field(default_factory=lambda: {"type": "string"})  # of that type; of one event in a stream
    query: Mapping[str, tuple[Schema, str]] = field(default_factory=dict)  # query parameters with their descriptions
    headers: Mapping[str, str] = field(default_factory=dict)  # request headers with their descriptions
    also: Mapping[int, str] = field(default_factory=dict)  # further statuses; those from 400 on are JSON errors

    @property
    def permission_text(self) -> str:
        names = [name.partition(".")[2] for name in self.permissions]
        return f"the permission {' or '.join(names)}"


def operator_rule(says: str, body: ResourceShape, answer: ResourceShape, status: int = 200) -> EndpointRule:
    """The rule of a change that operators of clusters may make."""
    return EndpointRule(
        scope=TokenScope.OPERATE,
        says=says,
        body=body,
        answer=answer,
        status=status,
        operator=True,
        conflicts=True,
        team=True,
    )


def caller_with(token: Token) -> Caller:
    """The caller of a token: its user, limited to the token's scope."""
    return Caller(user=token.user, scope=TokenScope(token.scope), token=token)


def caller_of(request: Any) -> Caller:
    if not hasattr(request, "acme_caller"):
        has_token = isinstance(request.auth, Token)
        request.acme_caller = caller_with(request.auth) if has_token else Caller(user=request.user)
    return request.acme_caller


class EndpointRulePermission(BasePermission):
    """The default permission of all endpoints: denied unless the method's EndpointRule allows the caller."""

    def has_permission(self, request: Any, view: Any) -> bool:
        if request.user is None or not request.user.is_authenticated:
            return False  # DRF answers 401 for missing credentials
        if request.method not in view.allowed_methods:
            return True  # DRF answers 405
        rule = getattr(view, "rules", {}).get("GET" if request.method == "HEAD" else request.method)
        if rule is None:
            return False
        caller = caller_of(request)
        if not caller.scope.covers(rule.scope):
            raise PermissionDenied(
                f"This needs a token with scope {rule.scope} or higher. Your scope is {caller.scope}."
            )
        if rule.operator and not caller.may_operate_clusters:
            raise PermissionDenied("This needs the permission to operate clusters.")
        if rule.permissions and not caller.may(*rule.permissions):
            raise PermissionDenied(f"This needs {rule.permission_text}.")
        return True
