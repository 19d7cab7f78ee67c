"""Requests that accept several GPU models, in order of preference."""

from datetime import timedelta

import pytest

from jobs.core.lifecycle import JobKind
from scheduling.engine.cluster import ClusterSnapshot, ResourceRequest, RunningJob
from scheduling.engine.policies import LIVE_POLICIES, POLICY_RULES
from scheduling.engine.run_time_estimates import RunTimeEstimates
from scheduling.whatif.replay.start_estimates import start_estimates
from tests.make import NOON
from tests.scheduling.engine.test_engine import decide, node, started, waiting


def request(*, nodes=1, gpus=8, model="h100|a100"):
    return ResourceRequest(nodes=nodes, gpus=gpus, cpus=1, gpu_model=model)


def places(decisions):
    return [sorted(start.places) for start in decisions.starts]


def nodes(*, h100=8, a100=8, count=1):
    fast = [node(number, free=h100, gpu_model="h100") for number in range(1, count + 1)]
    return fast + [node(number, free=a100, gpu_model="a100") for number in range(11, count + 11)]


@pytest.mark.parametrize(
    ("model", "expected"), [("h100|a100", [1]), ("a100|h100", [11]), ("h100", [1])], ids=["fast", "slow", "only"]
)
def test_job_gets_the_model_that_it_prefers(model, expected):
    assert places(decide("fifo", nodes(), waiting(1, need=request(model=model)))) == [expected]


@pytest.mark.parametrize("policy", sorted(LIVE_POLICIES))
def test_job_takes_its_second_model_if_the_first_is_not_free(policy):
    assert places(decide(policy, nodes(h100=0), waiting(1, need=request()))) == [[11]]


@pytest.mark.parametrize("placement", ["consolidate", "pack", "spread", "gradient"])
def test_gang_never_mixes_models(placement):
    job = waiting(1, need=request(nodes=2))

    assert started(decide("fifo", nodes(), job, placement=placement)) == []
    assert places(decide("fifo", nodes(h100=7, count=2), job, placement=placement)) == [[11, 12]]


def test_exact_placement_does_not_move_a_gang_to_two_models():
    cluster = [node(1, gpu_model="h100"), node(11), node(12)]
    jobs = waiting(1, need=request(nodes=2)), waiting(2, need=request(model="a100"))

    assert places(decide("fifo", cluster, *jobs, placement="exact")) == [[11, 12]]


def test_exact_placement_moves_a_gang_within_its_model():
    """The gang takes nodes of one leaf first; the job that needs CPUs fits on one of them only."""
    cluster = [node(1, gpu_model="h100"), node(11), node(12), node(13, leaf="l02", free_cpus=4)]
    jobs = (
        waiting(1, need=request(nodes=2)),
        waiting(2, need=ResourceRequest(gpus=8, cpus=64, gpu_model="a100")),
    )

    first, second = places(decide("fifo", cluster, *jobs, placement="exact"))

    assert 13 in first and second in ([11], [12])


def test_other_jobs_are_placed_as_before():
    decisions = decide("fifo", nodes(), waiting(1, need=request()), waiting(2, need=request(model="")))

    assert places(decisions) == [[1], [11]]


def test_wait_reason_names_what_is_free_of_each_model():
    decisions = decide("fifo", nodes(h100=7), waiting(1, need=request(nodes=2)))

    assert decisions.waits[0].why == (
        "It needs 2 × 8 h100 or a100 GPUs; no node has 8 h100, 1 node has 8 a100 free (15 GPUs free in total)."
    )


def running(number, hours):
    return RunningJob(
        id=90 + number,
        name="r",
        team="t",
        kind=JobKind.OTHER,
        gpus=8,
        priority=0,
        started_at=NOON,
        time_limit=timedelta(hours=hours),
        places={number: 8},
    )


@pytest.mark.parametrize("policy", ["fifo", "easy", "conservative"])
def test_start_estimate_waits_for_two_nodes_of_one_model(policy):
    """After two hours a node of each model is free, but not two of either."""
    cluster = [node(1, free=0, gpu_model="h100"), node(2, free=0, gpu_model="h100"), node(11, gpu_model="a100")]
    picture = ClusterSnapshot(
        now=NOON,
        nodes=tuple(cluster),
        waiting=(waiting(1, need=request(nodes=2)),),
        running=(running(1, 2), running(2, 3)),
    )

    found = start_estimates(picture, POLICY_RULES[policy], durations=RunTimeEstimates(parts=(1.0,)), draws=5)

    assert found[1].p50 == NOON + timedelta(hours=3)


def test_reservation_counts_nodes_of_one_model():
    """A job of two and a half hours may pass: the gang cannot start before the second h100 node is free."""
    cluster = [node(1, free=0, gpu_model="h100"), node(2, free=0, gpu_model="h100"), node(11, gpu_model="a100")]
    jobs = [
        waiting(1, need=request(nodes=2), time_limit=timedelta(hours=1)),
        waiting(2, need=request(model="a100"), time_limit=timedelta(hours=2.5)),
    ]

    decisions = decide("easy", cluster, *jobs, running=(running(1, 2), running(2, 3)))

    assert started(decisions) == [2]
