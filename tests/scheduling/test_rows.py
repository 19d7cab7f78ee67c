"""The boundary of a row: what stays within it, and what is about more than the row."""

from __future__ import annotations

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.db import DatabaseError

from jobs.actions import JobError
from jobs.readers import BadSpec
from scheduling.backends.base import Doubtful, Refused, Unreachable
from scheduling.loops.rows import one_row
from scheduling.loops.turn import LeaseLost


@pytest.mark.parametrize(
    "error", [JobError("x"), DatabaseError("x"), Refused("x"), BadSpec("cluster", "x"), KeyError("x"), OSError("x")]
)
def test_what_goes_wrong_with_one_row_is_logged_with_its_name_and_the_next_one_has_its_turn(error, caplog):
    done = []
    for row in ("first", "second"):
        with one_row(row):
            if row == "first":
                raise error
            done.append(row)

    assert done == ["second"] and "first was left for the next turn" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        LeaseLost("over"),
        SoftTimeLimitExceeded(),
        Unreachable("away"),
        Doubtful("lost"),
        SystemExit(),
        KeyboardInterrupt(),
    ],
)
def test_what_is_about_more_than_the_row_ends_the_turn(error):
    with pytest.raises(type(error)), one_row("first"):
        raise error
