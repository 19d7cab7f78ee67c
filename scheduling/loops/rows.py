"""The row boundary of every loop: what goes wrong with one row is logged and left for the next turn."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import DatabaseError

from jobs.actions import JobError
from jobs.lifecycle import Forbidden
from scheduling.backends.base import Refused

log = logging.getLogger(__name__)


@contextmanager
def one_row(subject: object) -> Iterator[None]:
    try:
        yield
    except (JobError, Forbidden, DatabaseError, Refused) as error:
        log.warning("%s was left for the next turn: %s", subject, error)
