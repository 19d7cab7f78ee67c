"""API errors: `{"field": ["sentence"]}` or `{"detail": "sentence"}`.

Invalid requests always get a 4xx. `to_api_exception` maps the exceptions of other layers to a status. Any other 5xx
is a bug. This module imports no views, because REST framework's views load our parser, which loads this module.
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
    """The rows are in a state that does not allow the request. With `wait`, the same request may succeed later."""

    status_code = status.HTTP_409_CONFLICT

    def __init__(self, why: str, wait: int | None = None) -> None:
        super().__init__(why)
        if wait is not None:
            self.wait = wait  # DRF turns it into Retry-After


class PreconditionFailed(exceptions.APIException):
    """If-Match names another version than the current one."""

    status_code = status.HTTP_412_PRECONDITION_FAILED
    default_detail = "The resource has changed since you read it. Read it again before you change it."


class DatabaseUnavailable(exceptions.APIException):
    """The database is unreachable, or no connection became free in time."""

    status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    default_detail = "The database is not responding. Try again."
    wait = UNAVAILABLE_RETRY_S


class DatabaseTimeout(DatabaseUnavailable):
    """A statement exceeded its timeout."""

    default_detail = "The database query timed out. Try again, or request less data at once."


class RequestBodyTooLarge(exceptions.APIException):
    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_detail = "The request body is too large."


class InvalidRequestField(exceptions.ValidationError):
    def __init__(self, field: str, why: str) -> None:
        super().__init__({field: [why]})


def to_api_exception(error: Exception) -> Exception:
    """The API error for an exception of our own code or the database; other exceptions are returned unchanged."""
    match error:
        case InvalidField():
            return exceptions.ValidationError(error.by_field)
        case MaintenanceError() if error.field:
            return InvalidRequestField(error.field, str(error))
        case JobActionDenied() | SavedViewForbidden():
            return exceptions.PermissionDenied(str(error))
        case JobStateChanged() | MaintenanceError() | NodeError() | ForbiddenTransition() | SavedViewError():
            return Conflict(str(error))
        case IntegrityError():
            return Conflict("Another request changed the same rows at the same time. Try again.", CONFLICT_RETRY_S)
        case OperationalError() if isinstance(error.__cause__, postgres.DeadlockDetected | postgres.LockNotAvailable):
            return Conflict("Another request is changing the same rows. Try again.", CONFLICT_RETRY_S)
        case OperationalError() if isinstance(error.__cause__, postgres.QueryCanceled):
            log.warning("database statement cancelled: %s", error)
            return DatabaseTimeout()
        case OperationalError() | InterfaceError():
            log.warning("database is not responding: %s", error)
            return DatabaseUnavailable()
        case DataError():
            return exceptions.ValidationError({"detail": "A value is out of range."})
        case RequestDataTooBig():
            return RequestBodyTooLarge()
        case UnreadablePostError() | SuspiciousOperation():
            return exceptions.ParseError("The request could not be read completely.")
    return error
