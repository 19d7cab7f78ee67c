"""Least attained service by the speeds of GPU models."""

from datetime import timedelta

from scheduling.engine.cluster import ClusterSnapshot
from scheduling.engine.history import SchedulingHistory
from scheduling.engine.policies import LIVE_POLICIES
from tests.make import NOON
from tests.scheduling.engine.test_engine import node
from tests.scheduling.gpus.test_gpu_speeds import GpuSpeeds, SpeedEntry, job, running

RATES = {"wins": (4, 1), "equal": (1.1, 1)}
SPEEDS = GpuSpeeds(
    table=tuple(
        SpeedEntry(pattern=pattern, gpu_model=model, speed=speed)
        for pattern, speeds in RATES.items()
        for model, speed in zip(("h100", "a100"), speeds, strict=True)
    )
)


def picture(*jobs, nodes, running=(), **history):
    predicted = {one.id: 36_000.0 for one in (*jobs, *running)}
    past = SchedulingHistory(predicted_s=predicted, **history)
    return ClusterSnapshot(now=NOON, nodes=nodes, waiting=jobs, running=running, history=past, speeds=SPEEDS)


def starts(policy, snapshot):
    return {start.job_id: sorted(start.places) for start in LIVE_POLICIES[policy](snapshot).starts}


NODES = (node(1, gpu_model="h100"), node(11, gpu_model="a100"))


def test_job_that_gains_most_gets_the_fast_model_although_it_came_later():
    jobs = job(1, title="equal"), job(2, title="wins")

    assert starts("las-aware", picture(*jobs, nodes=NODES)) == {1: [11], 2: [1]}
    assert starts("tiresias", picture(*jobs, nodes=NODES))[1] == [1]


def test_job_with_less_service_goes_before_one_that_gains_more():
    jobs = job(1, title="wins"), job(2, title="equal")
    served = {"attained_by_speed": {1: 10_000.0}, "attained": {1: 10_000.0}}

    assert starts("las-aware", picture(*jobs, nodes=NODES[:1], **served)) == {2: [1]}


def test_service_counts_by_the_speed_of_the_model():
    """On slow GPUs, the first job had more GPU time and less service than the second."""
    jobs = job(1, title="equal"), job(2, title="equal")
    served = {"attained": {1: 9_000.0, 2: 4_000.0}, "attained_by_speed": {1: 3_000.0, 2: 4_000.0}}

    assert starts("las-aware", picture(*jobs, nodes=NODES[:1], **served)) == {1: [1]}
    assert starts("tiresias", picture(*jobs, nodes=NODES[:1], **served)) == {2: [1]}


def test_running_job_keeps_its_queue_for_longer_on_a_slow_model():
    """Both ran 10 min on 8 GPUs: 4,800 GPU-seconds, or 1,200 at a quarter of the speed. The first limit is 3,250."""
    held = running(901, 1, preemptible=True)
    began = NOON - timedelta(minutes=10)
    claims = job(1, "h100", title="equal")

    def stops(slowdown):
        fields = {name: getattr(held, name) for name in held.__slots__} | {"slowdown": slowdown, "started_at": began}
        full = (node(1, free=0, gpu_model="h100"),)
        snapshot = picture(claims, nodes=full, running=(type(held)(**fields),))
        return [stop.job_id for stop in LIVE_POLICIES["las-aware"](snapshot).stops]

    assert (stops(1.0), stops(4.0)) == ([901], [])


def test_equal_jobs_never_preempt_each_other():
    held = running(901, 1, preemptible=True)
    full = (node(1, free=0, gpu_model="h100"),)

    assert not LIVE_POLICIES["las-aware"](picture(job(1, title="wins"), nodes=full, running=(held,))).stops
