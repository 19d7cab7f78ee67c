import numpy as np
import pytest

from scheduling.research.rounds.allox import AlloX, first_jobs
from scheduling.research.rounds.finish_time import AwareFinishTimeFairness, FinishTimeFairness
from scheduling.research.rounds.gandiva import RandomPairs
from scheduling.research.rounds.least_attained import AwareLeastAttained, LeastAttained, PackedLeastAttained
from scheduling.research.rounds.max_sum import AwareMaxSum, MaxSum
from tests.scheduling.research.rounds.rounds_make import jobs, replayed, speeds, types, view

ALL = [
    LeastAttained,
    AwareLeastAttained,
    PackedLeastAttained,
    FinishTimeFairness,
    AwareFinishTimeFairness,
    MaxSum,
    AwareMaxSum,
    AlloX,
    RandomPairs,
]
# Class 0 is four times as fast on the fast type, class 1 hardly; sharing costs a quarter
ALONE = [(4, 1), (1.1, 1)]
SHARED = [[[3, 0.75], [3, 0.75]], [[0.8, 0.75], [0.8, 0.75]]]
TABLE = speeds(*ALONE, shared=SHARED)


def fractions(policy, *rows, table=TABLE, **fields):
    return policy().shares(view(table, *rows, **fields)).fractions.round(3).tolist()


def drawn_view(dice, *, gpus):
    rows = [
        (float(age), float(remaining), int(row), int(wide))
        for age, remaining, row, wide in zip(
            dice.integers(0, 9000, 12),
            dice.integers(1, 9000, 12),
            dice.integers(0, 2, 12),
            dice.choice(gpus, 12),
            strict=True,
        )
    ]
    return view(TABLE, *rows, gpus=types(3, 5))


@pytest.mark.parametrize("policy", ALL)
@pytest.mark.parametrize("seed", range(5))
def test_no_policy_gives_more_time_than_there_is(policy, seed):
    given = drawn_view(np.random.default_rng(seed), gpus=[1] if policy is AlloX else [1, 2])

    shares = policy().shares(given)

    assert (shares.fractions >= 0).all()
    of_types = (shares.fractions * given.gpus[shares.first][:, None]).sum(axis=0)
    assert (of_types <= given.types.counts + 1e-6).all()
    for job in range(len(given.numbers)):
        rows = (shares.first == job) | (shares.second == job)
        assert shares.fractions[rows].sum() <= 1 + 1e-6


@pytest.mark.parametrize("policy", ALL)
def test_every_policy_ends_all_jobs(policy):
    workload = jobs(*[(at * 40, 400, at % 2, 1) for at in range(12)])

    outcome = replayed(policy(), workload, gpus=types(2, 2), table=TABLE)

    assert not np.isnan(outcome.ended_s).any()


def test_las_gives_all_jobs_the_same_time_on_all_types():
    assert fractions(LeastAttained, (0, 9, 0, 1), (0, 9, 1, 1), (0, 9, 1, 1), (0, 9, 0, 1)) == [[0.25, 0.25]] * 4


@pytest.mark.parametrize(
    ("wide", "total", "expected"),
    [((1, 1, 4), 6, [1, 1, 1]), ((1, 1, 4), 3, [1, 1, 0.25]), ((2, 4), 2, [0.5, 0.25]), ((1, 4), 9, [1, 1])],
    ids=["all-fit", "wide-one-gets-the-rest", "equal-gpus", "more-than-enough"],
)
def test_las_gives_jobs_the_same_gpus_over_time(wide, total, expected):
    found = fractions(LeastAttained, *[(0, 9, 0, gpus) for gpus in wide], gpus=types(total, 0))

    assert [fast for fast, _ in found] == expected


def test_aware_las_gives_the_fast_type_to_the_jobs_that_gain_most():
    """Two jobs of each class. All reach the same share: 1.6 · 0.378 = 1.048 · 0.122 + 0.952 · 0.5."""
    found = fractions(AwareLeastAttained, (0, 9, 0, 1), (0, 9, 0, 1), (0, 9, 1, 1), (0, 9, 1, 1))

    assert found == [[0.378, 0], [0.378, 0], [0.122, 0.5], [0.122, 0.5]]


def test_packed_las_lets_jobs_share_if_the_smallest_share_grows():
    """One GPU for two jobs: in turns each reaches half of its speed, together three quarters."""
    given = view(TABLE, (0, 9, 0, 1), (0, 9, 1, 1), gpus=types(1, 0))

    shares = PackedLeastAttained().shares(given)

    assert (shares.first[-1], shares.second[-1]) == (0, 1)
    assert shares.fractions[-1, 0] > 0.95


def test_packed_las_never_lets_a_wide_and_a_narrow_job_share():
    given = view(TABLE, (0, 9, 0, 1), (0, 9, 1, 2), gpus=types(2, 0))

    assert len(PackedLeastAttained().shares(given).first) == 2


@pytest.mark.parametrize("policy", [FinishTimeFairness, AwareFinishTimeFairness])
def test_finish_time_fairness_prefers_the_job_that_has_waited(policy):
    waited, new = fractions(policy, (900, 400, 0, 1), (0, 400, 0, 1), gpus=types(1, 0))

    assert waited[0] > 0.6 > 0.4 > new[0] > 0


def test_finish_time_fairness_remembers_what_an_equal_part_would_have_done():
    """Both jobs are equally old and have as much left. The one that has done more has used up its advantage."""
    policy = FinishTimeFairness()
    policy.shares(view(TABLE, (0, 4000, 0, 1), (0, 400, 0, 1), gpus=types(1, 0)))

    had_more, had_less = policy.shares(view(TABLE, (900, 400, 0, 1), (900, 400, 0, 1), gpus=types(1, 0))).fractions

    assert had_less[0] > had_more[0]


def test_max_sum_starves_the_job_with_slow_steps():
    assert fractions(MaxSum, (0, 9, 0, 1), (0, 9, 1, 1), gpus=types(1, 0)) == [[1, 0], [0, 0]]


def test_aware_max_sum_uses_the_type_on_which_each_job_is_fast():
    assert fractions(AwareMaxSum, (0, 9, 0, 1), (0, 9, 1, 1)) == [[1, 0], [0, 1]]


def test_allox_plans_the_shortest_sum_of_completion_times():
    """Jobs of 1, 2 and 6 s on one GPU run in this order: 1 + 3 + 9."""
    run_time = np.array([[6.0], [1.0], [2.0]])

    assert first_jobs(run_time, np.array([0])) == [(1, 0)]


def test_allox_takes_a_slow_gpu_rather_than_wait():
    assert sorted(first_jobs(np.array([[4.0, 5.0], [4.0, 9.0]]), np.array([0, 1]))) == [(0, 1), (1, 0)]


def test_allox_plans_only_the_oldest_jobs_if_there_are_too_many():
    """63 jobs on a thousand GPUs are four million costs."""
    planned = first_jobs(np.full((100, 1), 10.0), np.zeros(1000, int))

    assert {job for job, _ in planned} == set(range(63))


def test_allox_leaves_a_job_on_its_gpu_until_its_end():
    policy = AlloX()
    policy.shares(view(TABLE, (0, 4000, 0, 1), gpus=types(1, 0)))

    after = policy.shares(view(TABLE, (100, 3600, 0, 1), (0, 4, 0, 1), gpus=types(1, 0)))

    assert after.fractions[:, 0].tolist() == [1, 0]


def test_random_pairs_share_gpus_only_while_there_are_too_few():
    enough = RandomPairs().shares(view(TABLE, *[(0, 9, 0, 1)] * 2))
    too_few = RandomPairs().shares(view(TABLE, *[(0, 9, 0, 1)] * 3))

    assert len(enough.first) == 2
    assert len(too_few.first) == 4
    assert too_few.fractions[too_few.second >= 0].sum() == pytest.approx(1)


def test_random_pairs_stay_together():
    policy, given = RandomPairs(), view(TABLE, *[(0, 9, 0, 1)] * 8)

    first, again = (policy.shares(given) for _ in range(2))

    assert (first.first == again.first).all() and (first.second == again.second).all()


def test_random_pairs_that_cannot_run_together_are_drawn_again():
    table = speeds(*ALONE, shared=np.zeros((2, 2, 2)))
    policy, given = RandomPairs(), view(table, *[(0, 9, 0, 1)] * 20)

    first, again = (policy.shares(given) for _ in range(2))

    assert sorted(zip(first.first, first.second, strict=True)) != sorted(zip(again.first, again.second, strict=True))
