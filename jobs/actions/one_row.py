"""Limits an error to the row that caused it: `skip_row_on_error` logs it, and the loop continues with the next row.

Errors that concern the whole turn are raised; see `acmeweb.common.errors`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import DatabaseError

from acmeweb.common.errors import EndsTurn, SkipsRow

log = logging.getLogger(__name__)

ORDINARY_ERRORS = (DatabaseError, SkipsRow)  # they need no traceback


@contextmanager
def skip_row_on_error(subject: object) -> Iterator[None]:
    """Log errors of one row instead of raising them."""
    try:
        yield
    except ORDINARY_ERRORS as error:
        log.warning("%s was skipped; retrying in the next turn: %s", subject, error)
    except EndsTurn:
        raise
    except Exception:
        log.exception("%s was skipped because of an internal error; retrying in the next turn", subject)
