"""Events of one kind within half an hour are one mark of the map."""

from datetime import UTC, datetime, timedelta

import pytest

from jobs.core.charts.map_events import MapEvent, map_marks

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)


def event(minute, what, kind="drain", lasts=None):
    at = BEGIN + timedelta(minutes=minute)
    return MapEvent(at=at, end=None if lasts is None else at + timedelta(minutes=lasts), kind=kind, what=what)


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ([], []),
        ([event(40, "b"), event(0, "a")], ["0 drain a", "40 drain b"]),
        ([event(0, "a"), event(29, "b"), event(30, "c")], ["0 drain a, b", "30 drain c"]),
        ([event(0, "a"), event(1, "x", "outage"), event(2, "b")], ["0 drain a, b", "1 outage x"]),
        ([event(0, "a"), event(1, "a")], ["0 drain a"]),
        ([event(n, f"n{n}") for n in range(9)], ["0 drain n0, n1, n2, n3, n4 and 4 more"]),
        ([event(0, "w1", "window", 60), event(5, "w2", "window", 60)], ["0 window w1", "5 window w2"]),
    ],
)  # fmt: skip
def test_events_of_a_kind_within_half_an_hour_are_one_mark(events, found):
    marks = map_marks(events)

    minutes = [(mark.at - BEGIN) // timedelta(minutes=1) for mark in marks]
    assert [f"{minute} {mark.kind} {mark.text}" for minute, mark in zip(minutes, marks, strict=True)] == found
    assert sum(len(mark.names) for mark in marks) == len(events)
