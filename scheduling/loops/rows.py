"""The row boundary of every loop: what goes wrong with one row is logged and left for the next turn.

Only what is about more than the row goes through: a cluster that is away, a turn whose time or lease is over.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from celery.exceptions import SoftTimeLimitExceeded
from django.db import DatabaseError

from jobs.actions import JobError
from jobs.lifecycle import Forbidden
from scheduling.backends.base import BackendError, Refused

log = logging.getLogger(__name__)


class TurnOver(Exception):
    """Whoever's row it was: nothing more is to be done in this turn."""


@contextmanager
def one_row(subject: object) -> Iterator[None]:
    try:
        yield
    except (JobError, Forbidden, DatabaseError, Refused) as error:
        log.warning("%s was left for the next turn: %s", subject, error)
    except (TurnOver, BackendError, SoftTimeLimitExceeded):
        raise
    except Exception:
        log.exception("%s was left for the next turn: an error of ours", subject)
