"""Limits an error to the row it concerns: `one_row` logs it, and the loop goes on with the next row.

Errors that concern the whole turn pass through: see `jobs.core.turn_errors`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from celery.exceptions import SoftTimeLimitExceeded
from django.db import DatabaseError

from jobs.actions.jobs import JobError
from jobs.core.lifecycle import ForbiddenTransition
from jobs.core.turn_errors import EndsTurn, SkipsRow

log = logging.getLogger(__name__)


@contextmanager
def skip_row_on_error(subject: object) -> Iterator[None]:
    try:
        yield
    except (JobError, ForbiddenTransition, DatabaseError, SkipsRow) as error:
        log.warning("%s was skipped, the next turn retries it: %s", subject, error)
    except (EndsTurn, SoftTimeLimitExceeded):
        raise
    except Exception:
        log.exception("%s was skipped because of an internal error, the next turn retries it", subject)
