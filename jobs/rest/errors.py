"""How the programs' door refuses: `{"field": ["sentence"]}` or `{"detail": "sentence"}`.

Whatever a caller sends ends in a 4xx; what our own code raises for a reason has its status here. A 5xx that is left
is a defect. (This module imports no views: REST framework's views load our parser, and that loads this.)
"""

from __future__ import annotations

import logging

from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.db import DataError, IntegrityError, InterfaceError, OperationalError
from django.http import UnreadablePostError
from psycopg import errors as postgres
from rest_framework import exceptions, status

from jobs.actions.job_verbs import JobActionDenied
from jobs.actions.jobs import JobStateChanged
from jobs.actions.maintenance import MaintenanceError
from jobs.actions.nodes import NodeError
from jobs.actions.saved_views import SavedViewError, SavedViewForbidden
from jobs.core.lifecycle import ForbiddenTransition
from jobs.core.parsing import InvalidField

log = logging.getLogger(__name__)

CONFLICT_RETRY_S = 1
UNAVAILABLE_RETRY_S = 5


class Conflict(exceptions.APIException):
    """The rows are not what the request takes them to be. With `wait`, the same request may succeed later."""

    status_code = status.HTTP_409_CONFLICT

    def __init__(self, why: str, wait: int | None = None) -> None:
        super().__init__(why)
        if wait is not None:
            self.wait = wait  # DRF turns it into Retry-After


class PreconditionFailed(exceptions.APIException):
    """If-Match names another version than the one we hold."""

    status_code = status.HTTP_412_PRECONDITION_FAILED
    default_detail = "It has changed since you read it; read it again and decide anew."


class DatabaseUnavailable(exceptions.APIException):
    """The database is away, or every connection to it is busy for longer than anybody waits."""

    status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    default_detail = "The database does not answer at the moment; try again."
    wait = UNAVAILABLE_RETRY_S


class DatabaseTimeout(DatabaseUnavailable):
    """A statement ran into its timeout."""

    default_detail = "The database took too long and was stopped. Try again, or ask for less at once."


class RequestBodyTooLarge(exceptions.APIException):
    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_detail = "The body of the request is too large."


class InvalidRequestField(exceptions.ValidationError):
    def __init__(self, field: str, why: str) -> None:
        super().__init__({field: [why]})


def to_api_exception(error: Exception) -> Exception:
    """What our own code raises for a reason, as the refusal that it is."""
    match error:
        case InvalidField():
            return InvalidRequestField(error.field, error.why)
        case MaintenanceError() if error.field:
            return InvalidRequestField(error.field, str(error))
        case JobActionDenied() | SavedViewForbidden():
            return exceptions.PermissionDenied(str(error))
        case JobStateChanged() | MaintenanceError() | NodeError() | ForbiddenTransition() | SavedViewError():
            return Conflict(str(error))
        case IntegrityError():
            return Conflict("Somebody else changed the same rows at the same moment; try again.", CONFLICT_RETRY_S)
        case OperationalError() if isinstance(error.__cause__, postgres.DeadlockDetected | postgres.LockNotAvailable):
            return Conflict("Somebody else is changing the same rows; try again.", CONFLICT_RETRY_S)
        case OperationalError() if isinstance(error.__cause__, postgres.QueryCanceled):
            log.warning("a statement was stopped: %s", error)
            return DatabaseTimeout()
        case OperationalError() | InterfaceError():
            log.warning("the database does not answer: %s", error)
            return DatabaseUnavailable()
        case DataError():
            return exceptions.ValidationError({"detail": "A value is outside of what can be kept."})
        case RequestDataTooBig():
            return RequestBodyTooLarge()
        case UnreadablePostError() | SuspiciousOperation():
            return exceptions.ParseError("The request could not be read to its end.")
    return error
