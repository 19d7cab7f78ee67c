"""`one_row`: which errors skip one row, and which end the turn."""

from __future__ import annotations

import pytest
from django.db import DatabaseError

from acmeweb.common.errors import InvalidField, StateConflict, TimeLimitExceeded
from jobs.actions.one_row import skip_row_on_error
from jobs.logs.storage import StorageUnresponsive
from scheduling.backends.base import ClusterUnreachable, EvictionRefused, OutcomeUnknown, RequestRejected
from scheduling.loops.turn import LeaseLost


@pytest.mark.parametrize(
    "error",
    [
        StateConflict("x"),
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
        StateConflict("x"),
        StorageUnresponsive("x"),
        EvictionRefused("x"),
        DatabaseError("x"),
    ],
)
def test_waiting_refusals_and_conflicts_are_sentences_without_a_traceback(error, caplog):
    with skip_row_on_error("first"):
        raise error

    [record] = caplog.records
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    assert record.getMessage() == "first was skipped; retrying in the next turn: x"


def test_unexpected_error_has_a_traceback(caplog):
    with skip_row_on_error("first"):
        raise KeyError("x")

    assert caplog.records[0].exc_info is not None


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
