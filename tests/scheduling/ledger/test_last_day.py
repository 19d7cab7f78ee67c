"""Goodput and ETTR of a day, of its hours, and of several clusters together."""

from __future__ import annotations

import pytest

from scheduling.ledger.rules.buckets import Bucket, LedgerEntry, NodeHistory
from scheduling.ledger.rules.last_day import HourSums, part_sums, total_sums
from scheduling.ledger.rules.parts import US_PER_HOUR, LedgerMoments, clock_edges, parts_by_window, total_of
from scheduling.ledger.rules.reliability import JobLifetime

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
MACHINES = [NodeHistory(name="a", capacity=[(0, 8)])]
HOURS = parts_by_window(clock_edges(0, DAY, US_PER_HOUR), ENTRIES, {1: (7, "sft")}, RUNS, LedgerMoments(), MACHINES)


def test_hours_have_their_own_ratios():
    hours = [part_sums(part) for part in HOURS]

    assert [one.goodput for one in hours[:4]] == [0, 0.5, 1, 0]
    assert [one.ettr for one in hours[:4]] == [None, 0.5, 1, None]


def test_hours_add_up_to_the_day():
    day = part_sums(total_of(HOURS))

    assert total_sums(part_sums(part) for part in HOURS) == pytest.approx(day)
    assert (day.capacity, day.goodput, day.ettr) == pytest.approx((24 * 8, 12 / 192, 0.75))


def test_a_large_cluster_counts_more_than_a_small_one():
    both = total_sums([HourSums(90, 100, 100), HourSums(0, 10, 0)])

    assert both.goodput == pytest.approx(90 / 110)


def test_ratios_of_nothing_are_unknown():
    assert (total_sums([]).goodput, total_sums([]).ettr) == (None, None)
