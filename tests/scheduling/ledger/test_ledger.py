"""Every GPU-second is in exactly one bucket, whatever the rows claim."""

from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.ledger.rules.buckets import (
    Bucket,
    BucketInterval,
    GpuAllocation,
    LedgerInput,
    NodeHistory,
    WaitInterval,
    capacity_us,
    flatten_layers,
    ledger_entries,
    sum_by_key,
)
from scheduling.ledger.rules.buckets import TimelineLayer as Lay
from tests.properties import examples


def sums(facts, start=0, end=100):
    return sum(sum_by_key(ledger_entries(facts, (start, end)), lambda _: 0).values(), Counter())


def by_window(facts, *edges):
    """The buckets and causes of each window."""
    windows = [{} for _ in edges[1:]]
    for entry in ledger_entries(facts, edges):
        windows[entry.window][entry.bucket, entry.cause] = entry.gpu_us
    return windows


def node(name="n1", gpus=8, **fields):
    return NodeHistory(name=name, capacity=((0, gpus),), **fields)


def all_of(attempt, start, end, gpus=8):
    return GpuAllocation(attempt, start, end, tuple(range(gpus)))


# --- one bucket each


def test_free_gpu_counts_as_free_if_no_job_waits():
    assert sums(LedgerInput(machines=[node()])) == {Bucket.FREE: 800}


def test_held_gpu_is_productive_by_default():
    facts = LedgerInput(machines=[node(holdings=[all_of(1, 20, 70, gpus=2)])])

    assert sums(facts) == {Bucket.PRODUCTIVE: 100, Bucket.FREE: 700}


@pytest.mark.parametrize(
    ("stronger", "weaker"),
    [
        (Bucket.HUNG, Bucket.CHECKPOINT_STALL),
        (Bucket.CHECKPOINT_STALL, Bucket.RECOVERY),
        (Bucket.START_UP, Bucket.LOST_WORK),
        (Bucket.RECOVERY, Bucket.LOST_WORK),
        (Bucket.LOST_WORK, Bucket.SLOW),
    ],
)
def test_stronger_of_two_overlapping_buckets_counts(stronger, weaker):
    life = [BucketInterval(0, 60, weaker), BucketInterval(40, 50, stronger)]
    facts = LedgerInput(machines=[node(gpus=1, holdings=[all_of(1, 0, 100, gpus=1)])], lives={1: life})

    assert sums(facts) == {weaker: 50, stronger: 10, Bucket.PRODUCTIVE: 40}


def test_node_that_is_down_counts_as_down_even_if_held():
    facts = LedgerInput(
        machines=[node(spells=[BucketInterval(50, 100, Bucket.DOWN, "Xid 79")], holdings=[all_of(1, 0, 100)])]
    )

    assert sums(facts) == {Bucket.PRODUCTIVE: 400, Bucket.DOWN: 400}


def test_job_on_a_draining_node_counts_as_its_attempt():
    facts = LedgerInput(machines=[node(spells=[BucketInterval(0, 100, Bucket.DRAINED)], holdings=[all_of(1, 0, 30)])])

    assert sums(facts) == {Bucket.PRODUCTIVE: 240, Bucket.DRAINED: 560}


def test_newer_of_two_holders_has_the_gpu():
    facts = LedgerInput(
        machines=[node(gpus=1, holdings=[GpuAllocation(1, 0, 100, (0,)), GpuAllocation(2, 60, 100, (0,))])]
    )

    by_attempt = sum_by_key(ledger_entries(facts, (0, 100)), lambda piece: piece.attempt)

    assert by_attempt == {1: {Bucket.PRODUCTIVE: 60}, 2: {Bucket.PRODUCTIVE: 40}}


def test_allocation_without_indices_gets_unheld_gpus():
    facts = LedgerInput(
        machines=[node(gpus=4, holdings=[GpuAllocation(9, 0, 100, (), 2), GpuAllocation(1, 0, 100, (0, 1))])]
    )

    by_attempt = sum_by_key(ledger_entries(facts, (0, 100)), lambda piece: piece.attempt)

    assert by_attempt == {9: {Bucket.PRODUCTIVE: 200}, 1: {Bucket.PRODUCTIVE: 200}}


# --- reasons for free GPUs


def test_free_gpus_are_reserved_or_fragmented_while_jobs_wait():
    busy = node("n2", holdings=[all_of(1, 0, 100, gpus=6)])
    facts = LedgerInput(machines=[node("n1"), busy], waits=[WaitInterval(50, 100, 8), WaitInterval(80, 100, 2)])

    per_node = sum_by_key(ledger_entries(facts, (0, 100)), lambda piece: piece.node)

    assert per_node["n1"] == {Bucket.FREE: 400, Bucket.RESERVED_IDLE: 400}
    assert per_node["n2"] == {
        Bucket.PRODUCTIVE: 600,
        Bucket.FREE: 100,
        Bucket.FRAGMENTED: 60,
        Bucket.RESERVED_IDLE: 40,
    }


def test_job_waiting_for_another_model_does_not_count():
    facts = LedgerInput(machines=[node(model="a100")], waits=[WaitInterval(0, 100, 8, "h100"), WaitInterval(0, 100, 0)])

    assert sums(facts) == {Bucket.FREE: 800}


def test_free_gpus_that_exactly_fit_the_smallest_waiting_job_are_reserved():
    waits = [WaitInterval(0, 100, 4, "a100"), WaitInterval(0, 100, 9)]
    partly = node(model="a100", holdings=[all_of(1, 0, 50, gpus=4), GpuAllocation(2, 50, 100, (0, 1, 2, 3, 4))])

    assert sums(LedgerInput(machines=[partly], waits=waits)) == {
        Bucket.PRODUCTIVE: 4 * 50 + 5 * 50,
        Bucket.RESERVED_IDLE: 4 * 50,
        Bucket.FRAGMENTED: 3 * 50,
    }


def test_free_gpus_are_divided_where_a_wait_begins_and_ends():
    facts = LedgerInput(machines=[node(gpus=1)], waits=[WaitInterval(-10, 20, 1), WaitInterval(70, 90, 2)])

    assert by_window(facts, 10, 20, 70, 80) == [
        {(Bucket.RESERVED_IDLE, ""): 10},
        {(Bucket.FREE, ""): 50},
        {(Bucket.FRAGMENTED, ""): 10},
    ]


# --- which holder, which layer


def by_attempt(*holdings, gpus=1, start=0, end=100, **lives):
    facts = LedgerInput(machines=[node(gpus=gpus, holdings=holdings)], **lives)
    return {
        attempt: dict(sizes)
        for attempt, sizes in sum_by_key(ledger_entries(facts, (start, end)), lambda entry: entry.attempt).items()
    }


def test_of_two_holders_since_the_same_time_the_later_attempt_has_the_gpu():
    both = [GpuAllocation(2, 0, 40, (0,)), GpuAllocation(1, 0, 100, (0,))]

    assert by_attempt(*both) == {2: {Bucket.PRODUCTIVE: 40}, 1: {Bucket.PRODUCTIVE: 60}}


def test_allocation_without_indices_avoids_gpus_held_at_that_time():
    holdings = [
        GpuAllocation(1, 0, 50, (0,)),
        GpuAllocation(2, 50, 100, (1,)),
        GpuAllocation(9, 60, 90, (), 1),
    ]

    assert by_attempt(*holdings, gpus=2) == {
        1: {Bucket.PRODUCTIVE: 50},
        2: {Bucket.PRODUCTIVE: 50},
        9: {Bucket.PRODUCTIVE: 30},
        None: {Bucket.FREE: 70},
    }


def test_allocation_without_indices_counts_only_the_time_that_it_shares():
    holdings = [
        GpuAllocation(1, 0, 20, (0,)),
        GpuAllocation(2, 50, 90, (1,)),
        GpuAllocation(9, 0, 100, (), 1),
    ]

    assert by_attempt(*holdings, gpus=2)[2] == {Bucket.PRODUCTIVE: 40}
    assert by_attempt(*holdings, gpus=2)[None] == {Bucket.FREE: 60}


def test_allocations_without_indices_avoid_each_other_and_never_exceed_the_node():
    holdings = [GpuAllocation(1, 0, 100, (), 2), GpuAllocation(2, 0, 100, (), 3)]

    assert by_attempt(*holdings, gpus=6) == {
        1: {Bucket.PRODUCTIVE: 200},
        2: {Bucket.PRODUCTIVE: 300},
        None: {Bucket.FREE: 100},
    }
    assert sum(sum(sizes.values()) for sizes in by_attempt(*holdings, gpus=4).values()) == 400


def test_earlier_of_two_drains_names_the_cause():
    spells = [BucketInterval(30, 100, Bucket.DRAINED, "test"), BucketInterval(0, 60, Bucket.DRAINED, "repair")]

    assert by_window(LedgerInput(machines=[node(gpus=1, spells=spells)]), 0, 60, 100) == [
        {(Bucket.DRAINED, "repair"): 60},
        {(Bucket.DRAINED, "test"): 40},
    ]


def test_node_that_is_down_while_drained_counts_as_down():
    spells = [BucketInterval(0, 100, Bucket.DRAINED), BucketInterval(40, 60, Bucket.DOWN)]

    assert sums(LedgerInput(machines=[node(gpus=1, spells=spells)])) == {Bucket.DRAINED: 80, Bucket.DOWN: 20}


def test_timeline_of_an_attempt_is_cut_for_each_of_its_gpus():
    life = {1: [BucketInterval(10, 30, Bucket.HUNG, "Hang"), BucketInterval(50, 70, Bucket.SLOW)]}
    holdings = [GpuAllocation(1, 0, 20, (0,)), GpuAllocation(1, 30, 60, (0,)), GpuAllocation(1, 65, 80, (0,))]
    facts = LedgerInput(machines=[node(gpus=1, holdings=holdings)], lives=life)

    assert by_window(facts, 5, 20, 30, 60, 65, 80) == [
        {(Bucket.PRODUCTIVE, ""): 5, (Bucket.HUNG, "Hang"): 10},
        {(Bucket.FREE, ""): 10},
        {(Bucket.PRODUCTIVE, ""): 20, (Bucket.SLOW, ""): 10},
        {(Bucket.FREE, ""): 5},
        {(Bucket.SLOW, ""): 5, (Bucket.PRODUCTIVE, ""): 10},
    ]


# --- invariants

MOMENT = st.integers(-50, 250)
GPUS = st.integers(0, 4)


@st.composite
def spell(draw, buckets):
    return BucketInterval(
        draw(MOMENT), draw(MOMENT), draw(st.sampled_from(buckets)), draw(st.sampled_from(["", "ECCError"]))
    )


@st.composite
def holding(draw):
    start, end, attempt = draw(MOMENT), draw(MOMENT), draw(st.integers(1, 5))
    if draw(st.booleans()):
        return GpuAllocation(attempt, start, end, (), draw(st.integers(1, 6)))
    return GpuAllocation(attempt, start, end, tuple(sorted(draw(st.sets(st.integers(0, 9), min_size=1, max_size=4)))))


@st.composite
def machine(draw, name):
    return NodeHistory(
        name=name,
        model=draw(st.sampled_from(["", "a100", "h100"])),
        capacity=draw(st.lists(st.tuples(MOMENT, GPUS), max_size=3)),
        spells=draw(st.lists(spell([Bucket.DOWN, Bucket.DRAINED]), max_size=4)),
        holdings=draw(st.lists(holding(), max_size=6)),
    )


INSIDE = [bucket for bucket in Bucket if bucket in (Bucket.HUNG, Bucket.SLOW, Bucket.START_UP, Bucket.LOST_WORK)]
WAIT = st.builds(WaitInterval, MOMENT, MOMENT, GPUS, st.sampled_from(["", "a100"]))


@st.composite
def world(draw):
    return LedgerInput(
        machines=[draw(machine(f"n{number}")) for number in range(draw(st.integers(0, 3)))],
        lives=draw(st.dictionaries(st.integers(1, 5), st.lists(spell(INSIDE), max_size=5))),
        waits=draw(st.lists(WAIT, max_size=4)),
    )


@examples(100)
@given(facts=world(), start=MOMENT, length=st.integers(0, 200))
def test_buckets_add_up_to_capacity_times_time(facts, start, length):
    entries = list(ledger_entries(facts, (start, start + length)))

    assert sum(entry.gpu_us for entry in entries) == capacity_us(facts.machines, start, start + length)
    assert all(entry.gpu_us > 0 for entry in entries)


@examples(60)
@given(facts=world(), cut=st.integers(0, 200))
def test_two_halves_of_a_window_equal_the_whole(facts, cut):
    assert +(sums(facts, 0, cut) + sums(facts, cut, 200)) == +sums(facts, 0, 200)


@examples(60)
@given(facts=world())
def test_node_never_has_more_gpus_than_its_capacity(facts):
    for node in facts.machines:
        for moment in range(0, 200, 29):
            now = ledger_entries(LedgerInput(machines=[node], lives=facts.lives), (moment, moment + 1))
            assert sum(entry.gpu_us for entry in now) == capacity_us([node], moment, moment + 1)


@examples(60)
@given(spells=st.lists(spell([Bucket.SLOW, Bucket.HUNG]), max_size=8))
def test_flattened_layers_agree_with_a_naive_lookup(spells):
    layers = [Lay(one.start, one.end, (place,), place) for place, one in enumerate(spells)]
    painted = [says for low, high, says in flatten_layers(layers, -1, 0, 100) for _ in range(low, high)]

    naive = [next((n for n, one in enumerate(spells) if one.start <= at < one.end), -1) for at in range(100)]
    assert painted == naive


# --- clocks


def test_days_of_clock_changes_have_23_and_25_hours():
    berlin = ZoneInfo("Europe/Berlin")
    first = [datetime(2026, 3, 28, tzinfo=berlin) + timedelta(days=n) for n in range(3)]
    at = [int(moment.timestamp() * 1_000_000) for moment in first]

    days = by_window(LedgerInput(machines=[node(gpus=1)]), *at)

    assert [day[Bucket.FREE, ""] / 3_600_000_000 for day in days] == [24, 23]


def test_gpu_released_before_it_was_taken_was_never_held():
    assert sums(LedgerInput(machines=[node(holdings=[all_of(1, 60, 40)])])) == {Bucket.FREE: 800}


def test_growing_node_counts_with_its_current_capacity():
    grown = NodeHistory(name="n1", capacity=((20, 4), (50, 8)), holdings=[all_of(1, 0, 100)])

    assert sums(LedgerInput(machines=[grown])) == {Bucket.PRODUCTIVE: 4 * 30 + 8 * 50}


@examples(60)
@given(facts=world(), cuts=st.lists(st.integers(1, 199), max_size=4, unique=True))
def test_windows_equal_ledgers_of_their_own(facts, cuts):
    edges = [0, *sorted(cuts), 200]

    divided = sum_by_key(ledger_entries(facts, edges), lambda entry: entry.window)

    for window, (low, high) in enumerate(pairwise(edges)):
        assert divided.get(window, Counter()) == sums(facts, low, high)


# --- shares of GPUs


def share(attempt, start, end, milli, gpu=0):
    return GpuAllocation(attempt, start, end, (gpu,), milli=milli)


def by_holder(facts, start=0, end=1000):
    return {
        (entry.attempt, entry.bucket): entry.gpu_us for entry in ledger_entries(facts, (start, end)) if entry.gpu_us
    }


def test_shares_of_a_gpu_count_their_parts():
    holdings = [share(1, 0, 1000, 500), share(2, 200, 1000, 300)]

    assert by_holder(LedgerInput(machines=[node(gpus=1, holdings=holdings)])) == {
        (1, Bucket.PRODUCTIVE): 500,
        (2, Bucket.PRODUCTIVE): 240,
        (None, Bucket.FREE): 260,
    }


def test_rest_of_a_shared_gpu_is_fragmented_while_a_job_waits():
    machine = node(gpus=2, holdings=[share(1, 0, 1000, 500)])
    facts = LedgerInput(machines=[machine], waits=[WaitInterval(400, 1000, 1)])

    assert by_holder(facts) == {
        (1, Bucket.PRODUCTIVE): 500,
        (None, Bucket.FREE): 600,  # before the job waited
        (None, Bucket.FRAGMENTED): 300,
        (None, Bucket.RESERVED_IDLE): 600,  # the other GPU
    }


def test_node_that_is_down_covers_shares():
    machine = node(gpus=1, holdings=[share(1, 0, 1000, 500)], spells=[BucketInterval(0, 100, Bucket.DOWN)])

    assert by_holder(LedgerInput(machines=[machine])) == {
        (1, Bucket.PRODUCTIVE): 450,
        (None, Bucket.FREE): 450,
        (None, Bucket.DOWN): 100,
    }


def test_mig_slices_count_the_thousandths_of_their_profile_held_or_free():
    machine = node(gpus=4, slices={1: 142, 2: 142, 3: 428}, holdings=[share(1, 0, 500, 142, gpu=2)])
    facts = LedgerInput(machines=[machine], waits=[WaitInterval(0, 1000, 8)])

    assert by_holder(facts) == {
        (1, Bucket.PRODUCTIVE): 71,
        (None, Bucket.FREE): 142 + 71 + 428,  # a job with whole GPUs could not use them
        (None, Bucket.FRAGMENTED): 1000,
    }
    assert capacity_us([machine], 0, 1000) == 1712


def test_mig_slices_of_a_node_that_is_down():
    machine = node(gpus=1, slices={0: 250}, spells=[BucketInterval(0, 400, Bucket.DOWN)])

    assert by_holder(LedgerInput(machines=[machine])) == {(None, Bucket.DOWN): 100, (None, Bucket.FREE): 150}


share_holdings = st.lists(
    st.builds(
        share,
        st.integers(1, 6),
        st.integers(0, 900),
        st.integers(0, 1000),
        st.sampled_from([125, 333, 500, 999, 1000]),
        st.integers(0, 3),
    ),
    max_size=12,
)


@given(
    holdings=share_holdings,
    edges=st.lists(st.integers(1, 999), max_size=4, unique=True),
    slices=st.lists(st.sampled_from([142, 428, 999]), max_size=2),
)
@examples(200)
def test_buckets_add_up_with_shares_in_any_division_of_time(holdings, edges, slices):
    lives = {1: [BucketInterval(100, 600, Bucket.LOST_WORK)], 2: [BucketInterval(0, 333, Bucket.START_UP)]}
    machine = node(gpus=2 + len(slices), slices=dict(enumerate(slices, 2)), holdings=holdings)
    facts = LedgerInput(machines=[machine], lives=lives, waits=[WaitInterval(300, 700, 1)])
    divided = (0, *sorted(edges), 1000)

    whole = sum_by_key(ledger_entries(facts, (0, 1000)), lambda entry: entry.attempt)
    parts = sum_by_key(ledger_entries(facts, divided), lambda entry: entry.attempt)

    assert sum(sum(sizes.values()) for sizes in whole.values()) == 2000 + sum(slices)
    assert {key: +sizes for key, sizes in parts.items()} == {key: +sizes for key, sizes in whole.items()}
