"""Parts of a ledger: what they contain, how they add up, and which stored ones make up a period."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.ledger.rules.buckets import Bucket, LedgerEntry, NodeHistory
from scheduling.ledger.rules.parts import (
    JobRecovery,
    LedgerMoments,
    LedgerPart,
    UseKey,
    clock_edges,
    cover_period,
    merge_spans,
    part_document,
    parts_by_window,
    read_part,
    total_of,
    totals_by_step,
)
from scheduling.ledger.rules.reliability import JobLifetime

PART = LedgerPart(
    start=10,
    end=20,
    gpu_us=Counter({UseKey(7, "sft", Bucket.LOST_WORK, "ECCError"): 30, UseKey(None, "", Bucket.FREE, ""): 50}),
    held_us=Counter({"n1": 30}),
    wall_us=40,
    failures=Counter({"ECCError": 1}),
    broken=frozenset({("n1", 3)}),
    recoveries=[JobRecovery("ECCError", 5)],
    capacity_us=80,
)


def test_part_survives_its_document():
    assert read_part(10, 20, json.loads(json.dumps(part_document(PART)))) == PART


def test_one_incident_in_two_parts_is_one_failure():
    both = total_of([PART, LedgerPart(start=20, end=30, broken=frozenset({("n1", 3), ("n2", 3)}))])

    assert both.broken == {("n1", 3), ("n2", 3)}
    assert (both.start, both.end) == (10, 30)


def test_sums_by_bucket_and_by_cause():
    assert PART.bucket_us == {Bucket.LOST_WORK: 30, Bucket.FREE: 50}
    assert PART.by_cause([Bucket.LOST_WORK]) == {"ECCError": 30}


def test_a_moment_is_in_one_window():
    moments = LedgerMoments(
        failures=[(0, "a"), (10, "b"), (11, "c")],
        broken=[(10, ("n1", 1))],
        recoveries=[(10, JobRecovery("b", 1))],
    )

    first, second = parts_by_window((0, 10, 20), [], {}, [], moments, [])

    assert (first.failures, second.failures) == ({"b": 1}, {"c": 1})  # an attempt belongs to the window that it ends
    assert (len(first.broken), len(second.broken)) == (0, 1)
    assert (len(first.recoveries), len(second.recoveries)) == (0, 1)


def test_windows_divide_gpu_time_by_owner_and_wall_clock_time():
    entries = [
        LedgerEntry(0, 8, Bucket.PRODUCTIVE, "n1", 1),
        LedgerEntry(1, 4, Bucket.PRODUCTIVE, "n1", 1),
        LedgerEntry(1, 16, Bucket.FREE, "n1"),
    ]
    runs = [JobLifetime(job=1, gpus=2, start=-5, end=12)]

    first, second = parts_by_window(
        (0, 10, 20), entries, {1: (7, "sft")}, runs, LedgerMoments(), [NodeHistory(name="n1", capacity=[(0, 2)])]
    )

    assert first.gpu_us == {UseKey(7, "sft", Bucket.PRODUCTIVE, ""): 8}
    assert second.gpu_us == {UseKey(7, "sft", Bucket.PRODUCTIVE, ""): 4, UseKey(None, "", Bucket.FREE, ""): 16}
    assert (first.held_us, second.held_us) == ({"n1": 8}, {"n1": 4})
    assert (first.wall_us, second.wall_us) == (20, 4)
    assert (first.capacity_us, second.capacity_us) == (20, 20)


def test_parts_of_a_day_are_added_up():
    parts = [LedgerPart(start=start, end=start + 10, wall_us=1) for start in (0, 10, 100)]

    assert {start: total.wall_us for start, total in totals_by_step(parts, 100).items()} == {0: 2, 100: 1}


@pytest.mark.parametrize(
    ("stored", "spans", "gaps"),
    [
        ([], [], [(5, 95)]),
        ([(10, 20), (20, 30)], [(10, 20), (20, 30)], [(5, 10), (30, 95)]),
        ([(10, 20), (10, 60), (20, 30), (60, 70)], [(10, 60), (60, 70)], [(5, 10), (70, 95)]),
        ([(0, 10), (90, 100)], [], [(5, 95)]),
        ([(5, 50), (50, 95)], [(5, 50), (50, 95)], []),
        ([(10, 30), (20, 40)], [(10, 30)], [(5, 10), (30, 95)]),
    ],
    ids=["nothing stored", "hours", "day before hours", "outside", "everything", "overlap"],
)
def test_stored_spans_make_up_a_period(stored, spans, gaps):
    cover = cover_period(5, 95, stored)

    assert (list(cover.spans), list(cover.gaps)) == (spans, gaps)


spans_strategy = st.lists(st.tuples(st.integers(0, 100), st.integers(1, 30)).map(lambda one: (one[0], one[0] + one[1])))


@given(spans_strategy)
def test_spans_and_gaps_fill_the_period_exactly(stored):
    cover = cover_period(10, 90, stored)

    pieces = sorted([*cover.spans, *cover.gaps])
    assert [start for start, _ in pieces] == [10, *(end for _, end in pieces[:-1])]
    assert pieces[-1][1] == 90


@given(spans_strategy)
def test_merged_spans_cover_the_same_moments(spans):
    merged = merge_spans(spans)

    assert {n for low, high in spans for n in range(low, high)} == {n for low, high in merged for n in range(low, high)}
    assert all(before[1] < after[0] for before, after in pairwise(merged))


def test_edges_are_on_the_clock():
    assert clock_edges(5, 31, 10) == [5, 10, 20, 30, 31]
    assert clock_edges(10, 30, 10) == [10, 20, 30]
