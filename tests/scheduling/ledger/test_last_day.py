"""Goodput and ETTR of a day, of its hours, and of several clusters together."""

from __future__ import annotations

import pytest

from scheduling.ledger.buckets import Bucket, LedgerEntry
from scheduling.ledger.last_day import US_PER_HOUR, HourSums, hour_edges, period_sums, total_sums, window_sums
from scheduling.ledger.reliability import JobLifetime

DAY = 24 * US_PER_HOUR
# Eight GPUs: a job runs from 1:30 to 3:00 and held them from 1:00
ENTRIES = [
    LedgerEntry(0, 8 * US_PER_HOUR, Bucket.FREE, "a"),
    LedgerEntry(1, 4 * US_PER_HOUR, Bucket.START_UP, "a", 1),
    LedgerEntry(1, 4 * US_PER_HOUR, Bucket.PRODUCTIVE, "a", 1),
    LedgerEntry(2, 8 * US_PER_HOUR, Bucket.PRODUCTIVE, "a", 1),
    *(LedgerEntry(hour, 8 * US_PER_HOUR, Bucket.FREE, "a") for hour in range(3, 24)),
]
RUNS = [JobLifetime(job=1, gpus=8, start=US_PER_HOUR, end=3 * US_PER_HOUR)]


def test_hours_have_their_own_ratios():
    hours = window_sums(ENTRIES, RUNS, hour_edges(0, DAY))

    assert [one.goodput for one in hours[:4]] == [0, 0.5, 1, 0]
    assert [one.ettr for one in hours[:4]] == [None, 0.5, 1, None]


def test_hours_add_up_to_the_day():
    hours = window_sums(ENTRIES, RUNS, hour_edges(0, DAY))
    day = period_sums(ENTRIES, RUNS, 0, DAY)

    assert total_sums(hours) == pytest.approx(day)
    assert (day.capacity, day.goodput, day.ettr) == pytest.approx((24 * 8, 12 / 192, 0.75))


def test_a_large_cluster_counts_more_than_a_small_one():
    both = total_sums([HourSums(90, 100, 100), HourSums(0, 10, 0)])

    assert both.goodput == pytest.approx(90 / 110)


def test_ratios_of_nothing_are_unknown():
    assert (total_sums([]).goodput, total_sums([]).ettr) == (None, None)
