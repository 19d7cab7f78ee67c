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

from acmeweb.common.errors import InvalidField, NotAllowed, StateConflict

log = logging.getLogger(__name__)

CONFLICT_RETRY_S = 1
UNAVAILABLE_RETRY_S = 5
DATABASE_UNAVAILABLE = "The database is not responding. Try again."
DATABASE_TIMEOUT = "The database query timed out. Try again, or request less data at once."


class RequestFailed(exceptions.APIException):
    """An error with its HTTP status. With `wait`, the same request may succeed after so many seconds."""

    def __init__(self, status_code: int, why: str, wait: int | None = None) -> None:
        super().__init__(why)
        self.status_code = status_code
        if wait is not None:
            self.wait = wait  # DRF turns it into Retry-After


def to_api_exception(error: Exception) -> Exception:
    """The API error for an exception of our own code or the database; other exceptions are returned unchanged."""
    match error:
        case InvalidField():
            return exceptions.ValidationError(error.by_field)
        case NotAllowed():
            return exceptions.PermissionDenied(str(error))
        case StateConflict():
            return RequestFailed(status.HTTP_409_CONFLICT, str(error))
        case IntegrityError():
            return _retry_conflict("Another request changed the same rows at the same time. Try again.")
        case OperationalError() if isinstance(error.__cause__, postgres.DeadlockDetected | postgres.LockNotAvailable):
            return _retry_conflict("Another request is changing the same rows. Try again.")
        case OperationalError() if isinstance(error.__cause__, postgres.QueryCanceled):
            log.warning("database statement cancelled: %s", error)
            return _unavailable(DATABASE_TIMEOUT)
        case OperationalError() | InterfaceError():
            log.warning("database is not responding: %s", error)
            return _unavailable(DATABASE_UNAVAILABLE)
        case DataError():
            return exceptions.ValidationError({"detail": "A value is out of range."})
        case RequestDataTooBig():
            return RequestFailed(status.HTTP_413_REQUEST_ENTITY_TOO_LARGE, "The request body is too large.")
        case UnreadablePostError() | SuspiciousOperation():
            return exceptions.ParseError("The request could not be read completely.")
    return error


def _retry_conflict(why: str) -> RequestFailed:
    return RequestFailed(status.HTTP_409_CONFLICT, why, CONFLICT_RETRY_S)


def _unavailable(why: str) -> RequestFailed:
    return RequestFailed(status.HTTP_503_SERVICE_UNAVAILABLE, why, UNAVAILABLE_RETRY_S)
