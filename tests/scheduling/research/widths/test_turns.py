"""Policies that let jobs of fixed width take turns."""

from collections import Counter
from dataclasses import replace

import pytest

from scheduling.research.widths.equal_delays import EqualDelays
from scheduling.research.widths.most_steps import MostSteps
from scheduling.research.widths.shockwave import ROUNDS, FairProgress, PlannedJob, plan_within
from scheduling.research.widths.turns import EqualTime
from scheduling.research.widths.values import NOWHERE
from tests.scheduling.research.widths.widths_make import ROUND_S, job, view


def rounds_run(policy, jobs, rounds, **cluster):
    """In how many rounds each job runs."""
    ran = Counter()
    for _ in range(rounds):
        places = policy.places(view(*jobs, **cluster))
        ran.update(list(places))
        jobs = [replace(each, places=places.get(each.number, NOWHERE)) for each in jobs]
    return ran


def test_jobs_of_any_width_get_equal_time():
    jobs = [job(0, requested=4), job(1, requested=1), job(2, requested=4)]

    ran = rounds_run(EqualTime(), jobs, 30, nodes=1)

    assert ran[0] == pytest.approx(ran[2], abs=1)
    assert ran[1] >= ran[0]


def test_job_that_comes_to_a_full_cluster_gets_its_part_at_once():
    jobs = [job(number, requested=8) for number in range(11)]
    policy = EqualTime()
    rounds_run(policy, jobs[:10], 100, nodes=8)

    assert rounds_run(policy, jobs, 22, nodes=8)[10] == pytest.approx(22 * 32 / 88, abs=1)


def test_job_that_used_idle_gpus_does_not_pay_for_it_later():
    idle, other = job(0, requested=4, exponent=0.2), job(1, requested=4, exponent=0.1)
    policy = MostSteps()
    rounds_run(policy, [job(2, requested=4, exponent=1.0), idle], 50, nodes=2)

    assert rounds_run(policy, [idle, other], 5, nodes=1)[0] >= 3


def test_job_that_runs_goes_on_if_as_much_is_due_to_both():
    running = job(1, requested=4, places=((0, 4),))

    assert set(EqualTime().places(view(job(0, requested=4), running, nodes=1))) == {1}


def test_gpus_without_a_fraction_are_used():
    assert set(MostSteps().places(view(job(0, requested=3), job(1, requested=2), job(2), nodes=1))) == {0, 2}


def test_job_with_most_steps_per_gpu_runs_all_the_time():
    slow, fast = job(0, requested=4, exponent=0.2), job(1, requested=4, exponent=1.0)

    assert rounds_run(MostSteps(), [slow, fast], 5, nodes=1) == {1: 5}


def test_late_job_gets_more_time():
    late, early = (job(number, requested=4, age_s=age_s, work=4000.0) for number, age_s in enumerate((20_000.0, 0.0)))

    fractions = EqualDelays().fractions(view(late, early, nodes=1))

    assert fractions[0] > 0.9 > 0.1 > fractions[1] > 0


def test_fractions_for_equal_delays_use_all_gpus():
    jobs = [job(number, requested=wide, age_s=0.0, work=1e5) for number, wide in enumerate((1, 2, 4, 4))]

    fractions = EqualDelays().fractions(view(*jobs))

    assert sum(fractions[each.number] * each.requested for each in jobs) == pytest.approx(8.0)


def test_longest_job_never_waits_if_it_decides_when_all_end():
    # The long one has 30 rounds left, and the others 2 each: too many to run next to it in 20 rounds
    long = job(12, requested=4, work=4 * 30 * ROUND_S, age_s=0.0)
    short = [job(number, requested=4, work=4 * 2 * ROUND_S, age_s=0.0) for number in range(12)]

    assert rounds_run(FairProgress(), [*short, long], 6)[12] == 6


def test_late_short_job_goes_before_others():
    late = job(0, requested=4, work=4 * ROUND_S, age_s=50 * ROUND_S)
    others = [job(number, requested=4, work=4 * 2 * ROUND_S, age_s=0.0) for number in range(1, 4)]

    assert set(FairProgress().places(view(*others, late, nodes=1))) == {0}


def planned(number, left_rounds, requested=1):
    left_s = left_rounds * ROUND_S
    return PlannedJob(job(number, requested=requested), ROUND_S, left_s, left_s, 1.0)


def test_plan_meets_the_limit_before_it_shares_the_rest():
    rounds = plan_within([planned(0, 25), planned(1, 5)], 1, 15 * ROUND_S)

    assert rounds == {0: 10 + 5, 1: 5}


def test_plan_has_no_more_rounds_than_gpus():
    jobs = [planned(number, 40, requested) for number, requested in enumerate((1, 2, 4, 8))]

    rounds = plan_within(jobs, 8, 20 * ROUND_S)

    assert sum(rounds[each.job.number] * each.job.requested for each in jobs) <= 8 * ROUNDS
    assert max(rounds.values()) <= ROUNDS


def test_plan_is_kept_until_a_job_comes():
    """The newcomer has waited for a long time, so a new plan starts it."""
    running, waiting = (job(number, requested=4, work=4 * 9 * ROUND_S, age_s=60.0) for number in range(2))
    policy = FairProgress()
    first = policy.places(view(running, waiting, nodes=1))
    holder = next(iter(first))
    jobs = [replace(each, places=first.get(each.number, NOWHERE)) for each in (running, waiting)]

    assert policy.places(view(*jobs, nodes=1)) == first

    late = job(2, requested=4, work=4 * ROUND_S, age_s=500 * ROUND_S)
    stopped = [replace(each, places=NOWHERE) for each in jobs]

    assert holder not in policy.places(view(*stopped, late, nodes=1))


def test_plan_needs_to_know_what_is_left():
    with pytest.raises(ValueError, match="shockwave needs the time that is left for each job; job 0 has no forecast"):
        FairProgress().places(view(job(0, work=float("inf"))))


def test_empty_cluster_has_no_plan():
    assert FairProgress().places(view()) == {}
