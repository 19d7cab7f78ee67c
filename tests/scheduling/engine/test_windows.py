"""Maintenance in the engine: who may still start on nodes that must be empty later, who waits, until when and why."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.engine.blockers import BlockerKind
from scheduling.engine.cluster import MAINTENANCE, ClosedNode, ClusterSnapshot, ResourceRequest
from scheduling.engine.policies import LIVE_POLICIES, POLICY_RULES
from scheduling.engine.run_time_estimates import PastJob, RunTimeEstimates
from scheduling.engine.why import explain_wait
from scheduling.engine.windows import MaintenanceBar, NodeWindow, round_up_run_time
from scheduling.replay.start_estimates import start_estimates
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
def test_who_is_over_before_it_begins_starts_and_who_might_not_be_waits_for_it(policy):
    short, exact, long = (
        waiting(number, gpus=8, time_limit=limit) for number, limit in ((1, HOUR), (2, 6 * HOUR), (3, 6.1 * HOUR))
    )

    told = decide(policy, short, exact, long, windows=(window(),))

    assert started(told) == [1, 2]
    (wait,) = told.waits
    assert (wait.job_id, wait.reason) == (3, "ReqNodeNotAvail")
    assert wait.why.startswith(
        "The nodes it would fit on are reserved for maintenance cooling from 21 Nov 18:00 until 21 Nov 22:00 UTC"
    )


@every_policy
def test_whoever_is_too_long_takes_the_other_nodes(policy):
    told = decide(policy, waiting(1, gpus=8, time_limit=2 * DAY), windows=(window(1, 2, 3),))

    assert where(told) == {1: [4]}


@every_policy
def test_without_a_limit_it_starts_before_the_lead_and_not_within_it(policy):
    endless = waiting(1, gpus=8)

    assert started(decide(policy, endless, windows=(window(start=25 * HOUR, end=30 * HOUR),))) == [1]
    told = decide(policy, endless, windows=(window(start=23 * HOUR, end=30 * HOUR),))
    assert started(told) == []
    assert "as it has no time limit, it does not start there in the 1-00:00:00 before" in told.waits[0].why


@every_policy
def test_what_jobs_like_it_took_counts_where_there_is_no_limit(policy):
    usually_short, usually_long = waiting(1, gpus=8, usual=HOUR), waiting(2, gpus=8, usual=7 * HOUR)

    assert started(decide(policy, usually_short, usually_long, windows=(window(),))) == [1]


@every_policy
def test_nothing_starts_in_it_and_everything_after_it(policy):
    job = waiting(1, gpus=8, time_limit=timedelta(minutes=1))

    assert started(decide(policy, job, windows=(window(start=-HOUR, end=HOUR),))) == []
    assert started(decide(policy, job, windows=(window(start=-2 * HOUR, end=timedelta(0)),))) == [1]


@every_policy
def test_nodes_that_are_shut_for_it_are_in_no_decision_and_its_sentence_says_until_when(policy):
    shut = tuple(ClosedNode(node=one, back=MAINTENANCE) for one in NODES)
    told = decide(
        policy, waiting(1, gpus=8, time_limit=HOUR), nodes=(), closed=shut, windows=(window(start=-HOUR, end=2 * HOUR),)
    )

    assert started(told) == []
    assert (told.waits[0].reason, told.waits[0].why) == (
        "ReqNodeNotAvail",
        "The nodes it would fit on are reserved for maintenance cooling from 21 Nov 11:00 until 21 Nov 14:00 UTC.",
    )


def test_a_maintenance_that_holds_back_the_first_lets_the_short_ones_pass():
    """The first can only start after it, so whoever is over before delays nobody."""
    wide = waiting(1, nodes=4, gpus=8, time_limit=2 * DAY)
    short = waiting(2, gpus=8, time_limit=HOUR)

    for policy in ("easy", "conservative", "acme"):
        told = decide(policy, wide, short, windows=(window(),))
        assert started(told) == [2], policy


def test_who_is_promised_the_time_after_it_is_not_delayed_by_those_who_run_on_elsewhere():
    """Node 4 is not in it; a job of two days there would keep the wide one waiting beyond the end."""
    wide = waiting(1, nodes=4, gpus=8, time_limit=DAY)
    long = waiting(2, gpus=8, time_limit=2 * DAY)

    assert started(decide("easy", wide, long, windows=(window(1, 2, 3),))) == []
    assert started(decide("conservative", wide, long, windows=(window(1, 2, 3),))) == []


def test_why_names_the_maintenance_and_a_limit_that_would_do():
    told = explain_wait(
        picture(waiting(1, gpus=8, time_limit=DAY), windows=(window(),)), POLICY_RULES["easy"], 1, lambda team: True
    )

    assert [one.kind for one in told.blockers] == [BlockerKind.MAINTENANCE]
    assert "its time limit were 06:00:00 instead of 1-00:00:00" in told.changes[0].why


def test_who_lacks_gpus_anyway_is_told_so():
    full = [node(number, free=0) for number in (1, 2, 3, 4)]

    told = decide("easy", waiting(1, gpus=8, time_limit=DAY), nodes=full, windows=(window(1),))

    assert told.waits[0].reason == "Resources"


def test_an_estimate_lies_behind_the_maintenance_that_the_job_cannot_be_over_before():
    short, long = waiting(1, gpus=8, time_limit=HOUR), waiting(2, gpus=8, time_limit=8 * HOUR)

    told = start_estimates(picture(short, long, windows=(window(),)), POLICY_RULES["easy"])

    assert told[1].p50 == NOON
    assert (told[2].p50, told[2].p90) == (NOON + 10 * HOUR, NOON + 10 * HOUR)


@pytest.mark.parametrize("policy", ["easy", "conservative", "fifo-skip", "acme"])
def test_an_estimate_during_it_is_its_end(policy):
    shut = tuple(ClosedNode(node=one, back=MAINTENANCE) for one in NODES)
    now = picture(
        waiting(1, gpus=8, time_limit=HOUR), nodes=(), closed=shut, windows=(window(start=-HOUR, end=2 * HOUR),)
    )

    assert start_estimates(now, POLICY_RULES[policy])[1].p50 == NOON + 2 * HOUR


def test_an_estimate_of_a_short_one_that_comes_late_in_the_line_lies_behind_it_too():
    """All is taken for five and a half hours; then an hour is too long."""
    runs = tuple(
        held(100 + number, number, 8, started_at=NOON, time_limit=5.5 * HOUR, user="u", title="t")
        for number in (1, 2, 3, 4)
    )
    past = RunTimeEstimates([PastJob(user="u", title="t", gpus=8, ran_s=5.5 * 3600)] * 3)
    full = [node(number, free=0) for number in (1, 2, 3, 4)]
    job = waiting(1, gpus=8, time_limit=HOUR)

    told = start_estimates(
        picture(job, nodes=full, running=runs, windows=(window(),)), POLICY_RULES["easy"], durations=past
    )

    assert told[1].p90 == NOON + 10 * HOUR


def test_lengths_are_rounded_up_but_never_past_the_next_window():
    bars = [MaintenanceBar.of(window(start=after), {}, (), NOON) for after in (HOUR, 3 * HOUR)]
    now = NOON.timestamp()

    for runs_s in (1.0, 899.0, 3599.0, 3600.0, 3601.0, 10_799.0, 10_800.0, 12_345.0, 200_000.0):
        longer = round_up_run_time(bars, runs_s, now)
        assert runs_s <= longer <= max(runs_s + 900, runs_s * 1.07)
        assert [bar.stops(runs_s, now) for bar in bars] == [bar.stops(longer, now) for bar in bars]


def test_a_need_without_a_maintenance_says_nothing_of_time():
    """Else jobs of all lengths would stand in lines of their own, and a turn would cost more for nothing."""
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
def test_nobody_starts_where_he_would_be_during_a_maintenance(policy, frees, jobs, windows):
    now = crowded(frees, jobs, windows)
    asked = {job.id: job for job in now.waiting}

    told = LIVE_POLICIES[policy](now)

    for start in told.starts:
        job = asked[start.job_id]
        takes = job.time_limit or job.usual or 2 * HOUR  # the lead
        for one in now.windows:
            is_clear = one.end <= NOON or (one.start > NOON and NOON + takes <= one.start)
            assert is_clear or one.nodes.isdisjoint(start.places)
    assert sorted([one.job_id for one in (*told.starts, *told.waits)]) == sorted(asked)


@every_policy
@given(frees=st.lists(st.integers(0, 8), min_size=4, max_size=4), jobs=crowds)
def test_a_maintenance_that_nobody_reaches_into_changes_no_decision(policy, frees, jobs):
    """A year ahead: the engine thinks with windows, and must come to the same."""
    far = [(9000, 1, {0, 1, 2, 3})]

    with_it, without = (LIVE_POLICIES[policy](crowded(frees, jobs, windows)) for windows in (far, []))

    assert with_it.starts == without.starts


@given(frees=st.lists(st.integers(0, 8), min_size=4, max_size=4), jobs=crowds, windows=st.lists(spans, max_size=2))
def test_every_draw_of_an_estimate_is_a_time_at_which_it_might_start(frees, jobs, windows):
    now = crowded(frees, jobs, windows)

    for number, one in start_estimates(now, POLICY_RULES["easy"], draws=1).items():
        need = next(job.need for job in now.waiting if job.id == number)
        shut = {node for one_of in now.windows if one_of.start <= one.p50 < one_of.end for node in one_of.nodes}
        assert len({node.id for node in now.nodes} - shut) >= need.nodes
