"""Live turns under power budgets: of the cluster, and of racks that contain some of its nodes. No database."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.lifecycle import JobKind
from scheduling.engine.cluster import ClusterSnapshot, PowerBudget, ResourceRequest, RunningJob
from scheduling.engine.counterfactual import smallest_changes
from scheduling.engine.live import held_watts
from scheduling.engine.placements import PLACEMENTS, PLACEMENTS_WITHOUT_POWER
from scheduling.engine.policies import LIVE_POLICIES, rules_factory
from scheduling.whatif.replay.start_estimates import ExactReplayLimits, start_estimates
from tests.make import NOON
from tests.properties import examples
from tests.scheduling.engine.test_engine import node, started, waiting

GPU_W = 425
PLACED = [name for name in PLACEMENTS if name not in PLACEMENTS_WITHOUT_POWER]
HOUR = timedelta(hours=1)


def job(number, *, nodes=1, gpus=8, watts=None, **fields):
    watts = nodes * gpus * GPU_W if watts is None else watts
    need = ResourceRequest(nodes=nodes, gpus=gpus, cpus=1, watts=watts)
    return waiting(number, need=need, **fields)


def holder(number, on, *, gpus=8, **fields):
    places, held = dict.fromkeys(on, gpus), gpus * len(on)
    defaults = {"name": "r", "team": "u", "kind": JobKind.OTHER, "priority": 0, "started_at": NOON}
    return RunningJob(id=number, places=places, gpus=held, watts=held * GPU_W, **{**defaults, **fields})


def budget(gpus, nodes=None, name="cluster seren"):
    return PowerBudget(name=name, watts=gpus * GPU_W, nodes=None if nodes is None else frozenset(nodes))


def picture(nodes, waiting_jobs, budgets, held=(), **fields):
    return ClusterSnapshot(
        now=NOON, nodes=tuple(nodes), waiting=tuple(waiting_jobs), running=tuple(held), power=tuple(budgets), **fields
    )


def decide(policy, *parts, **fields):
    return LIVE_POLICIES[policy](picture(*parts, **fields))


def full(number):
    return node(number, free=0)


# --- The cluster's budget ---


@pytest.mark.parametrize("policy", LIVE_POLICIES)
def test_job_waits_for_power_that_a_running_job_holds(policy):
    nodes, held = [full(1), node(2), node(3)], holder(90, [1])
    decisions = decide(policy, nodes, [job(1), job(2)], [budget(20)], [held])

    (wait,) = decisions.waits
    assert len(started(decisions)) == 1 and wait.reason == "Power"
    assert "It is predicted to need 3.4 kW; of power budget cluster seren, 1.7 of 8.5 kW for jobs are left." in wait.why


@pytest.mark.parametrize("policy", LIVE_POLICIES)
def test_ample_budget_changes_no_decision(policy):
    nodes = [full(1), node(2), node(3, free=4), node(4)]
    jobs = [job(number, nodes=1 + number % 2, gpus=4 + 4 * (number % 2)) for number in range(1, 7)]
    bare = decide(policy, nodes, jobs, [], [holder(90, [1])])

    assert decide(policy, nodes, jobs, [budget(999), budget(999, [1, 2])], [holder(90, [1])]) == bare


def test_owner_preempts_a_borrower_for_its_power():
    """GPUs are free, but the borrower draws what the owner needs."""
    held = holder(90, [1], preemptible=True, started_at=NOON - HOUR)
    decisions = decide("acme", [full(1), node(2)], [job(1)], [budget(8)], [held])

    assert [stop.job_id for stop in decisions.stops] == [90]
    assert started(decisions) == []


def test_start_estimate_waits_for_the_power_of_a_running_job():
    held = holder(90, [1], started_at=NOON, time_limit=HOUR)
    snapshot = picture([full(1), node(2)], [job(1)], [budget(8)], [held])

    (bare,) = start_estimates(dataclasses.replace(snapshot, power=()), rules_factory("easy", {})).values()
    (estimate,) = start_estimates(snapshot, rules_factory("easy", {})).values()

    assert bare.p50 == NOON
    assert estimate.p50 > NOON


def test_estimates_with_merged_nodes_keep_the_budget_of_the_cluster():
    held = holder(90, [1], started_at=NOON, time_limit=HOUR)
    snapshot = picture([full(1), node(2)], [job(1)], [budget(8), budget(1, [2], "rack b")], [held])

    (estimate,) = start_estimates(
        snapshot, rules_factory("easy", {}), limits=ExactReplayLimits(placed_nodes=0)
    ).values()

    assert estimate.p50 > NOON


def test_smaller_request_is_proposed_if_its_power_fits():
    snapshot = picture([node(1), node(2)], [job(1, nodes=2)], [budget(8)])

    changes = smallest_changes(snapshot, rules_factory("fifo", {}), 1)

    assert any("1 node instead of 2" in change.phrase or "4 GPUs" in change.phrase for change in changes)


def test_drained_node_keeps_its_part_of_the_power_until_its_job_ends():
    held = dataclasses.replace(holder(90, [7]), stopping=False)
    decisions = decide("fifo", [node(1)], [job(1)], [budget(15)], [held])

    assert [wait.reason for wait in decisions.waits] == ["Power"]


# --- Budgets of racks ---


@pytest.mark.parametrize("policy", LIVE_POLICIES)
@pytest.mark.parametrize("placement", PLACED)
def test_job_starts_in_the_rack_that_has_power(policy, placement):
    nodes, held = [full(1), node(2), node(3), node(4)], holder(90, [1])
    racks = [budget(12, [1, 2], "rack a"), budget(12, [3, 4], "rack b")]
    decisions = decide(policy, nodes, [job(1), job(2)], racks, [held], placement=placement)

    (start,) = decisions.starts
    (wait,) = decisions.waits
    assert set(start.places) < {3, 4}
    assert wait.reason == "Power"


def test_wait_reason_names_the_budgets_of_racks():
    racks = [budget(12, [1, 2], "rack a"), budget(4, [3, 4], "rack b")]
    decisions = decide("fifo", [node(number) for number in (1, 2, 3, 4)], [job(1, nodes=2)], racks)

    (wait,) = decisions.waits
    assert wait.why == (
        "It is predicted to need 3.4 kW on each of 2 nodes; the power budgets of rack a, rack b leave that on 1 of 4"
        " nodes where it would fit."
    )


def test_wait_decision_has_all_short_budgets_also_those_that_the_sentence_leaves_out():
    nodes, jobs = [node(number) for number in range(1, 9)], [job(1, nodes=8)]
    tight = [budget(4, [number], f"rack r{number}") for number in range(1, 6)]
    ((whole,), (parts,)) = (decide("fifo", nodes, jobs, [*budgets]).waits for budgets in ([budget(9)], tight))

    assert whole.power_budgets == ("cluster seren",)
    assert parts.power_budgets == ("rack r1", "rack r2", "rack r3", "rack r4", "rack r5")
    assert "of rack r1, rack r2, rack r3 and 2 more leave that on 3 of 8 nodes" in parts.why


def test_job_behind_another_one_has_the_budgets_that_it_lacks():
    nodes, jobs = [node(1), node(2)], [job(1, nodes=2), job(2)]
    head, behind = decide("fifo-skip", nodes, jobs, [budget(4)]).waits

    assert "is ahead of it" in behind.why and behind.reason == "Power"
    assert head.power_budgets == behind.power_budgets == ("cluster seren",)


def test_job_that_lacks_gpus_has_no_budget():
    (wait,) = decide("fifo", [node(1)], [job(1, nodes=2)], [budget(99)]).waits

    assert (wait.reason, wait.power_budgets) == ("Resources", ())


def test_gang_is_divided_evenly_among_racks_that_have_room_for_parts_of_it():
    racks = [budget(8, [1, 2], "rack a"), budget(8, [3, 4], "rack b")]
    decisions = decide("fifo", [node(number) for number in (1, 2, 3, 4)], [job(1, nodes=2)], racks)

    (start,) = decisions.starts
    assert len({1, 2} & set(start.places)) == len({3, 4} & set(start.places)) == 1


def test_long_job_does_not_take_the_rack_power_that_the_first_in_the_queue_waits_for():
    """Job 1 needs both nodes of rack a when job 90 ends; job 2 may run longer than that only elsewhere."""
    held = holder(90, [1], started_at=NOON, time_limit=HOUR)
    nodes = [full(1), node(2), node(3, free=2)]
    head = job(1, nodes=2, time_limit=2 * HOUR)
    small = job(2, gpus=2, time_limit=9 * HOUR)
    racks = [budget(16, [1, 2, 3], "rack a")]

    assert started(decide("easy", nodes, [head, small], racks, [held])) == []
    assert started(decide("easy", nodes, [head, small], [budget(18, [1, 2, 3], "rack a")], [held])) == [2]


def test_node_that_sleeps_needs_its_idle_power_too():
    asleep = node(2, boot_s=600.0, wake_w=1000)
    tight, ample = (PowerBudget(name="cluster seren", watts=8 * GPU_W + more) for more in (999, 1000))

    assert started(decide("fifo", [full(1), asleep], [job(1)], [tight])) == []
    assert started(decide("fifo", [full(1), asleep], [job(1)], [ample])) == [1]


def test_node_that_a_job_wakes_up_needs_its_idle_power_once():
    asleep = node(1, boot_s=600.0, wake_w=1000)
    both = PowerBudget(name="cluster seren", watts=8 * GPU_W + 1000)

    assert started(decide("fifo", [asleep], [job(1, gpus=4), job(2, gpus=4)], [both])) == [1, 2]


# --- Never more than a budget ---

racks = st.lists(st.sampled_from("ab"), min_size=6, max_size=6)
sizes = st.tuples(st.integers(1, 4), st.sampled_from([1, 4, 8]), st.integers(0, 4000), st.booleans(), st.integers(1, 9))
held_nodes = st.sets(st.integers(0, 5), max_size=3)


def watts_of_starts(snapshot, decisions, one):
    """What the starts need of a budget, with the idle power of nodes that wake up."""
    needs = {waiting_job.id: waiting_job.need for waiting_job in snapshot.waiting}
    inside = {view.id for view in snapshot.nodes if one.nodes is None or view.id in one.nodes}
    woken = inside & {number for start in decisions.starts for number in start.places}
    parts = [
        needs[start.job_id].watts / len(start.places) * len(inside & set(start.places)) for start in decisions.starts
    ]
    return sum(parts) + sum(view.wake_w for view in snapshot.nodes if view.id in woken)


@pytest.mark.parametrize("placement", PLACED)
@pytest.mark.parametrize("policy", LIVE_POLICIES)
@given(
    names=racks, jobs=st.lists(sizes, max_size=8), held=held_nodes, limits=st.tuples(*[st.integers(0, 14_000)] * 3),
    asleep=held_nodes,
)  # fmt: skip
@examples(12)
def test_running_jobs_and_starts_never_exceed_a_budget(policy, placement, names, jobs, held, limits, asleep):
    views = [
        full(number) if number in held else node(number, leaf=names[number], **_asleep(number in asleep))
        for number in range(6)
    ]
    queue = [
        job(10 + at, nodes=count, gpus=gpus, watts=watts + 1, preemptible=borrows, time_limit=hours * HOUR)
        for at, (count, gpus, watts, borrows, hours) in enumerate(jobs)
    ]
    runs = [holder(90 + on, [on], started_at=NOON, time_limit=HOUR, preemptible=on % 2 == 0) for on in sorted(held)]
    areas = [
        PowerBudget(name=name, watts=limit, nodes=frozenset(n for n in range(6) if names[n] == name))
        for name, limit in zip("ab", limits, strict=False)
    ]
    snapshot = picture(views, queue, [PowerBudget(name="c", watts=limits[2]), *areas], runs, placement=placement)
    decisions = LIVE_POLICIES[policy](snapshot)

    for one in snapshot.power:
        assert watts_of_starts(snapshot, decisions, one) <= max(0, one.watts - held_watts(snapshot, [one])[0])


def _asleep(sleeps):
    return {"boot_s": 600.0, "wake_w": 1370} if sleeps else {}
