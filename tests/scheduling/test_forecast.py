"""Start estimates: the replay of what is, forward."""

from datetime import timedelta

import pytest

from jobs.lifecycle import Kind
from scheduling.engine.cluster import Picture, QuotaView, RunningJob
from scheduling.engine.policies import RULES
from scheduling.simulator.forecast import start_estimates
from tests.make import NOON
from tests.scheduling.test_engine import held, hours, node, waiting


def estimates(nodes, *jobs, policy="fifo", parts=(1.0,), **fields):
    picture = Picture(now=NOON, nodes=tuple(nodes), waiting=jobs, **fields)
    told = start_estimates(picture, RULES[policy], parts=parts, draws=fields.pop("draws", 5))
    return {job_id: (one.p50 - NOON, one.p90 - NOON) for job_id, one in told.items()}


def test_who_fits_starts_now_and_the_next_when_the_first_has_had_its_limit():
    jobs = [waiting(n, gpus=8, time_limit=hours(2)) for n in (1, 2, 3)]

    told = estimates([node(1)], *jobs)

    assert [told[n][0] for n in (1, 2, 3)] == [hours(0), hours(2), hours(4)]


def test_who_runs_gives_his_gpus_back_at_his_limit():
    told = estimates([node(1, free=4)], waiting(1, gpus=8), running=(held(9, 1, 4, time_limit=hours(3)),))

    assert told[1] == (hours(3), hours(3))


def test_the_late_estimate_is_not_before_the_median():
    jobs = [waiting(n, gpus=8, time_limit=hours(2)) for n in range(1, 9)]

    told = estimates([node(1)], *jobs, parts=(0.1, 0.5, 1.0))

    assert all(p50 <= p90 for p50, p90 in told.values())
    assert told[8][0] < told[8][1]


def test_a_quota_frees_itself_when_its_holder_ends():
    holder = RunningJob(
        id=9,
        name="r",
        team="t",
        kind=Kind.OTHER,
        gpus=8,
        priority=0,
        started_at=NOON,
        time_limit=hours(1),
        places={2: 8},
    )
    nodes, quotas = [node(1), node(2, free=0)], (QuotaView(team="t", kind=None, gpus=8),)

    assert estimates(nodes, waiting(1, gpus=4), running=(holder,), quotas=quotas)[1][0] == hours(1)


def test_who_can_never_start_has_no_estimate():
    jobs = waiting(1, gpus=9), waiting(2, gpus=1, hold="user")

    assert estimates([node(1)], *jobs, policy="fifo-skip") == {}


@pytest.mark.parametrize("policy", ["fifo", "fifo-skip", "sjf", "easy"])
def test_priorities_count(policy):
    jobs = waiting(1, gpus=8, time_limit=hours(1)), waiting(2, gpus=8, priority=1, time_limit=hours(1))

    told = estimates([node(1)], *jobs, policy=policy)

    assert (told[2][0], told[1][0]) == (timedelta(0), hours(1))
