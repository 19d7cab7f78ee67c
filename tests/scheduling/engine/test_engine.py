"""The engine: what fits where, which job goes first, and what must never happen."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.lifecycle import JobKind
from scheduling.engine.cluster import ClusterSnapshot, NodeView, QuotaView, ResourceRequest, RunningJob, WaitingJob
from scheduling.engine.job import EngineJob, RequestGroup
from scheduling.engine.job_queue import OrderedJobQueue
from scheduling.engine.placement import consolidate, pack, spread
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.engine.resources import ALL_NODES, NodeResources, members
from tests.make import NOON
from tests.properties import examples


def node(number, *, free=8, leaf="l01", **fields):
    defaults = {"gpus": 8, "free_cpus": 128, "free_memory_mb": 1000, "gpu_model": "a100"}
    defaults["free_gpus"] = tuple(range(free))
    return NodeView(id=number, name=f"n{number}", leaf=leaf, **{**defaults, **fields})


def waiting(number, *, nodes=1, gpus=1, **fields):
    defaults = {
        "team": "t",
        "kind": JobKind.OTHER,
        "priority": 0,
        "submitted_at": NOON + timedelta(seconds=number),
        "need": ResourceRequest(nodes=nodes, gpus=gpus, cpus=1),
    }
    return WaitingJob(id=number, name=f"j{number}", **{**defaults, **fields})


def decide(policy, nodes, *jobs, **fields):
    return LIVE_POLICIES[policy](ClusterSnapshot(now=NOON, nodes=tuple(nodes), waiting=jobs, **fields))


def started(decisions):
    return [start.job_id for start in decisions.starts]


def place(nodes, need):
    """The nodes of the placement, by id."""
    places = consolidate(NodeResources(nodes), need, NodeResources(nodes).matching_nodes(need))
    return None if places is None else [nodes[number].id for number, _ in places]


# placement


def test_narrow_job_takes_the_fullest_node_that_fits():
    assert place([node(1), node(2, free=3), node(3, free=1)], ResourceRequest(gpus=2)) == [2]


def test_gang_stays_on_one_leaf_switch_if_it_fits():
    nodes = [node(n, leaf="a") for n in (1, 2)] + [node(n, leaf="b") for n in (3, 4, 5)]

    assert sorted(place(nodes, ResourceRequest(nodes=3, gpus=8))) == [3, 4, 5]


def test_gang_takes_the_smallest_leaf_that_holds_it():
    nodes = [node(n, leaf="big") for n in range(4)] + [node(n, leaf="small") for n in (10, 11)]

    assert sorted(place(nodes, ResourceRequest(nodes=2, gpus=8))) == [10, 11]


def test_gang_on_two_leaves_takes_most_nodes_from_one():
    nodes = [node(n, leaf="a") for n in (1, 2, 3)] + [node(n, leaf="b") for n in (4, 5)]

    assert sorted(place(nodes, ResourceRequest(nodes=4, gpus=8)))[:3] == [1, 2, 3]


def test_gang_is_placed_whole_or_not_at_all():
    assert place([node(1), node(2, free=7)], ResourceRequest(nodes=2, gpus=8)) is None


@pytest.mark.parametrize(
    "need",
    [
        ResourceRequest(gpus=1, gpu_model="h100"),
        ResourceRequest(gpus=1, nic_type="roce"),
        ResourceRequest(cpus=129),
        ResourceRequest(memory_mb=1001),
        ResourceRequest(gpus=9),
    ],
)
def test_node_that_lacks_any_resource_does_not_fit(need):
    assert place([node(1)], need) is None


def test_taken_resources_are_no_longer_free():
    room, need = NodeResources([node(1)]), ResourceRequest(gpus=4, cpus=100)

    room.take(consolidate(room, need), need)

    assert consolidate(room, ResourceRequest(gpus=1, cpus=28)) == ((0, 1),)
    assert consolidate(room, ResourceRequest(gpus=1, cpus=29)) is None
    assert consolidate(room, ResourceRequest(gpus=5, cpus=1)) is None


def test_lowest_free_gpu_indices_are_assigned_first():
    decisions = decide("fifo", [node(1, free_gpus=(1, 3, 4, 7))], waiting(1, gpus=2), waiting(2, gpus=2))

    assert [start.places for start in decisions.starts] == [{1: (1, 3)}, {1: (4, 7)}]


# order


def test_strict_queue_stops_at_the_first_job_that_does_not_fit():
    jobs = waiting(1, nodes=2, gpus=8), waiting(2)

    assert started(decide("fifo", [node(1)], *jobs)) == []
    assert started(decide("fifo-skip", [node(1)], *jobs)) == [2]


def test_job_with_a_gate_does_not_block_others():
    jobs = waiting(1, nodes=2, gpus=8, hold="user"), waiting(2)

    assert started(decide("fifo", [node(1)], *jobs)) == [2]


def test_quota_counts_gpus_assigned_in_the_same_turn():
    quotas = (QuotaView(team="t", kind=None, gpus=1),)

    decisions = decide("fifo-skip", [node(1)], waiting(1), waiting(2), quotas=quotas)

    assert started(decisions) == [1]
    assert decisions.waits[0].reason == "AssocGrpGRES"


def test_quota_for_all_jobs_of_a_team_guarantees_whole_nodes():
    nodes = (node(1), node(2, gpus=4, free=4))
    quotas = (
        QuotaView(team="wide", kind=None, gpus=20),
        QuotaView(team="narrow", kind=None, gpus=7),
        QuotaView(team="evaluations", kind=JobKind.EVALUATION, gpus=80),
    )

    assert ClusterSnapshot(now=NOON, nodes=nodes, quotas=quotas).guaranteed_nodes == {"wide": 2}
    assert ClusterSnapshot(now=NOON, quotas=quotas).guaranteed_nodes == {}


def test_preemptible_jobs_do_not_use_the_quota():
    borrowed = RunningJob(id=9, name="j9", team="t", kind=JobKind.OTHER, gpus=8, priority=0, preemptible=True)
    quotas = (QuotaView(team="t", kind=JobKind.OTHER, gpus=1),)

    assert started(decide("fifo", [node(1)], waiting(1), running=(borrowed,), quotas=quotas)) == [1]


# invariants

pictures = st.builds(
    lambda frees, jobs: ClusterSnapshot(
        now=NOON,
        nodes=tuple(node(i, free=free, leaf=f"l{i % 3}") for i, free in enumerate(frees)),
        waiting=tuple(
            waiting(i, nodes=nodes, gpus=gpus, priority=priority) for i, (nodes, gpus, priority) in enumerate(jobs)
        ),
        quotas=(QuotaView(team="t", kind=None, gpus=20),),
    ),
    st.lists(st.integers(0, 8), max_size=8),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 8), st.integers(-1, 1)), max_size=20),
)


@pytest.mark.parametrize("policy", LIVE_POLICIES)
@given(picture=pictures)
def test_gpu_is_assigned_once_and_only_if_free(policy, picture):
    free = {node.id: set(node.free_gpus) for node in picture.nodes}

    for start in LIVE_POLICIES[policy](picture).starts:
        for node_id, gpus in start.places.items():
            assert set(gpus) <= free[node_id]
            free[node_id] -= set(gpus)


@pytest.mark.parametrize("policy", LIVE_POLICIES)
@given(picture=pictures)
def test_every_gang_is_whole(policy, picture):
    needs = {job.id: job.need for job in picture.waiting}

    for start in LIVE_POLICIES[policy](picture).starts:
        assert len(start.places) == needs[start.job_id].nodes
        assert {len(gpus) for gpus in start.places.values()} == {needs[start.job_id].gpus}


@pytest.mark.parametrize("policy", LIVE_POLICIES)
@given(picture=pictures)
def test_every_waiting_job_gets_exactly_one_answer(policy, picture):
    decisions = LIVE_POLICIES[policy](picture)

    answered = [d.job_id for d in (*decisions.starts, *decisions.waits)]
    assert sorted(answered) == sorted(job.id for job in picture.waiting)


@pytest.mark.parametrize("policy", LIVE_POLICIES)
@given(picture=pictures)
def test_equal_snapshots_give_equal_decisions(policy, picture):
    assert LIVE_POLICIES[policy](picture) == LIVE_POLICIES[policy](picture)


@given(picture=pictures)
def test_skipping_leaves_no_gpus_that_a_waiting_job_could_use(picture):
    decisions = LIVE_POLICIES["fifo-skip"](picture)
    room = NodeResources(picture.nodes)
    for start in decisions.starts:
        need = next(j.need for j in picture.waiting if j.id == start.job_id)
        room.take(tuple((node, len(gpus)) for node, gpus in start.places.items()), need)  # ids are numbers here

    for wait in decisions.waits:
        if wait.reason == "Resources":
            assert consolidate(room, next(j.need for j in picture.waiting if j.id == wait.job_id)) is None


# backfilling on a live cluster


def hours(count):
    return timedelta(hours=count)


def held(number, node_id, gpus, **fields):
    """A job that has been running since noon."""
    defaults = {"name": f"r{number}", "team": "t", "kind": JobKind.OTHER, "priority": 0, "started_at": NOON}
    return RunningJob(id=number, gpus=gpus, places={node_id: gpus}, **{**defaults, **fields})


BUSY = node(1, free=4), held(9, 1, 4, time_limit=hours(2))


def test_job_that_ends_before_the_reserved_start_passes():
    full, runs = BUSY
    jobs = waiting(1, gpus=8), waiting(2, gpus=4, time_limit=hours(1)), waiting(3, gpus=4, time_limit=hours(1))

    assert started(decide("easy", [full], *jobs, running=(runs,))) == [2]


def test_job_without_a_limit_passes_on_gpus_that_the_reserved_job_leaves():
    full, runs = BUSY
    jobs = [waiting(number, need=ResourceRequest(gpus=gpus, cpus=0)) for number, gpus in enumerate((6, 3, 2, 1), 1)]

    assert started(decide("easy", [full], *jobs, running=(runs,))) == [3]


def test_gang_without_a_limit_does_not_pass_on_gpus_that_the_reserved_gang_leaves():
    nodes = [node(1, free=4), node(2, free=4)]
    running = (held(8, 1, 4, time_limit=hours(2)), held(9, 2, 4, time_limit=hours(2)))
    requests = [ResourceRequest(nodes=2, gpus=6, cpus=0), ResourceRequest(nodes=2, gpus=1, cpus=0)]
    jobs = [waiting(number, need=need) for number, need in enumerate([*requests, ResourceRequest(gpus=2, cpus=0)], 1)]

    assert started(decide("easy", nodes, *jobs, running=running)) == [3]


def test_team_that_holds_less_backfills_first():
    runs = held(9, 1, 4, time_limit=hours(3), started_at=NOON - hours(1))
    jobs = [
        waiting(1, team="c", gpus=8, priority=1),
        waiting(2, team="t", gpus=4, time_limit=hours(1)),
        waiting(3, team="b", gpus=4, time_limit=hours(1)),
    ]

    assert started(decide("fair", [node(1, free=4)], *jobs, running=(runs,))) == [3]


@pytest.mark.parametrize("policy", ["easy", "conservative"])
@pytest.mark.parametrize("limit", [hours(3), None])
def test_job_that_may_not_end_before_the_reserved_start_waits_with_a_reason(policy, limit):
    full, runs = BUSY

    decisions = decide(policy, [full], waiting(1, gpus=8), waiting(2, gpus=4, time_limit=limit), running=(runs,))

    assert started(decisions) == []
    assert [wait.reason for wait in decisions.waits] == ["Resources", "Priority"]
    assert "14:00 UTC" in decisions.waits[1].why


def test_only_jobs_with_a_limit_pass_an_unknown_start():
    endless = held(9, 1, 4)
    jobs = waiting(1, gpus=8), waiting(2, gpus=1), waiting(3, gpus=1, time_limit=hours(1))

    assert started(decide("easy", [node(1, free=4)], *jobs, running=(endless,))) == [3]


def test_priority_goes_before_the_order_of_every_policy():
    jobs = waiting(1, gpus=8), waiting(2, gpus=8, priority=5), waiting(3, gpus=8, priority=1)

    assert started(decide("easy", [node(1)], *jobs)) == [2]
    assert [w.job_id for w in decide("easy", [node(1)], *jobs).waits] == [3, 1]


def test_cpus_of_a_running_job_come_free_with_its_gpus():
    """The first job lacks CPUs, not GPUs. Its reservation starts when the job that holds them ends."""
    tight = node(1, free=4, free_cpus=1)
    runs = held(9, 1, 4, cpus=127, time_limit=hours(2))

    decisions = decide(
        "easy", [tight], waiting(1, need=ResourceRequest(gpus=4, cpus=64)), waiting(2, gpus=1), running=(runs,)
    )

    assert "14:00 UTC" in decisions.waits[1].why


def test_node_that_lost_gpus_gets_back_no_more_than_it_has():
    """The record says 8 GPUs are held and 4 free on a node that now has 8."""
    runs = held(9, 1, 8, time_limit=hours(2))

    assert started(decide("easy", [node(1, free=4)], waiting(1, gpus=8), waiting(2, gpus=2), running=(runs,))) == []


def test_overdue_job_gives_no_reservation_in_the_past():
    full = node(1, free=4)
    late = held(9, 1, 4, time_limit=-hours(1))

    assert started(decide("easy", [full], waiting(1, gpus=8), waiting(2, gpus=4), running=(late,))) == []


# shares on a live cluster


@pytest.mark.parametrize("policy", ["fair", "drf"])
def test_team_that_holds_more_goes_later(policy):
    runs = RunningJob(
        id=9, name="r", team="t", kind=JobKind.OTHER, gpus=4, priority=0, started_at=NOON - hours(1), places={1: 4}
    )
    jobs = waiting(1, gpus=4), waiting(2, gpus=4, team="other")

    assert started(decide(policy, [node(1, free=4)], *jobs, running=(runs,))) == [2]


def test_usage_of_running_jobs_does_not_depend_on_their_order():
    long, short = ({"started_at": NOON - hours(n), "gpus": 1, "priority": 0, "kind": JobKind.OTHER} for n in (9, 1))
    running = [
        RunningJob(id=1, name="r1", team="t", places={2: 1}, **short),
        RunningJob(id=2, name="r2", team="other", places={2: 1}, **long),
    ]
    jobs = waiting(1, gpus=8, team="other"), waiting(2, gpus=8)

    for order in (running, running[::-1]):
        assert started(decide("fair", [node(1), node(2, free=6)], *jobs, running=tuple(order))) == [2]


# opening and closing nodes


def test_closed_node_accepts_nothing_and_reopens_with_its_resources():
    room = NodeResources([node(1), node(2, free=3)])

    room.close(1)
    room.close(1)
    assert (room.free_gpus, consolidate(room, ResourceRequest(gpus=2))) == (8, ((0, 2),))
    room.open(1)
    assert (room.free_gpus, consolidate(room, ResourceRequest(gpus=2))) == (11, ((1, 2),))


@examples(100)
@given(st.lists(st.tuples(st.sampled_from(["open", "close", "take", "give"]), st.integers(0, 3), st.integers(0, 4))))
def test_node_sets_agree_with_the_lists(steps):
    room, taken, need = NodeResources([node(n, free=n + 3) for n in range(4)]), [], ResourceRequest(gpus=1)

    for verb, number, gpus in steps:
        if verb == "take" and gpus <= room.free[number]:
            room.take(((number, gpus),), need)
            taken.append(((number, gpus),))
        elif verb == "give" and taken:
            room.give(taken.pop(), need)
        elif verb in ("open", "close"):
            getattr(room, verb)(number)
        usable = [n for n in range(4) if room.usable >> n & 1]
        assert room.free_gpus == sum(room.free[n] for n in usable)
        for free, nodes in enumerate(room.by_free):
            assert sorted(members(nodes)) == [n for n in usable if room.free[n] == free]
            assert bool(nodes) == bool(room.levels >> free & 1)


@pytest.mark.parametrize(("placement", "nodes"), [(consolidate, [2]), (spread, [1]), (pack, [2])])
def test_share_goes_to_the_fullest_or_the_emptiest_node(placement, nodes):
    room = NodeResources([node(0, free=5), node(1, free=8), node(2, free=3)])

    assert [number for number, _ in placement(room, ResourceRequest(gpus=3))] == nodes


def test_pack_spreads_a_wide_job_over_the_fewest_nodes():
    room = NodeResources([node(0, free=5), node(1, free=2), node(2, free=3)])

    assert consolidate(room, ResourceRequest(gpus=7)) is None
    assert pack(room, ResourceRequest(gpus=7)) == ((0, 5), (1, 2))
    assert pack(room, ResourceRequest(gpus=10)) == ((0, 5), (2, 3), (1, 2))
    assert pack(room, ResourceRequest(gpus=11)) is None


def test_remainder_of_a_gang_goes_to_the_emptiest_node_that_fits():
    room = NodeResources([node(0), node(1, free=5), node(2, free=7)])

    assert consolidate(room, ResourceRequest(nodes=1, gpus=8, rest=4)) == ((0, 8), (2, 4))


# queues

ONE_GPU = RequestGroup(ResourceRequest(gpus=1), ALL_NODES, None, None, 0)


@examples(100)
@given(st.lists(st.tuples(st.sampled_from(["add", "take", "back", "tidy"]), st.integers(0, 400), st.integers(0, 9))))
def test_queue_behaves_like_a_sorted_list(steps):
    line, expected_entries, gone = OrderedJobQueue(), {}, {}
    for verb, number, long in steps:
        if verb == "add" and number not in expected_entries and number not in gone:
            expected_entries[number] = EngineJob(number, ONE_GPU, 0.0, long, float(long))
            line.add((0, 0.0, number, expected_entries[number]))
        elif verb == "take" and expected_entries:
            number = sorted(expected_entries)[number % len(expected_entries)]
            gone[number] = expected_entries.pop(number)
            line.remove(gone[number])
        elif verb == "back" and gone:
            number, job = gone.popitem()
            expected_entries[number] = job
            line.add((0, 0.0, number, job))
        elif verb == "tidy":
            line.tidy()
        assert len(line) == len(expected_entries)
        if expected_entries:
            assert line.first[2] == min(expected_entries)
        short = [n for n in sorted(expected_entries) if expected_entries[n].expected_s <= 4]
        index = line.next_within(0, 4.0)
        assert (index is None) == (not short)
        assert index is None or line.at(index)[2] == short[0]


def test_long_queue_drops_its_front():
    line = OrderedJobQueue()
    jobs = [EngineJob(n, ONE_GPU, 0.0, 1.0, float(n % 1000)) for n in range(10_000)]
    for job in jobs:
        line.add((0, 0.0, job.number, job))

    for job in jobs[:9000]:
        line.remove(job)
    line.tidy()

    assert (line.first[2], len(line), line.front_index < 256) == (9000, 1000, True)
    assert line.at(line.next_within(0, 5.0))[2] == 9000
    assert line.at(line.next_within(line.next_within(0, 5.0) + 6, 999.0))[2] == 9006
