"""Start estimates: replaying the current state forward."""

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.lifecycle import JobKind
from scheduling.engine.cluster import ClusterSnapshot, QuotaView, ResourceRequest, RunningJob
from scheduling.engine.history import UNKNOWN_S, SchedulingHistory
from scheduling.engine.policies import POLICY_RULES
from scheduling.engine.run_time_estimates import PastJob, RunTimeEstimates, expected_remaining_s
from scheduling.whatif.replay import start_estimates as forecast
from scheduling.whatif.replay.start_estimates import ExactReplayLimits, only_gpus_are_short, start_estimates
from tests.make import NOON
from tests.scheduling.engine.test_engine import held, hours, node, waiting


def estimates(nodes, *jobs, policy="fifo", parts=(1.0,), **fields):
    picture = ClusterSnapshot(now=NOON, nodes=tuple(nodes), waiting=jobs, **fields)
    result = start_estimates(picture, POLICY_RULES[policy], durations=RunTimeEstimates(parts=parts), draws=5)
    return {job_id: (one.p50 - NOON, one.p90 - NOON) for job_id, one in result.items()}


def test_fitting_job_starts_now_and_the_next_after_its_limit():
    jobs = [waiting(n, gpus=8, time_limit=hours(2)) for n in (1, 2, 3)]

    result = estimates([node(1)], *jobs)

    assert [result[n][0] for n in (1, 2, 3)] == [hours(0), hours(2), hours(4)]


def test_running_job_releases_its_gpus_at_its_limit():
    result = estimates([node(1, free=4)], waiting(1, gpus=8), running=(held(9, 1, 4, time_limit=hours(3)),))

    assert result[1] == (hours(3), hours(3))


@pytest.mark.parametrize("policy", ["sjf", "qssf", "qssf-ml"])
def test_estimates_follow_the_order_of_predicted_run_times(policy):
    jobs = [waiting(n, gpus=8, time_limit=hours(9)) for n in (1, 2)]
    history = SchedulingHistory(predicted_s={1: 8 * 3600.0, 2: 3600.0, 9: 3600.0})
    running = (held(9, 1, 8, started_at=NOON, time_limit=hours(9)),)

    result = estimates([node(1, free=0)], *jobs, policy=policy, running=running, history=history)

    assert hours(0.5) < result[2][0] < hours(2)
    assert result[2][0] + hours(0.5) < result[1][0]


def test_p90_is_not_before_the_median():
    jobs = [waiting(n, gpus=8, time_limit=hours(2)) for n in range(1, 9)]

    result = estimates([node(1)], *jobs, parts=(0.1, 0.5, 1.0))

    assert all(p50 <= p90 for p50, p90 in result.values())
    assert result[8][0] < result[8][1]


def test_unreachable_quotas_are_ignored():
    running, jobs = (held(9, 1, 4, team="a"),), tuple(waiting(n, gpus=4, team="a") for n in (1, 2))
    quotas = tuple(QuotaView(team=team, kind=None, gpus=gpus) for team, gpus in (("a", 11), ("a", 12), ("b", 0)))
    reserving = QuotaView(team="b", kind=JobKind.PRETRAIN, gpus=8)

    def met(*nodes):
        picture = ClusterSnapshot(now=NOON, nodes=nodes, waiting=jobs, running=running, quotas=(*quotas, reserving))
        return forecast.binding_quotas(picture, {JobKind.PRETRAIN})

    assert met(node(1, free=4), node(2)) == (quotas[0], reserving)  # 4 held and 8 requested
    assert met(node(1, free=4)) == (reserving,)  # 8 GPUs in all
    assert met(node(2)) == (quotas[0], reserving)  # 8, and 4 on a node that accepts no jobs


@pytest.mark.parametrize("policy", ["fifo-skip", "easy", "acme"])
def test_unreachable_quota_changes_no_estimate(policy):
    jobs = [waiting(n, gpus=n % 7 + 1, team="ab"[n % 2], time_limit=hours(n % 5 + 1)) for n in range(30)]
    loose, tight = (tuple(QuotaView(team=team, kind=None, gpus=gpus) for team in "ab") for gpus in (16, 7))
    nodes = [node(1), node(2)]

    without = estimates(nodes, *jobs, policy=policy, parts=(0.2, 0.5, 1.0))

    assert estimates(nodes, *jobs, policy=policy, parts=(0.2, 0.5, 1.0), quotas=loose) == without
    assert estimates(nodes, *jobs, policy=policy, parts=(0.2, 0.5, 1.0), quotas=tight) != without


def test_quota_becomes_available_when_its_holder_ends():
    holder = RunningJob(
        id=9,
        name="r",
        team="t",
        kind=JobKind.OTHER,
        gpus=8,
        priority=0,
        started_at=NOON,
        time_limit=hours(1),
        places={2: 8},
    )
    nodes, quotas = [node(1), node(2, free=0)], (QuotaView(team="t", kind=None, gpus=8),)

    assert estimates(nodes, waiting(1, gpus=4), running=(holder,), quotas=quotas)[1][0] == hours(1)


def test_job_that_can_never_start_has_no_estimate():
    jobs = waiting(1, gpus=9), waiting(2, gpus=1, hold="user")

    assert estimates([node(1)], *jobs, policy="fifo-skip") == {}


@pytest.mark.parametrize("policy", ["fifo", "fifo-skip", "sjf", "easy"])
def test_priorities_affect_estimates(policy):
    jobs = waiting(1, gpus=8, time_limit=hours(1)), waiting(2, gpus=8, priority=1, time_limit=hours(1))

    result = estimates([node(1)], *jobs, policy=policy)

    assert (result[2][0], result[1][0]) == (timedelta(0), hours(1))


# many jobs


def crowd(count, policy="fifo", **limits):
    """Twice as many jobs as fit at once, several times over."""
    jobs = [waiting(n, gpus=1 + n % 8, time_limit=hours(1 + n % 5)) for n in range(count)]
    picture = ClusterSnapshot(now=NOON, nodes=tuple(node(n) for n in range(20)), waiting=tuple(jobs))
    result = start_estimates(picture, POLICY_RULES[policy], draws=5, limits=ExactReplayLimits(**limits))
    return [(result[n].p50 - NOON) / hours(1) for n in range(count)]


@pytest.mark.parametrize("policy", ["fifo", "easy"])
def test_estimates_on_the_grid_agree_with_exact_ones(policy):
    grid = crowd(1100, policy)
    exact = crowd(1100, policy, jobs=10**9)

    off = [abs(one - other) for one, other in zip(grid, exact, strict=True)]
    assert max(exact) > 20
    assert sum(off) / len(off) < 0.05 * max(exact)


def test_merged_nodes_give_similar_estimates():
    placed = crowd(600)
    counted = crowd(600, placed_nodes=0)

    # GPUs that are only counted are never scattered, so no job starts much later
    assert max(counted) <= max(placed) * 1.02
    assert max(counted) > 0.8 * max(placed)


def test_estimates_are_calibrated():
    """The outcome is one more draw from the same distribution: half start by the median, most by the P90."""
    jobs = tuple(waiting(n, gpus=1 + n % 8, time_limit=hours(1 + n % 5)) for n in range(120))
    picture = ClusterSnapshot(now=NOON, nodes=tuple(node(n) for n in range(3)), waiting=jobs)
    by_median, by_late = [], []
    for seed in range(12):
        result = start_estimates(picture, POLICY_RULES["fifo"], draws=forecast.MIN_DRAWS, seed=seed)
        (truth,) = [start_estimates(picture, POLICY_RULES["fifo"], draws=1, seed=1000 + seed)]
        later = range(40, 120)
        by_median += [truth[n].p50 <= result[n].p50 for n in later]
        by_late += [truth[n].p50 <= result[n].p90 for n in later]

    assert 0.3 < sum(by_median) / len(by_median) < 0.7
    assert sum(by_late) / len(by_late) > 0.7


def test_same_seed_gives_the_same_estimates():
    assert crowd(1100) == crowd(1100)


def test_cpus_count_if_they_can_be_short():
    greedy = [waiting(n, need=ResourceRequest(gpus=1, cpus=100), time_limit=hours(1)) for n in (1, 2)]
    modest = [waiting(n, need=ResourceRequest(gpus=1, cpus=16), time_limit=hours(1)) for n in (1, 2)]

    assert not only_gpus_are_short(ClusterSnapshot(now=NOON, nodes=(node(1),), waiting=tuple(greedy)))
    assert only_gpus_are_short(ClusterSnapshot(now=NOON, nodes=(node(1),), waiting=tuple(modest)))
    assert estimates([node(1)], *greedy)[2][0] == hours(1)
    assert estimates([node(1)], *modest)[2][0] == hours(0)


def test_job_without_gpus_keeps_cpus_in_the_replay():
    jobs = waiting(1, gpus=0), waiting(2, gpus=1)

    assert not only_gpus_are_short(ClusterSnapshot(now=NOON, nodes=(node(1),), waiting=jobs))


# run time estimates


def past(*ran_s, user="ada", title="train", gpus=8, limit_s=36_000.0):
    return [PastJob(user=user, title=title, gpus=gpus, ran_s=float(ran), limit_s=limit_s) for ran in ran_s]


def quantile(row, part):
    return row[int(part * len(row))]


def test_run_time_is_estimated_from_similar_jobs():
    durations = RunTimeEstimates(past(100, 200, 300))

    row = durations.waiting(waiting(1, gpus=8, user="ada", title="train", time_limit=hours(10)))

    assert (row[0], quantile(row, 0.5), row[-1]) == (100, 200, 300)


def test_estimated_run_time_never_exceeds_the_limit():
    durations = RunTimeEstimates(past(100, 9000, 9000))

    assert durations.waiting(waiting(1, gpus=8, user="ada", title="train", time_limit=hours(1)))[-1] == 3600


def test_other_sizes_count_until_there_are_enough_of_the_same():
    durations = RunTimeEstimates(past(100, 200, 300) + past(7, 7, 7, gpus=64))

    rows = [durations.waiting(waiting(1, gpus=g, user="ada", title="train", time_limit=hours(10))) for g in (8, 64, 2)]

    assert [row[-1] for row in rows[:2]] == [300, 7]
    assert (rows[2][0], rows[2][-1]) == (7, 300)


def test_unknown_user_is_estimated_from_limit_fractions():
    durations = RunTimeEstimates(past(*[9000] * 12))

    row = durations.waiting(waiting(1, gpus=1, user="ben", title="x", time_limit=hours(4)))

    assert set(row) == {3600}


def test_running_job_is_compared_with_longer_jobs_only():
    durations = RunTimeEstimates(past(1000, 2000, 3000, 4000))
    job = held(9, 1, 8, user="ada", title="train", time_limit=hours(10))

    row = durations.running(job, 2500.0)

    assert (row[0], row[-1]) == (500, 1500)


def test_job_longer_than_all_similar_ones_uses_its_limit():
    job = held(9, 1, 8, user="ada", title="train", time_limit=hours(1))

    assert RunTimeEstimates(past(10, 10, 10), parts=(1.0,)).running(job, 1800.0)[0] == 1800


# expected remaining time


@pytest.mark.parametrize(
    ("predicted_s", "ran_s", "limit_s", "expected_s"),
    [
        (3600, 0, math.inf, 3600),
        (3600, 0, 1800, 1800),  # a limit that is shorter than the prediction
        (UNKNOWN_S, 0, 10_000, 3500),
        (UNKNOWN_S, 0, math.inf, 86_400),
        (3600, 1, 7200, 3599),
        (3600, 7200, 7200, 0),
        (3600, 9000, 7200, 0),  # past its limit, which is not enforced yet
        (0, 0, math.inf, 1),
    ],
)
def test_expected_remaining_time(predicted_s, ran_s, limit_s, expected_s):
    assert expected_remaining_s(predicted_s, ran_s, limit_s) == pytest.approx(expected_s, abs=0.01)


def test_job_that_has_outrun_its_prediction_is_expected_to_go_on_for_longer():
    left = [expected_remaining_s(3600, ran_s) for ran_s in (3600, 7200, 36_000, 1e12)]

    assert left == sorted(left)
    assert 1800 < left[0] < 7200
    assert expected_remaining_s(3600, 7200, 7260) == 60


@given(predicted_s=st.floats(-1, 1e9), ran_s=st.floats(0, 1e9), limit_s=st.one_of(st.just(math.inf), st.floats(1, 1e9)))
def test_expected_end_is_never_past_the_limit_and_never_earlier_for_a_job_that_ran_longer(predicted_s, ran_s, limit_s):
    left_s = expected_remaining_s(predicted_s, ran_s, limit_s)
    longer_s = expected_remaining_s(predicted_s, 1.5 * ran_s + 1, limit_s)

    assert 0 <= left_s < math.inf
    assert left_s == 0 or ran_s + left_s <= limit_s * (1 + 1e-9)
    assert ran_s + left_s <= (1.5 * ran_s + 1 + longer_s) * (1 + 1e-9)
