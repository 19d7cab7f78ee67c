import math

import numpy as np
import pytest

from tests.scheduling.research.rounds.rounds_make import FixedShares, jobs, replayed, speeds, types


def ends(outcome):
    return outcome.ended_s.tolist()


def test_job_runs_whole_steps_round_after_round():
    outcome = replayed(FixedShares([1, 0]), jobs((0, 250, 0, 1)), table=speeds((1, 1)))

    assert (ends(outcome), outcome.rounds) == ([250.0], 3)


def test_last_step_of_a_round_is_never_cut():
    """0.35 steps per second are 35 steps in 100 s; a step of 3 s leaves 1 s of the round unused."""
    outcome = replayed(FixedShares([1, 0]), jobs((0, 66, 0, 1)), table=speeds((1 / 3, 1)))

    assert ends(outcome) == [pytest.approx(198.0)]


def test_type_without_a_claim_is_not_left_idle():
    outcome = replayed(FixedShares([1, 0], [1, 0]), jobs((0, 100, 0, 1), (0, 100, 0, 1)), table=speeds((1, 1)))

    assert ends(outcome) == [100.0, 100.0]


def test_two_jobs_take_turns_in_proportion_to_their_fractions():
    fractions = FixedShares([0.75, 0], [0.25, 0])

    outcome = replayed(fractions, jobs((0, 600, 0, 1), (0, 600, 0, 1)), gpus=types(1, 0), table=speeds((1, 1)))

    # While both run, the first gets three rounds of four
    assert ends(outcome) == [800.0, 1200.0]


def test_job_never_runs_on_two_types_at_once():
    outcome = replayed(FixedShares([0.5, 0.5]), jobs((0, 400, 0, 1)), table=speeds((2, 2)))

    assert (ends(outcome), outcome.busy_gpu_s) == ([200.0], 200.0)


def test_job_does_not_run_where_its_speed_is_zero():
    outcome = replayed(FixedShares([1, 0], [1, 0]), jobs((0, 100, 0, 1), (0, 100, 1, 1)), table=speeds((1, 0), (1, 0)))

    assert ends(outcome) == [100.0, 200.0]


def test_wide_job_needs_all_its_gpus():
    fractions = FixedShares([0.6, 0], [0.4, 0])
    workload = jobs((0, 100, 0, 2), (0, 100, 0, 3))

    outcome = replayed(fractions, workload, gpus=types(4, 0), table=speeds((1, 1)))

    assert (ends(outcome), outcome.busy_gpu_s) == ([100.0, 200.0], 500.0)


def test_pair_runs_at_its_shared_speeds_and_ends_separately():
    shared = [[[0.5, 0.5], [0.4, 0.4]], [[0.8, 0.8], [0.5, 0.5]]]
    table = speeds((1, 1), (1, 1), shared=shared)
    fractions = FixedShares([0, 0], [0, 0], pairs=[(0, 1, (1, 0))])

    outcome = replayed(fractions, jobs((0, 40, 0, 1), (0, 120, 1, 1)), gpus=types(1, 0), table=table)

    # 40 steps at 0.4 take the round; the other job has done 80 of its steps by then and goes on alone
    assert ends(outcome) == [100.0, pytest.approx(140.0)]


def test_policy_is_asked_when_jobs_come_or_end_but_not_too_often():
    policy = FixedShares([1, 0], [1, 0], [1, 0])
    workload = jobs((0, 1000, 0, 1), (50, 20, 0, 1), (150, 250, 0, 1))

    replayed(policy, workload, table=speeds((1, 1)), decision_s=250.0)

    assert policy.asked_at == [0.0, 300.0, 600.0]


def test_job_that_came_since_the_decision_uses_a_gpu_without_a_claim():
    policy = FixedShares([1, 0], [1, 0])
    workload = jobs((0, 300, 0, 1), (50, 100, 0, 1))

    outcome = replayed(policy, workload, table=speeds((1, 1)), decision_s=1e6)

    assert (policy.asked_at, ends(outcome)) == ([0.0], [300.0, 200.0])


def test_replay_skips_the_time_without_jobs():
    outcome = replayed(FixedShares([1, 0], [1, 0]), jobs((0, 10, 0, 1), (5000, 10, 0, 1)), table=speeds((1, 1)))

    assert (ends(outcome), outcome.rounds) == ([10.0, 5010.0], 2)


def test_replay_stops_when_the_watched_jobs_have_ended():
    workload = jobs((0, 100, 0, 1), (0, 500, 0, 1))

    outcome = replayed(FixedShares([1, 0], [0, 1]), workload, table=speeds((1, 1)), until=range(1))

    assert outcome.ended_s[0] == 100.0 and math.isnan(outcome.ended_s[1])


def test_more_gpus_than_exist_never_run():
    dice = np.random.default_rng(7)
    rows = [(at, 200, 0, int(dice.integers(1, 4))) for at in sorted(dice.integers(0, 2000, 30).tolist())]
    policy = FixedShares(*[[0.5, 0.5]] * 30)

    outcome = replayed(policy, jobs(*rows), gpus=types(3, 3), table=speeds((1, 0.5)))

    assert not np.isnan(outcome.ended_s).any()
    assert outcome.busy_gpu_s <= 6 * outcome.end_s


def test_equal_inputs_give_equal_results():
    workload = jobs(*[(at * 10, 300, 0, 1) for at in range(20)])

    first, second = (
        replayed(FixedShares(*[[0.3, 0.7]] * 20), workload, table=speeds((1, 0.5))).ended_s for _ in range(2)
    )

    assert (first == second).all()
