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

from jobs.actions import Moved
from jobs.lifecycle import Forbidden
from jobs.maintenance_actions import MaintenanceError
from jobs.node_actions import NodeError
from jobs.readers import BadSpec
from jobs.verbs import NotAllowed
from jobs.view_actions import NotYours, ViewError

log = logging.getLogger(__name__)

RETRY_S = 1
AWAY_S = 5


class Conflict(exceptions.APIException):
    """The rows are not what the request takes them to be. With `wait`, the same request may succeed later."""

    status_code = status.HTTP_409_CONFLICT

    def __init__(self, why: str, wait: int | None = None) -> None:
        super().__init__(why)
        if wait is not None:
            self.wait = wait  # DRF turns it into Retry-After


class Changed(exceptions.APIException):
    """If-Match names another version than the one we hold."""

    status_code = status.HTTP_412_PRECONDITION_FAILED
    default_detail = "It has changed since you read it; read it again and decide anew."


class Unavailable(exceptions.APIException):
    """The database is away, or every connection to it is busy for longer than anybody waits."""

    status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    default_detail = "The database does not answer at the moment; try again."
    wait = AWAY_S


class TooSlow(Unavailable):
    """A statement ran into its timeout."""

    default_detail = "The database took too long and was stopped. Try again, or ask for less at once."


class TooLarge(exceptions.APIException):
    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_detail = "The body of the request is too large."


class BadField(exceptions.ValidationError):
    def __init__(self, field: str, why: str) -> None:
        super().__init__({field: [why]})


def translated(error: Exception) -> Exception:
    """What our own code raises for a reason, as the refusal that it is."""
    match error:
        case BadSpec():
            return BadField(error.field, error.why)
        case MaintenanceError() if error.field:
            return BadField(error.field, str(error))
        case NotAllowed() | NotYours():
            return exceptions.PermissionDenied(str(error))
        case Moved() | MaintenanceError() | NodeError() | Forbidden() | ViewError():
            return Conflict(str(error))
        case IntegrityError():
            return Conflict("Somebody else changed the same rows at the same moment; try again.", RETRY_S)
        case OperationalError() if isinstance(error.__cause__, postgres.DeadlockDetected | postgres.LockNotAvailable):
            return Conflict("Somebody else is changing the same rows; try again.", RETRY_S)
        case OperationalError() if isinstance(error.__cause__, postgres.QueryCanceled):
            log.warning("a statement was stopped: %s", error)
            return TooSlow()
        case OperationalError() | InterfaceError():
            log.warning("the database does not answer: %s", error)
            return Unavailable()
        case DataError():
            return exceptions.ValidationError({"detail": "A value is outside of what can be kept."})
        case RequestDataTooBig():
            return TooLarge()
        case UnreadablePostError() | SuspiciousOperation():
            return exceptions.ParseError("The request could not be read to its end.")
    return error
