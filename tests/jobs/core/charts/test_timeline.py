"""Bars of attempts on a time axis."""

from datetime import UTC, datetime, timedelta

from jobs.core.charts.timeline import MIN_WIDTH_PERCENT, TimelineEntry, timeline_bars

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def piece(begin, end):
    after = (NOON + timedelta(minutes=m) if m is not None else None for m in (begin, end))
    return TimelineEntry(name="RUNNING", tone="running", begin=next(after), end=next(after))


def drawn(*pieces, minutes=100):
    return [(span.start, span.share) for span in timeline_bars(pieces, NOON, NOON + timedelta(minutes=minutes))]


def test_entry_is_drawn_at_its_share_of_the_time():
    assert drawn(piece(25, 75)) == [(25, 50)]


def test_entry_without_end_extends_to_the_end_of_the_axis():
    assert drawn(piece(60, None)) == [(60, 40)]


def test_short_entry_has_a_minimum_width_and_stays_inside():
    assert drawn(piece(100, 100)) == [(100 - MIN_WIDTH_PERCENT, MIN_WIDTH_PERCENT)]


def test_entries_outside_the_axis_are_clipped():
    assert drawn(piece(-10, 200)) == [(0, 100)]


def test_empty_axis_does_not_divide_by_zero():
    assert drawn(piece(0, None), minutes=0) == [(0, MIN_WIDTH_PERCENT)]
