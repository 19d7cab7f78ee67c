"""Maintenance in the engine: which jobs start on nodes that must be empty later, which ones wait, until when
and why.
"""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.engine.blockers import BlockerKind
from scheduling.engine.cluster import MAINTENANCE, ClosedNode, ClusterSnapshot, ResourceRequest
from scheduling.engine.policies import LIVE_POLICIES, POLICY_RULES
from scheduling.engine.run_time_estimates import PastJob, RunTimeEstimates
from scheduling.engine.why import explain_wait
from scheduling.engine.windows import MaintenancePeriod, NodeWindow, round_up_run_time
from scheduling.whatif.replay.start_estimates import start_estimates
from tests.make import NOON
from tests.scheduling.engine.test_engine import held, node, started, waiting

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
NODES = [node(number) for number in (1, 2, 3, 4)]


def window(*nodes, start=6 * HOUR, end=10 * HOUR, name="cooling", lead=DAY):
    return NodeWindow(name=name, start=NOON + start, end=NOON + end, lead=lead, nodes=frozenset(nodes or (1, 2, 3, 4)))


def picture(*jobs, windows=(), nodes=NODES, **fields):
    return ClusterSnapshot(now=NOON, nodes=tuple(nodes), waiting=jobs, windows=windows, **fields)


def decide(policy, *jobs, windows=(), **fields):
    return LIVE_POLICIES[policy](picture(*jobs, windows=windows, **fields))


def where(decisions):
    return {start.job_id: sorted(start.places) for start in decisions.starts}


every_policy = pytest.mark.parametrize("policy", sorted(LIVE_POLICIES))


@every_policy
def test_job_starts_only_if_it_ends_before_the_maintenance(policy):
    short, exact, long = (
        waiting(number, gpus=8, time_limit=limit) for number, limit in ((1, HOUR), (2, 6 * HOUR), (3, 6.1 * HOUR))
    )

    decisions = decide(policy, short, exact, long, windows=(window(),))

    assert started(decisions) == [1, 2]
    (wait,) = decisions.waits
    assert (wait.job_id, wait.reason) == (3, "ReqNodeNotAvail")
    assert wait.why.startswith(
        "The nodes it would fit on are reserved for maintenance cooling from 21 Nov 18:00 until 21 Nov 22:00 UTC"
    )


@every_policy
def test_long_job_takes_nodes_outside_the_maintenance(policy):
    decisions = decide(policy, waiting(1, gpus=8, time_limit=2 * DAY), windows=(window(1, 2, 3),))

    assert where(decisions) == {1: [4]}


@every_policy
def test_job_without_limit_starts_only_before_the_lead_time(policy):
    endless = waiting(1, gpus=8)

    assert started(decide(policy, endless, windows=(window(start=25 * HOUR, end=30 * HOUR),))) == [1]
    decisions = decide(policy, endless, windows=(window(start=23 * HOUR, end=30 * HOUR),))
    assert started(decisions) == []
    assert "It has no time limit, so it does not start there in the 1-00:00:00 before that" in decisions.waits[0].why


@every_policy
def test_usual_run_time_counts_if_there_is_no_limit(policy):
    usually_short, usually_long = waiting(1, gpus=8, usual=HOUR), waiting(2, gpus=8, usual=7 * HOUR)

    assert started(decide(policy, usually_short, usually_long, windows=(window(),))) == [1]


@every_policy
def test_nothing_starts_during_maintenance_and_everything_after(policy):
    job = waiting(1, gpus=8, time_limit=timedelta(minutes=1))

    assert started(decide(policy, job, windows=(window(start=-HOUR, end=HOUR),))) == []
    assert started(decide(policy, job, windows=(window(start=-2 * HOUR, end=timedelta(0)),))) == [1]


@every_policy
def test_closed_maintenance_nodes_are_unused_and_the_reason_names_the_end(policy):
    shut = tuple(ClosedNode(node=one, back=MAINTENANCE) for one in NODES)
    decisions = decide(
        policy, waiting(1, gpus=8, time_limit=HOUR), nodes=(), closed=shut, windows=(window(start=-HOUR, end=2 * HOUR),)
    )

    assert started(decisions) == []
    assert (decisions.waits[0].reason, decisions.waits[0].why) == (
        "ReqNodeNotAvail",
        "The nodes it would fit on are reserved for maintenance cooling from 21 Nov 11:00 until 21 Nov 14:00 UTC.",
    )


def test_short_jobs_pass_a_job_that_waits_for_maintenance():
    """The first job can only start after the maintenance, so jobs that end before it delay nothing."""
    wide = waiting(1, nodes=4, gpus=8, time_limit=2 * DAY)
    short = waiting(2, gpus=8, time_limit=HOUR)

    for policy in ("easy", "conservative", "acme"):
        decisions = decide(policy, wide, short, windows=(window(),))
        assert started(decisions) == [2], policy


def test_reservation_after_maintenance_is_not_delayed_by_other_jobs():
    """Node 4 is not part of it. A job of two days there would delay the wide job beyond the end of the maintenance."""
    wide = waiting(1, nodes=4, gpus=8, time_limit=DAY)
    long = waiting(2, gpus=8, time_limit=2 * DAY)

    assert started(decide("easy", wide, long, windows=(window(1, 2, 3),))) == []
    assert started(decide("conservative", wide, long, windows=(window(1, 2, 3),))) == []


def test_explanation_names_the_maintenance_and_a_shorter_limit():
    explanation = explain_wait(
        picture(waiting(1, gpus=8, time_limit=DAY), windows=(window(),)), POLICY_RULES["easy"], 1, lambda team: True
    )

    assert [one.kind for one in explanation.blockers] == [BlockerKind.MAINTENANCE]
    assert "its time limit were 06:00:00 instead of 1-00:00:00" in explanation.changes[0].why


def test_missing_gpus_are_named_even_with_maintenance_ahead():
    full = [node(number, free=0) for number in (1, 2, 3, 4)]

    decisions = decide("easy", waiting(1, gpus=8, time_limit=DAY), nodes=full, windows=(window(1),))

    assert decisions.waits[0].reason == "Resources"


def test_estimate_of_a_long_job_lies_after_the_maintenance():
    short, long = waiting(1, gpus=8, time_limit=HOUR), waiting(2, gpus=8, time_limit=8 * HOUR)

    estimates = start_estimates(picture(short, long, windows=(window(),)), POLICY_RULES["easy"])

    assert estimates[1].p50 == NOON
    assert (estimates[2].p50, estimates[2].p90) == (NOON + 10 * HOUR, NOON + 10 * HOUR)


@pytest.mark.parametrize("policy", ["easy", "conservative", "fifo-skip", "acme"])
def test_estimate_during_maintenance_is_its_end(policy):
    shut = tuple(ClosedNode(node=one, back=MAINTENANCE) for one in NODES)
    now = picture(
        waiting(1, gpus=8, time_limit=HOUR), nodes=(), closed=shut, windows=(window(start=-HOUR, end=2 * HOUR),)
    )

    assert start_estimates(now, POLICY_RULES[policy])[1].p50 == NOON + 2 * HOUR


def test_estimate_of_a_short_job_late_in_the_queue_lies_after_the_maintenance():
    """All nodes are busy for five and a half hours; after that, one hour is too long."""
    runs = tuple(
        held(100 + number, number, 8, started_at=NOON, time_limit=5.5 * HOUR, user="u", title="t")
        for number in (1, 2, 3, 4)
    )
    past = RunTimeEstimates([PastJob(user="u", title="t", gpus=8, ran_s=5.5 * 3600)] * 3)
    full = [node(number, free=0) for number in (1, 2, 3, 4)]
    job = waiting(1, gpus=8, time_limit=HOUR)

    estimates = start_estimates(
        picture(job, nodes=full, running=runs, windows=(window(),)), POLICY_RULES["easy"], durations=past
    )

    assert estimates[1].p90 == NOON + 10 * HOUR


def test_run_times_are_rounded_up_but_never_past_the_next_window():
    bars = [MaintenancePeriod.of(window(start=after), {}, (), NOON) for after in (HOUR, 3 * HOUR)]
    now = NOON.timestamp()

    for runs_s in (1.0, 899.0, 3599.0, 3600.0, 3601.0, 10_799.0, 10_800.0, 12_345.0, 200_000.0):
        longer = round_up_run_time(bars, runs_s, now)
        assert runs_s <= longer <= max(runs_s + 900, runs_s * 1.07)
        assert [bar.stops(runs_s, now) for bar in bars] == [bar.stops(longer, now) for bar in bars]


def test_request_without_maintenance_has_no_run_time():
    """Otherwise jobs of all lengths would have separate queues, and turns would cost more for nothing."""
    assert ResourceRequest(nodes=1, gpus=8).runs_s == 0.0


spans = st.tuples(st.integers(-3, 8), st.integers(1, 6), st.sets(st.integers(0, 3), min_size=1))
lengths = st.one_of(st.none(), st.integers(1, 12))
crowds = st.lists(st.tuples(st.integers(1, 2), st.integers(1, 8), lengths, lengths), max_size=8)


def crowded(frees, jobs, windows):
    return picture(
        *(
            waiting(
                number,
                nodes=wide,
                gpus=gpus,
                time_limit=limit and limit * HOUR,
                usual=usual and usual * HOUR if limit is None else None,
            )
            for number, (wide, gpus, limit, usual) in enumerate(jobs)
        ),
        nodes=[node(number, free=free) for number, free in enumerate(frees)],
        windows=tuple(
            window(*nodes, start=start * HOUR, end=(start + long) * HOUR, name=f"w{number}", lead=2 * HOUR)
            for number, (start, long, nodes) in enumerate(windows)
        ),
    )


@every_policy
@given(frees=st.lists(st.integers(0, 8), min_size=4, max_size=4), jobs=crowds, windows=st.lists(spans, max_size=3))
def test_no_job_starts_where_it_would_run_during_maintenance(policy, frees, jobs, windows):
    now = crowded(frees, jobs, windows)
    waiting_jobs = {job.id: job for job in now.waiting}

    decisions = LIVE_POLICIES[policy](now)

    for start in decisions.starts:
        job = waiting_jobs[start.job_id]
        takes = job.time_limit or job.usual or 2 * HOUR  # the lead
        for one in now.windows:
            is_clear = one.end <= NOON or (one.start > NOON and NOON + takes <= one.start)
            assert is_clear or one.nodes.isdisjoint(start.places)
    assert sorted([one.job_id for one in (*decisions.starts, *decisions.waits)]) == sorted(waiting_jobs)


@every_policy
@given(frees=st.lists(st.integers(0, 8), min_size=4, max_size=4), jobs=crowds)
def test_distant_maintenance_changes_no_decision(policy, frees, jobs):
    """The maintenance is a year ahead: the engine handles windows and must reach the same decisions."""
    far = [(9000, 1, {0, 1, 2, 3})]

    with_it, without = (LIVE_POLICIES[policy](crowded(frees, jobs, windows)) for windows in (far, []))

    assert with_it.starts == without.starts


@given(frees=st.lists(st.integers(0, 8), min_size=4, max_size=4), jobs=crowds, windows=st.lists(spans, max_size=2))
def test_every_draw_of_an_estimate_is_a_possible_start(frees, jobs, windows):
    now = crowded(frees, jobs, windows)

    for number, one in start_estimates(now, POLICY_RULES["easy"], draws=1).items():
        need = next(job.need for job in now.waiting if job.id == number)
        shut = {node for one_of in now.windows if one_of.start <= one.p50 < one_of.end for node in one_of.nodes}
        assert len({node.id for node in now.nodes} - shut) >= need.nodes
