"""`one_row`: which errors skip one row, and which end the turn."""

from __future__ import annotations

import pytest
from django.db import DatabaseError

from jobs.actions.jobs import JobError
from jobs.actions.one_row import skip_row_on_error
from jobs.core.parsing import InvalidField
from jobs.core.turn_errors import TimeLimitExceeded
from scheduling.backends.base import ClusterUnreachable, OutcomeUnknown, RequestRejected
from scheduling.loops.turn import LeaseLost


@pytest.mark.parametrize(
    "error",
    [
        JobError("x"),
        DatabaseError("x"),
        RequestRejected("x"),
        InvalidField("cluster", "x"),
        KeyError("x"),
        OSError("x"),
    ],
)
def test_an_error_in_one_row_is_logged_with_its_name_and_the_next_row_is_processed(error, caplog):
    done = []
    for row in ("first", "second"):
        with skip_row_on_error(row):
            if row == "first":
                raise error
            done.append(row)

    assert done == ["second"] and "first was skipped" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        LeaseLost("over"),
        TimeLimitExceeded(),
        ClusterUnreachable("away"),
        OutcomeUnknown("lost"),
        SystemExit(),
        KeyboardInterrupt(),
    ],
)
def test_an_error_that_concerns_the_turn_ends_it(error):
    with pytest.raises(type(error)), skip_row_on_error("first"):
        raise error
