"""The full explanation of one waiting job: its blockers, ranked, with the jobs that hold what it lacks."""

import pytest

from scheduling.engine.blockers import BlockerKind
from scheduling.engine.cluster import ClusterSnapshot, QuotaView, ResourceRequest
from scheduling.engine.history import SchedulingHistory
from scheduling.engine.policies import LIVE_POLICIES, POLICY_RULES
from scheduling.engine.why import explain_wait
from tests.make import NOON
from tests.scheduling.engine.test_engine import held, hours, node, waiting


def why(nodes, *jobs, policy="fifo-skip", job=1, sees=lambda team: True, **fields):
    picture = ClusterSnapshot(now=NOON, nodes=tuple(nodes), waiting=jobs, **fields)
    return explain_wait(picture, POLICY_RULES[policy], job, sees)


def test_job_that_can_start_has_no_blocker():
    explanation = why([node(1)], waiting(1))

    assert (explanation.blockers, explanation.changes) == ((), ())


def test_too_few_free_gpus_is_a_capacity_blocker():
    blocker = why([node(1, free=2)], waiting(1, gpus=8), running=(held(9, 1, 6, time_limit=hours(3)),)).blockers[0]

    assert (blocker.kind, blocker.reason, blocker.gpus, blocker.nodes) == (BlockerKind.CAPACITY, "Resources", 6, 1)
    assert [(one.job, one.gpus, one.ends_at) for one in blocker.holders] == [("r9", 6, NOON + hours(3))]


def test_holder_has_its_expected_end_beside_its_limit():
    running = (held(9, 1, 6, started_at=NOON - hours(1), time_limit=hours(30)),)
    history = SchedulingHistory(predicted_s={9: 3 * 3600.0})

    blocker = why([node(1, free=2)], waiting(1, gpus=8), running=running, history=history).blockers[0]

    (holder,) = blocker.holders
    assert holder.ends_at == NOON + hours(29)
    assert NOON + hours(1) < holder.expected_end_at < NOON + hours(4)


def test_scattered_gpus_are_a_topology_blocker():
    blocker = why([node(1, free=4), node(2, free=4)], waiting(1, gpus=8)).blockers[0]

    assert (blocker.kind, blocker.gpus, blocker.nodes) == (BlockerKind.TOPOLOGY, 0, 1)


def test_missing_memory_is_named():
    blocker = why([node(1)], waiting(1, need=ResourceRequest(gpus=8, cpus=1, memory_mb=2000))).blockers[0]

    assert blocker.why == ("It needs 8 GPUs; no node has 8 free with 1 CPU and 2000 MiB (8 GPUs free in total).")


def test_quota_blocker_names_the_largest_holders():
    running = (held(8, 1, 2), held(9, 1, 4), held(7, 1, 1, preemptible=True))
    quotas = (QuotaView(team="t", kind=None, gpus=8),)

    blocker = why([node(1, free=0), node(2)], waiting(1, gpus=4), running=running, quotas=quotas).blockers[0]

    assert (blocker.kind, blocker.gpus) == (BlockerKind.QUOTA, 2)
    assert [one.job for one in blocker.holders] == ["r9", "r8"]


def test_quota_blocker_comes_before_capacity_blocker():
    quotas = (QuotaView(team="t", kind=None, gpus=1),)

    explanation = why([node(1, free=2)], waiting(1, gpus=4), quotas=quotas)

    assert [one.kind for one in explanation.blockers] == [BlockerKind.QUOTA, BlockerKind.CAPACITY]


def test_all_gates_are_listed():
    explanation = why([node(1)], waiting(1, hold="user", begin_at=NOON + hours(1), waits_for=("a", "b")))

    assert [one.kind for one in explanation.blockers] == [BlockerKind.HOLD, BlockerKind.BEGIN, BlockerKind.DEPENDENCY]


def test_jobs_ahead_are_counted():
    jobs = [waiting(n, nodes=2, gpus=8) for n in (1, 2)] + [waiting(3)]

    blocker = why([node(1)], *jobs, policy="fifo", job=3).blockers[0]

    assert (blocker.kind, blocker.jobs, blocker.gpus) == (BlockerKind.PRIORITY, 2, 32)
    assert blocker.why == "J1 is ahead of it in the queue. In total, 2 jobs with 32 GPUs are ahead."
    assert [one.job for one in blocker.holders] == ["j1", "j2"]


def test_reservation_of_the_first_job_is_a_blocker():
    jobs = waiting(1, gpus=8, time_limit=hours(9)), waiting(2, gpus=4, time_limit=hours(4))
    running = (held(9, 1, 4, time_limit=hours(2)),)

    blocker = why([node(1, free=4)], *jobs, policy="easy", job=2, running=running).blockers[0]

    assert (blocker.kind, blocker.gpus, blocker.holders[0].job) == (BlockerKind.RESERVATION, 8, "j1")


def test_jobs_of_other_teams_are_counted_together_and_not_named():
    running = (held(8, 1, 2, team="a"), held(9, 1, 4, team="b"), held(7, 2, 1))
    jobs = waiting(5, nodes=3, gpus=8, team="c"), waiting(6, nodes=2, gpus=8)

    explanation = why([node(1, free=2), node(2, free=7)], *jobs, job=6, running=running, sees=lambda team: team == "t")

    assert [(one.team, one.job, one.jobs, one.gpus) for one in explanation.blockers[0].holders] == [
        ("t", "r7", 1, 1),
        ("", "", 2, 6),
    ]
    assert "j5" not in str(explanation) and "r8" not in str(explanation) and "r9" not in str(explanation)


@pytest.mark.parametrize("policy", ["fifo", "fifo-skip", "easy"])
def test_turn_names_no_job_of_another_team(policy):
    jobs = waiting(1, nodes=2, gpus=8, team="other"), waiting(2, gpus=8), waiting(3, gpus=8)
    picture = ClusterSnapshot(now=NOON, nodes=(node(1),), waiting=jobs)

    decisions = [*LIVE_POLICIES[policy](picture).starts, *LIVE_POLICIES[policy](picture).waits]

    sentences = [one.why for one in decisions if one.job_id != 1]
    assert any("job of another team is ahead" in sentence for sentence in sentences)
    assert not any("j1" in sentence for sentence in sentences)


def test_many_holders_are_grouped_by_team():
    running = tuple(held(100 + n, n % 4, 1) for n in range(12))

    explanation = why([node(n, free=5) for n in range(4)], waiting(1, gpus=8), running=running)

    assert [(one.job, one.jobs) for one in explanation.blockers[0].holders][-1] == ("", 7)
    assert len(explanation.blockers[0].holders) == 6
