"""What would start a waiting job now. Every suggestion is verified by a turn."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.lifecycle import JobKind
from scheduling.engine.changes import ChangeActor
from scheduling.engine.cluster import ClosedNode, ClusterSnapshot, QuotaView, ResourceRequest
from scheduling.engine.counterfactual import job_starts, smallest_changes
from scheduling.engine.history import SchedulingHistory
from scheduling.engine.policies import LIVE_POLICIES, POLICY_RULES
from tests.make import NOON
from tests.properties import examples
from tests.scheduling.engine.test_engine import held, hours, node, waiting


def changes(nodes, *jobs, policy="fifo-skip", job=1, sees=lambda team: True, **fields):
    picture = ClusterSnapshot(now=NOON, nodes=tuple(nodes), waiting=jobs, **fields)
    return smallest_changes(picture, POLICY_RULES[policy], job, sees=sees)


def smallest(*given, **fields):
    suggestions = changes(*given, **fields)
    return suggestions[0].phrase if suggestions else None


def phrases(*given, **fields):
    return [change.phrase for change in changes(*given, **fields)]


def test_job_that_starts_anyway_needs_no_change():
    assert changes([node(1)], waiting(1)) == ()


@pytest.mark.parametrize(("free", "gpus", "suggested"), [(7, 8, 4), (3, 8, 2), (5, 6, 3), (4, 5, 1)])
def test_fewer_gpus_are_a_divisor_of_those_requested(free, gpus, suggested):
    change = changes([node(1, free=free)], waiting(1, gpus=gpus))[0]

    assert change.phrase == f"it requested {suggested} GPU{'s' if suggested > 1 else ''} instead of {gpus}"
    assert change.request == {"gpus_per_node": suggested}


def test_a_job_of_several_nodes_keeps_its_gpus_per_node():
    suggested = changes([node(1), node(2, free=7)], waiting(1, nodes=2, gpus=8))

    assert [change.request for change in suggested] == [{"nodes": 1}]


def test_changes_that_a_resubmission_cannot_make_have_no_request():
    closed = ClosedNode(node=node(3), back="resumed")

    suggested = changes([node(1, free=0)], waiting(1, gpus=8), closed=(closed,), quotas=(replace(QUOTA, gpus=0),))

    assert {change.kind: change.request for change in suggested}["preemptible+nodes-open"] == {}


def test_fewer_nodes_is_suggested_if_it_gives_up_less():
    assert smallest([node(1), node(2), node(3)], waiting(1, nodes=4, gpus=8)) == "it requested 3 nodes instead of 4"


def test_less_memory_is_suggested_if_only_memory_is_short():
    job = waiting(1, need=ResourceRequest(gpus=2, cpus=1, memory_mb=1500))

    assert smallest([node(1)], job) == "it requested 1000M per node instead of 1.5G"


def test_another_gpu_model_that_is_free_is_suggested():
    job = waiting(1, need=ResourceRequest(gpus=8, gpu_model="h100"))

    assert smallest([node(1), node(2, free=0, gpu_model="h100")], job) == "it used a100 GPUs instead of h100"


def test_end_of_one_job_is_suggested():
    soon = held(8, 1, 4, name="r8", started_at=NOON - hours(2), time_limit=hours(2.1))
    late = held(9, 2, 4, name="r9", started_at=NOON, time_limit=hours(50))

    suggestions = changes([node(1, free=4), node(2, free=4)], waiting(1, gpus=8), running=(soon, late))

    assert suggestions[0].phrase == "r8 (4 GPUs, at its limit in about 6 min) ended"
    assert suggestions[0].who == ChangeActor.TIME


def test_end_of_a_job_is_expected_by_its_prediction_and_not_by_its_limit():
    long = held(8, 1, 4, name="long", started_at=NOON - hours(1), time_limit=hours(5))
    short = held(9, 2, 4, name="short", started_at=NOON, time_limit=hours(50))
    history = SchedulingHistory(predicted_s={8: 40 * 3600.0, 9: 1800.0})

    nodes = [node(1, free=4), node(2, free=4)]
    suggestions = changes(nodes, waiting(1, gpus=8), running=(long, short), history=history)

    assert suggestions[0].phrase == "short (4 GPUs, expected to end in about 30 min) ended"


def test_job_of_another_team_is_not_named():
    soon = held(8, 1, 4, name="secret", team="other", started_at=NOON, time_limit=hours(0.1))

    suggested = phrases([node(1, free=4)], waiting(1, gpus=8), running=(soon,), sees=lambda team: team == "t")

    assert suggested[0] == "a job of another team (4 GPUs, at its limit in about 6 min) ended"
    assert "secret" not in str(suggested)


def test_several_ends_are_suggested_if_one_is_not_enough():
    running = tuple(held(n, n, 8, started_at=NOON, time_limit=hours(n / 10)) for n in (1, 2, 3))

    suggested = phrases([node(n, free=0) for n in (1, 2, 3)], waiting(9, nodes=2, gpus=8), job=9, running=running)

    assert suggested == ["the 2 jobs that end first had ended, the last at its limit in about 12 min"]


QUOTA = QuotaView(team="t", kind=None, gpus=8)


def test_quota_is_raised_by_exactly_the_excess():
    runs = held(9, 2, 6)

    suggested = phrases([node(1), node(2, free=2)], waiting(1, gpus=8), running=(runs,), quotas=(QUOTA,))

    assert "the quota of team t were 6 GPUs higher (14 instead of 8)" in suggested
    assert "it were preemptible" in suggested
    assert "it requested 2 GPUs instead of 8" in suggested


def test_opening_a_drained_node_is_suggested():
    closed = ClosedNode(node=node(3), back="resumed")

    suggested = phrases([node(1, free=0)], waiting(1, gpus=8), closed=(closed,))

    assert suggested == ["node n3 were resumed"]


def test_two_changes_are_combined_if_one_is_not_enough():
    closed = ClosedNode(node=node(3), back="resumed")

    suggested = phrases([node(1, free=0)], waiting(1, gpus=8), closed=(closed,), quotas=(replace(QUOTA, gpus=0),))

    assert "it were preemptible, and if node n3 were resumed" in suggested


def test_shorter_limit_lets_a_job_pass_the_first_in_the_queue():
    running = (held(9, 1, 4, started_at=NOON, time_limit=hours(2)),)
    jobs = waiting(1, gpus=8, time_limit=hours(9)), waiting(2, gpus=4, time_limit=hours(4))

    assert smallest([node(1, free=4)], *jobs, policy="easy", job=2, running=running) == (
        "its time limit were 02:00:00 instead of 04:00:00"
    )


def test_higher_priority_is_suggested_in_a_strict_queue():
    jobs = waiting(1, nodes=2, gpus=8), waiting(2, gpus=1)

    assert smallest([node(1)], *jobs, policy="fifo", job=2) == "its priority were 1"


@pytest.mark.parametrize(
    ("gate", "said", "who"),
    [
        ({"hold": "user"}, "it were released", ChangeActor.OWNER),
        ({"hold": "admin"}, "it were released", ChangeActor.OPERATOR),
        ({"begin_at": NOON + hours(1)}, "it had no begin time", ChangeActor.OWNER),
        ({"waits_for": ("j0",)}, "j0 had ended", ChangeActor.TIME),
    ],
)
def test_gate_is_lifted_first(gate, said, who):
    suggestions = changes([node(1)], waiting(1, **gate))

    assert [(one.phrase, one.who) for one in suggestions] == [(said, who)]


def test_held_job_that_does_not_fit_needs_two_changes():
    assert smallest([node(1, free=4)], waiting(1, gpus=8, hold="user")) == (
        "it were released, and if it requested 4 GPUs instead of 8"
    )


def test_snapshot_is_not_modified():
    picture = ClusterSnapshot(
        now=NOON,
        nodes=(node(1, free=4),),
        waiting=(waiting(1, gpus=8),),
        running=(held(9, 1, 4, started_at=NOON, time_limit=hours(1)),),
        quotas=(QUOTA,),
    )

    first = smallest_changes(picture, POLICY_RULES["fifo"], 1)

    assert first == smallest_changes(picture, POLICY_RULES["fifo"], 1) != ()


@st.composite
def busy_pictures(draw):
    """Small clusters with few free GPUs, some of them held by jobs that end at different times."""
    frees = draw(st.lists(st.integers(0, 8), min_size=1, max_size=4))
    jobs = draw(
        st.lists(
            st.tuples(st.integers(1, 3), st.integers(0, 8), st.integers(-1, 1), st.sampled_from(["", "user"])),
            min_size=1,
            max_size=6,
        )
    )
    limits = draw(st.lists(st.integers(1, 9), min_size=len(frees), max_size=len(frees)))
    return ClusterSnapshot(
        now=NOON,
        nodes=tuple(node(n, free=free) for n, free in enumerate(frees)),
        waiting=tuple(
            waiting(n, nodes=nodes, gpus=gpus, priority=priority, hold=hold, time_limit=hours(n + 1))
            for n, (nodes, gpus, priority, hold) in enumerate(jobs)
        ),
        running=tuple(
            held(100 + n, n, 8 - free, started_at=NOON - hours(0.5), time_limit=hours(limit), kind=JobKind.OTHER)
            for n, (free, limit) in enumerate(zip(frees, limits, strict=True))
            if free < 8
        ),
        quotas=(QuotaView(team="t", kind=None, gpus=draw(st.integers(0, 40))),),
        closed=(ClosedNode(node=node(50), back="resumed"),),
    )


@pytest.mark.parametrize("policy", sorted(LIVE_POLICIES))
@examples(25)
@given(picture=busy_pictures())
def test_every_suggested_change_starts_the_job(policy, picture):
    for wait in LIVE_POLICIES[policy](picture).waits:
        suggestions = smallest_changes(picture, POLICY_RULES[policy], wait.job_id)

        for change in suggestions:
            assert job_starts(change.apply(picture), POLICY_RULES[policy](), wait.job_id), change.why
