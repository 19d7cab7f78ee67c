"""What an error answer of an API server means for a command. Pure.

| answer | error |
|---|---|
| 401, 407, 429, and 403 from RBAC: says nothing about the command | ClusterUnreachable |
| 403 from a quota or an admission policy, and all other 4xx | CommandRefused, with the server's message |
| 5xx, and anything that is not of the API | OutcomeUnknown |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..base import BackendError, ClusterUnreachable, OutcomeUnknown, RequestRejected
from .fields import mappings_at, text_at

NOT_FOUND, FORBIDDEN, CONFLICT, TOO_MANY = 404, 403, 409, 429
AUTH_AND_RATE_STATUSES = frozenset({401, 407, TOO_MANY})
ALREADY_EXISTS = "AlreadyExists"
DISRUPTION_BUDGET = "DisruptionBudget"


class ApiRefusal(ClusterUnreachable):
    """The API server answered a read with an error."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class CommandRefused(RequestRejected):
    """The API server rejected a command. `reason` is the machine-readable one of its answer."""

    def __init__(self, message: str, status: int, reason: str = "") -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


def command_error(server: str, status: int, answer: Mapping[str, Any] | None) -> BackendError:
    """The error to raise for this answer to a command."""
    message = text_at(answer, "message") or "the response is not JSON"
    where = f"{server}: HTTP {status}: {message}"
    if budget := _forbidding_budget(answer) if status == TOO_MANY else "":
        return CommandRefused(budget, status, DISRUPTION_BUDGET)
    if status in AUTH_AND_RATE_STATUSES or (status == FORBIDDEN and _is_about_permissions(message)):
        return ClusterUnreachable(where)
    if 400 <= status < 500 and text_at(answer, "kind") == "Status":
        return CommandRefused(message, status, text_at(answer, "reason"))
    if 400 <= status < 500:
        return ClusterUnreachable(f"{where}; it does not seem to be an API server")
    return OutcomeUnknown(where)


def _is_about_permissions(message: str) -> bool:
    """`pods is forbidden: User "acme" cannot create resource "pods"`: no quota or policy says so."""
    return 'User "' in message and '" cannot ' in message


def _forbidding_budget(answer: object) -> str:
    """What the server says about the budget that forbids an eviction; empty for an ordinary rate limit."""
    causes = mappings_at(answer, "details", "causes")
    texts = [text_at(cause, "message") for cause in causes if text_at(cause, "reason") == DISRUPTION_BUDGET]
    return texts[0] or text_at(answer, "message") if texts else ""
