"""Deadlines in replays: `edf`, `chronus`, and the timetable of guaranteed jobs."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmeweb.common.errors import InvalidField
from scheduling.engine.cluster import NodeView, ResourceRequest
from scheduling.engine.engine import Engine
from scheduling.engine.job import EngineJob, RequestGroup
from scheduling.engine.policies import POLICY_RULES
from scheduling.engine.resources import NodeResources
from scheduling.research.queue.chronus import ChronusRules, LeasePlan
from scheduling.whatif.replay.kernel import Arrivals, replay

NEVER = math.inf


def replayed(rules, jobs, gpus=4):
    """The ends of jobs of (submission, run time, GPUs, deadline) on one node."""
    nodes = [NodeView(id=1, name="n", gpus=gpus, free_gpus=tuple(range(gpus)), free_cpus=0, free_memory_mb=0)]
    engine = Engine(NodeResources(nodes), rules)
    columns = {name: [0] * len(jobs) for name in ("users", "names", "similar", "kinds")}
    arrivals = Arrivals(
        submit_s=[float(submit) for submit, *_ in jobs],
        runtime_s=[float(run) for _, run, *_ in jobs],
        expected_s=[float(run) for _, run, *_ in jobs],
        groups=[engine.request_group(ResourceRequest(gpus=width, cpus=0)) for _, _, width, _ in jobs],
        deadlines=[float(deadline) for *_, deadline in jobs],
        **columns,
    )
    return replay(engine, arrivals).ended


def missed(ends, jobs):
    return [number for number, (end, job) in enumerate(zip(ends, jobs, strict=True)) if end > job[3]]


def edf():
    return POLICY_RULES["edf"]()


def test_edf_stops_a_job_with_a_later_deadline():
    assert replayed(edf(), [(0, 100, 4, 500), (10, 50, 4, 70)]) == [150, 60]


def test_edf_runs_jobs_without_a_deadline_last_and_in_order():
    assert replayed(edf(), [(0, 10, 4, NEVER), (0, 10, 4, NEVER), (5, 20, 4, 900)]) == [30, 40, 25]


def test_edf_does_not_stop_a_job_for_another_with_the_same_deadline():
    assert replayed(edf(), [(0, 100, 4, 300), (10, 100, 4, 300)]) == [100, 200]


def test_edf_works_for_a_late_job_first_and_chronus_does_not():
    jobs = [(0, 1200, 4, 1100), (0, 1200, 4, 2300)]

    assert missed(replayed(edf(), jobs), jobs) == [0, 1]
    assert missed(replayed(ChronusRules(), jobs), jobs) == [0]


def test_chronus_refuses_a_job_that_would_break_a_guarantee():
    jobs = [(0, 6000, 4, 7000), (600, 6000, 4, 7200)]

    assert missed(replayed(edf(), jobs), jobs) == [1]
    assert replayed(ChronusRules(), jobs) == [6000, 12_000]


def test_chronus_stops_a_best_effort_job_at_the_end_of_its_lease():
    ends = replayed(ChronusRules(), [(0, 6000, 4, NEVER), (600, 1000, 4, 6000)])

    assert ends == [7000, 2200]


def test_chronus_starts_a_job_within_a_lease_if_it_cannot_wait():
    ends = replayed(ChronusRules(), [(0, 6000, 4, NEVER), (600, 1000, 4, 1700)])

    assert ends == [7000, 1600]


def test_chronus_gives_what_is_left_to_the_smallest_best_effort_job():
    ends = replayed(ChronusRules(), [(0, 100, 4, NEVER), (1, 5000, 4, NEVER), (2, 50, 4, NEVER)])

    assert ends == [100, 5150, 150]


def test_length_of_a_lease_is_a_setting():
    jobs = [(0, 6000, 4, NEVER), (600, 1000, 4, 60_000)]

    assert replayed(ChronusRules.of({"lease_s": 3600}), jobs) == [7000, 4600]
    with pytest.raises(InvalidField, match="lease_s: 0 is not a number above 0"):
        ChronusRules.of({"lease_s": 0})


def test_plan_reserves_the_latest_slots():
    plan = LeasePlan(300.0, 4, 0.0)

    assert plan.add(job(deadline=3000), 600.0, 0.0) == 2400
    assert plan.add(job(deadline=3000), 600.0, 0.0) == 1800
    assert plan.add(job(deadline=900), 900.0, 0.0) == 0
    assert plan.add(job(deadline=900), 300.0, 0.0) is None


def test_plan_shares_slots_by_gpus():
    plan = LeasePlan(300.0, 4, 0.0)

    assert [plan.add(job(gpus=2, deadline=600), 600.0, 0.0) for _ in range(3)] == [0, 0, None]


def test_plan_admits_a_job_that_fits_between_the_borders_of_slots_if_it_starts_now():
    plan = LeasePlan(300.0, 4, 0.0)

    assert plan.add(job(deadline=1050), 800.0, 200.0) == 200
    assert plan.add(job(deadline=3000), 1500.0, 200.0) == 1500
    assert plan.add(job(deadline=1050), 100.0, 200.0) is None


def job(*, gpus=4, deadline):
    group = RequestGroup(ResourceRequest(gpus=gpus), 1, None, None, 0)
    made = EngineJob(0, group, 0.0, 1.0, 1.0)
    made.deadline = float(deadline)
    return made


JOBS = st.lists(
    st.tuples(st.integers(0, 4000), st.integers(60, 3000), st.sampled_from([1, 1, 2]), st.integers(1, 4)),
    min_size=2,
    max_size=10,
)


@given(JOBS)
def test_chronus_keeps_the_guarantee_of_a_single_admitted_job(drawn):
    """Best-effort jobs never make the only job with a deadline late."""
    submit, run, width, slack = drawn[0]
    jobs = [(submit, run, width, submit + slack * run + 600), *((*job[:3], NEVER) for job in drawn[1:])]
    jobs = sorted(jobs, key=lambda one: one[0])

    assert missed(replayed(ChronusRules(), jobs), jobs) == []


@given(JOBS)
def test_every_policy_with_deadlines_ends_every_job(drawn):
    jobs = sorted((submit, run, width, submit + slack * run) for submit, run, width, slack in drawn)

    for rules in (edf(), ChronusRules()):
        assert all(end >= job[0] + job[1] for end, job in zip(replayed(rules, jobs), jobs, strict=True))
