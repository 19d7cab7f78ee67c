"""ElasticFlow and EDF: deadlines of jobs with elastic widths."""

from dataclasses import replace

import numpy as np
import pytest

from scheduling.research.widths.earliest_deadline import EarliestDeadline
from scheduling.research.widths.elasticflow import GuaranteedDeadlines, Timetable, constant_rounds
from scheduling.research.widths.replay import ElasticJob, ElasticSetting, NodeGroup, replay_elastic
from scheduling.research.widths.scaling import ScalingCurve
from scheduling.research.widths.table_jobs import TableJob
from scheduling.research.widths.values import width
from tests.scheduling.research.widths.widths_make import ROUND_S, job, view

FREE_RESTARTS = ElasticSetting(groups=(NodeGroup(2, 4),), round_s=60.0, restart_s=0.0)
DOUBLE = (1.0, 2.0, 4.0, 8.0)  # steps per second on 1, 2, 4 and 8 GPUs


def widths(places):
    return {number: width(taken) for number, taken in places.items() if taken}


def table_job(submit_s, steps, *, deadline_s=np.inf, speeds=DOUBLE, gpus=1):
    model = TableJob(2 ** np.arange(len(speeds)), np.array(speeds), steps)
    return ElasticJob(submit_s=submit_s, gpus=gpus, models=(model,), deadline_s=deadline_s)


def ends(jobs, policy, setting=FREE_RESTARTS):
    return replay_elastic(jobs, policy, setting).ended_s.tolist()


# Widths


def test_curve_leaves_out_widths_that_are_not_faster():
    model = TableJob(np.array([1, 2, 4, 8]), np.array([1.0, 2.0, 1.5, 2.5]), 10.0)
    uneven = replace(job(0), forecast=model.forecast(0.0))

    curve = ScalingCurve.of(uneven, view(uneven))

    assert (curve.widths.tolist(), curve.speeds.tolist()) == ([0, 1, 2, 8], [0.0, 1.0, 2.0, 2.5])
    assert ScalingCurve.of(job(0, widest=5), view(job(0))).widths.tolist() == [0, 1, 2, 4]


def test_change_of_width_costs_a_restart_and_the_present_width_does_not():
    running = ScalingCurve.of(job(0, places=((0, 2),)), view(job(0)))
    seconds = np.full(3, 100.0)

    assert running.progress(np.array([2, 2, 3]), seconds).tolist() == [200.0, 400.0, 400.0 + 4 * 70.0]
    assert running.progress(np.array([0, 2, 2]), seconds).tolist() == [0.0, 140.0, 340.0]


def test_job_that_is_restarting_is_slow_at_first():
    restarting = ScalingCurve.of(job(0, places=((0, 2),), restarting=True), view(job(0)))

    assert restarting.progress(np.array([2, 2]), np.full(2, 100.0)).tolist() == [140.0, 340.0]


# The timetable


def test_job_is_as_narrow_as_its_deadline_permits():
    """400 steps within 4 rounds of 120 s, of which 30 s are a start: on one GPU 450 steps."""
    relaxed, urgent = job(0, work=400.0, deadline=4 * ROUND_S), job(1, work=400.0, deadline=2 * ROUND_S)

    def narrowest(wanted):
        seen = view(wanted)
        return Timetable(seen).narrowest(ScalingCurve.of(wanted, seen)).tolist()

    assert (narrowest(relaxed), narrowest(urgent)) == ([1, 1, 1, 1], [2, 2])


def test_widths_change_where_others_leave_gpus():
    wanted = job(0, work=980.0, deadline=3 * ROUND_S)
    seen = view(wanted)
    table = Timetable(seen, {7: np.array([7, 6])})

    # 90 steps on one GPU and 180 on two. Four would add 360, eight 720
    assert table.narrowest(ScalingCurve.of(wanted, seen)).tolist() == [1, 2, 8]


def test_deadline_cuts_its_last_round():
    wanted = job(0, work=140.0, deadline=ROUND_S + 50.0)
    seen = view(wanted)

    assert Timetable(seen).narrowest(ScalingCurve.of(wanted, seen)).tolist() == [1, 1]


def test_deadline_that_cannot_be_met_has_no_widths():
    wanted = job(0, work=2000.0, deadline=ROUND_S)
    seen = view(wanted)

    assert Timetable(seen).narrowest(ScalingCurve.of(wanted, seen)) is None


def test_constant_rounds_end_with_the_first_change():
    assert [constant_rounds(np.array(row)) for row in ([2, 2, 1], [3], [0, 0, 4, 4])] == [2, 1, 2]


# Admission


def test_job_that_would_make_another_one_late_is_refused():
    policy = GuaranteedDeadlines()
    first = job(0, work=8 * 90.0, deadline=ROUND_S)
    assert policy.refused([view(first)]) == set()

    second = job(1, work=90.0, deadline=ROUND_S)

    assert policy.refused([view(first, second)]) == {1}


def test_earlier_deadline_is_admitted_if_the_later_one_can_wait():
    policy = GuaranteedDeadlines()
    later = job(0, work=8 * 90.0, deadline=2 * ROUND_S + 40.0)
    urgent = job(1, work=8 * 90.0, deadline=ROUND_S)
    policy.refused([view(later)])
    seen = view(later, urgent)

    assert policy.refused([seen]) == set()
    assert widths(policy.places(seen)) == {1: 8}


def test_job_without_a_deadline_is_never_refused():
    assert GuaranteedDeadlines().refused([view(job(0, work=1e9))]) == set()


def test_nodes_without_a_power_of_two_of_gpus_are_refused():
    with pytest.raises(ValueError, match="a power of two of GPUs; these have 6"):
        GuaranteedDeadlines().refused([view(job(0), node_gpus=6)])


# What is left


def decided(*jobs, **cluster):
    policy, seen = GuaranteedDeadlines(), view(*jobs, **cluster)
    assert policy.refused([seen]) == set()
    return widths(policy.places(seen))


def test_gpus_that_no_deadline_needs_go_to_waiting_jobs_first():
    urgent = job(0, work=400.0, deadline=2 * ROUND_S)

    assert decided(urgent, job(1, widest=1), job(2, widest=1), nodes=1) == {0: 2, 1: 1, 2: 1}


def test_jobs_without_a_deadline_get_nothing_that_a_deadline_needs():
    assert decided(job(0), job(1, work=8 * 90.0, deadline=ROUND_S)) == {1: 8}


def test_job_that_scales_best_gets_more():
    narrow = job(2, widest=1)

    assert decided(job(0, exponent=0.3), job(1, exponent=0.9), narrow, nodes=1) == {0: 1, 1: 2, 2: 1}
    assert decided(job(0, exponent=0.9), job(1, exponent=0.3), narrow, nodes=1) == {0: 2, 1: 1, 2: 1}


def test_wider_start_still_meets_the_deadline():
    """Alone, the job gets all GPUs."""
    assert ends([table_job(0, 960.0, deadline_s=1000.0)], GuaranteedDeadlines()) == [pytest.approx(120.0)]


def test_widths_hold_until_jobs_come_or_end_or_the_timetable_changes():
    jobs = [table_job(0, 600.0 * 8, deadline_s=6000.0), table_job(0, 1e4), table_job(600, 600.0 * 8, deadline_s=1500.0)]

    outcome = replay_elastic(jobs, GuaranteedDeadlines(), FREE_RESTARTS)

    assert outcome.ended_s[0] <= 6000.0 and outcome.ended_s[2] <= 1500.0
    assert outcome.restarts <= 8 and outcome.rounds > 20


# Whole replays


def random_jobs(random, count, *, best_effort=0.3):
    """Jobs whose speed grows with their width like 1, 2 ** power, 4 ** power, …, each at most as much as before."""
    submitted = np.sort(random.random(count)) * 6_000.0
    for submit_s in submitted.tolist():
        gains = np.sort(1.0 + random.random(3))[::-1]
        speeds = np.cumprod([1.0, *gains])
        steps = random.integers(20, 4000)
        deadline_s = submit_s + 60.0 + steps / speeds[-1] * random.uniform(0.8, 6.0)
        is_best_effort = random.random() < best_effort
        yield table_job(
            submit_s, float(steps), speeds=tuple(speeds), deadline_s=np.inf if is_best_effort else deadline_s
        )


@pytest.mark.parametrize("seed", range(12))
def test_admitted_job_never_misses_its_deadline(seed):
    jobs = list(random_jobs(np.random.default_rng(seed), 60))

    ended_s = replay_elastic(jobs, GuaranteedDeadlines(), FREE_RESTARTS).ended_s

    deadlines = np.array([job.deadline_s for job in jobs])
    refused = np.isnan(ended_s)
    assert 0 < refused.sum() < len(jobs) / 2
    assert not refused[np.isinf(deadlines)].any()
    assert (ended_s[~refused] <= deadlines[~refused] + 1e-3).all()


@pytest.mark.parametrize("seed", range(4))
def test_more_deadlines_are_met_than_by_earliest_deadline_first(seed):
    def met(policy):
        jobs = list(random_jobs(np.random.default_rng(seed), 60, best_effort=0.0))
        return sum(replay_elastic(jobs, policy, FREE_RESTARTS).ended_s <= [job.deadline_s + 1e-3 for job in jobs])

    assert met(GuaranteedDeadlines()) > met(EarliestDeadline())


# EDF


def test_earliest_deadline_gets_all_the_gpus_that_make_it_faster():
    jobs = job(0, deadline=900.0), job(1, deadline=500.0, widest=5), job(2)

    assert widths(EarliestDeadline().places(view(*jobs))) == {1: 4, 0: 4}


def test_job_after_the_deadlines_gets_what_fits():
    assert widths(EarliestDeadline().places(view(job(0), job(1, deadline=500.0, widest=2)))) == {1: 2, 0: 4}
