"""Power budgets of live clusters: peaks learned from telemetry, and turns that keep within the budgets."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.core.lifecycle import NodeFlag, NodeState, State
from jobs.models import Allocation, Attempt, Job, Node, Sample, clock
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.loops.schedule import schedule_once
from scheduling.loops.start_estimates import estimate_starts_once
from scheduling.models import AttemptPeak, Estimate, LearnedPeaks, PowerBudget
from scheduling.power.budget_states import budget_states
from scheduling.power.loops.energy import count_energy_once
from scheduling.power.rules.predictions import (
    MAX_COUNTED,
    MIN_SIMILAR,
    PeakHistory,
    PowerForecast,
    idle_node_w,
    peak_scopes,
)
from scheduling.queries import snapshot
from scheduling.queries.submission_preview import add_job_power
from tests import make

IDLE_W = 1520  # of a node with eight A100: 920 + 1.25 × 8 × 60
JOB_W = 3400  # of a job on eight of them at their limit: 1.25 × 8 × (400 - 60)


@pytest.fixture
def seren(db):
    return make.cluster(metrics_address="http://127.0.0.1:9400/metrics")


def limit(cluster, watts, scope="cluster", place=""):
    return PowerBudget.objects.create(cluster=cluster, scope=scope, place=place, limit_w=watts)


def for_jobs(count):
    """A limit with room for so many jobs on eight GPUs at their limit."""
    return 4 * IDLE_W + count * JOB_W


def schedule(cluster, policy="fifo-skip"):
    return schedule_once(cluster, LIVE_POLICIES[policy], clock.now(), lambda: None)


def whole_nodes(count, **fields):
    return [make.job(gpus_per_node=8, **fields) for _ in range(count)]


def states(jobs):
    return [Job.objects.get(pk=job.pk).state for job in jobs]


def at(seconds):
    return make.NOON + timedelta(seconds=seconds)


def sample(seconds, power_w, node="seren-001"):
    Sample.objects.create(node=Node.objects.get(name=node), at=at(seconds), gpu_power_w=list(power_w))


def hold(cluster, start, end, on=("seren-001",), gpus=(0, 1), **fields):
    """An attempt that held these GPUs of each node for this time; it still runs without an end."""
    job = make.job(cluster=cluster, nodes=len(on), gpus_per_node=len(gpus), **fields)
    attempt = make.running(job, on=on, gpus=gpus)
    Allocation.objects.filter(attempt=attempt).update(held_at=at(start), released_at=end and at(end))
    if end:
        Attempt.objects.filter(pk=attempt.pk).update(promised_at=at(start), ended_at=at(end), state=State.COMPLETED)
        Job.objects.filter(pk=attempt.job_id).update(state=State.COMPLETED, ended_at=at(end))
    else:
        Attempt.objects.filter(pk=attempt.pk).update(promised_at=at(start))
    return attempt


# --- Peaks ---


def test_peak_is_the_highest_mean_of_all_gpus_of_a_gang_at_one_time(seren):
    gang = hold(seren, 0, 100, on=("seren-001", "seren-002"))
    for seconds, first, second in ((15, (300, 300), (100, 100)), (30, (250, 250), (250, 250)), (120, (9, 9), (9, 9))):
        sample(seconds, first)
        sample(seconds, second, "seren-002")

    count_energy_once(seren, at(300))

    assert AttemptPeak.objects.get(attempt=gang).gpu_w == 250


def test_gpus_of_others_and_values_that_no_gpu_draws_are_no_peak(seren):
    attempt = hold(seren, 0, 100)
    sample(15, (200, 220, 700))
    sample(30, (5000, None, 700))
    sample(45, (200, 100, 700))

    count_energy_once(seren, at(300))

    assert AttemptPeak.objects.get(attempt=attempt).gpu_w == 210


def test_attempt_without_gpu_indices_has_the_highest_of_the_gpus_that_nobody_else_holds(seren):
    indexed, counted = hold(seren, 0, 100, gpus=(0, 1)), hold(seren, 0, 100, gpus=(2, 3))
    Allocation.objects.filter(attempt=counted, gpu=3).delete()
    Allocation.objects.filter(attempt=counted).update(gpu=None)
    for seconds in (15, 30):
        sample(seconds, (500, 500, 60, 310, 290, 60))

    count_energy_once(seren, at(300))

    peaks = dict(AttemptPeak.objects.values_list("attempt", "gpu_w"))
    assert peaks == {indexed.pk: 500, counted.pk: 300}


def test_peak_only_rises_and_ended_attempts_are_learned_once(seren):
    early, late = hold(seren, 0, 50, name="a"), hold(seren, 100, 700, name="a")
    for seconds, watts in ((15, 280), (30, 180), (120, 310), (630, 150)):
        sample(seconds, (watts, watts))

    for now in (90, 400, 400, 1500, 1600):
        count_energy_once(seren, at(now))

    assert dict(AttemptPeak.objects.values_list("attempt", "gpu_w")) == {early.pk: 280, late.pk: 310}
    rows = dict(LearnedPeaks.objects.values_list("scope", "counts"))
    assert set(rows) == set(peak_scopes(str(early.job.user_id), "a", early.job.kind))
    assert all((sum(counts), counts[11], counts[12]) == (2, 1, 1) for counts in rows.values())


def test_running_attempt_has_a_peak_but_is_not_learned(seren):
    hold(seren, 0, None)
    sample(15, (280, 280))
    sample(30, (180, 180))

    count_energy_once(seren, at(300))

    assert AttemptPeak.objects.get().is_learned is False and not LearnedPeaks.objects.exists()


def test_counts_are_halved_and_rare_peaks_remain():
    history = PeakHistory({"scope": [MAX_COUNTED, *[0] * 38, 1]})

    assert history.counts() == {"scope": [MAX_COUNTED // 2, *[0] * 38, 1]}


# --- Predictions ---


def test_forecast_is_that_of_similar_jobs_then_of_the_kind_then_the_limit_of_the_gpu_model():
    mine, others = peak_scopes("1", "train", "pretrain"), peak_scopes("2", "x", "pretrain")
    history = PeakHistory()
    for _ in range(MIN_SIMILAR):
        history.add(mine, 245)
        history.add(others[1:], 345)
    forecast = PowerForecast(history)

    assert forecast.job_w(mine, gpus=8, models=["A100"]) == 8 * 1.25 * (250 - 60)
    assert forecast.job_w(others, gpus=8, models=["A100"]) == 8 * 1.25 * (350 - 60)
    unknown = peak_scopes("3", "y", "sft")
    assert forecast.job_w(unknown, gpus=8, models=["A100"]) == JOB_W
    assert forecast.job_w(unknown, gpus=8, models=["NVIDIA H100 80GB HBM3"]) == 8 * 1.25 * 0.85 * 700
    assert forecast.job_w(unknown, gpus=8, models=["unheard-of"]) == JOB_W
    assert forecast.job_w(mine, gpus=8, models=["A100"], measured_w=380) == 8 * 1.25 * (400 - 60)
    assert forecast.job_w(unknown, gpus=0, gpu_milli=500, models=["A100"]) == JOB_W // 16 + 1
    assert forecast.job_w(unknown, gpus=0) == 1


def test_idle_node_has_its_host_and_its_gpus():
    assert (idle_node_w(8, "A100"), idle_node_w(8, "H100"), idle_node_w(0, "")) == (IDLE_W, 1970, 300)


# --- Turns ---


@pytest.mark.parametrize("policy", LIVE_POLICIES)
def test_jobs_start_up_to_the_budget_of_the_cluster(seren, policy):
    limit(seren, for_jobs(2))
    jobs = whole_nodes(3)

    assert schedule(seren, policy) == 2

    assert sorted(states(jobs)) == ["PENDING", "RUNNING", "RUNNING"]
    assert schedule(seren, policy) == 0
    (waits,) = Job.objects.waiting()
    assert waits.reason == "Power"
    assert "It is predicted to need 3.4 kW; of power budget seren, 0.0 of 6.8 kW for jobs are left." in waits.why
    assert waits.power_budgets == ["seren"]
    assert [state.waiting for state in budget_states(seren, clock.now())] == [1]


def test_jobs_that_drew_less_leave_room_for_more(seren):
    limit(seren, for_jobs(2))
    jobs = whole_nodes(4, name="small")
    scopes = peak_scopes(str(jobs[0].user_id), "small", jobs[0].kind)
    history = PeakHistory()
    for _ in range(MIN_SIMILAR):
        history.add(scopes, 225)
    for scope, counts in history.counts().items():
        LearnedPeaks.objects.create(cluster=seren, scope=scope, counts=counts)

    assert schedule(seren) == 4


def test_running_job_that_draws_more_than_predicted_counts_with_what_it_draws(seren):
    limit(seren, for_jobs(2))
    attempt = make.running(make.job(gpus_per_node=8))
    (job,) = whole_nodes(1)
    AttemptPeak.objects.create(attempt=attempt, gpu_w=401)

    assert schedule(seren) == 0
    assert states([job]) == ["PENDING"]


def test_nodes_that_sleep_leave_their_idle_power_to_jobs(seren):
    limit(seren, 2 * IDLE_W + 2 * JOB_W)
    jobs = whole_nodes(2)
    assert schedule(seren) == 1
    Node.objects.filter(name__in=["seren-003", "seren-004"]).update(flags=[NodeFlag.POWERED_DOWN])

    assert schedule(seren) == 1
    assert states(jobs) == ["RUNNING", "RUNNING"]


def test_job_does_not_wake_a_node_whose_idle_power_is_not_left(seren):
    Node.objects.exclude(name="seren-001").update(flags=[NodeFlag.POWERED_DOWN])
    limit(seren, IDLE_W + 2 * JOB_W)
    first, second = whole_nodes(2)

    assert schedule(seren) == 1
    assert states([first, second]) == ["RUNNING", "PENDING"]
    PowerBudget.objects.update(limit_w=2 * IDLE_W + 2 * JOB_W)
    assert schedule(seren) == 1


def test_drained_and_failed_nodes_keep_their_idle_power(seren):
    limit(seren, for_jobs(1))
    Node.objects.filter(name="seren-003").update(drain_requested=True)
    Node.objects.filter(name="seren-004").update(state=NodeState.DOWN)
    whole_nodes(2)

    assert schedule(seren) == 1


def test_racks_have_budgets_of_their_own(seren):
    Node.objects.filter(name__in=["seren-003", "seren-004"]).update(rack="r02")
    limit(seren, 2 * IDLE_W + JOB_W, "rack", "r01")
    limit(seren, 2 * IDLE_W, "rack", "r02")
    jobs = whole_nodes(2)

    assert schedule(seren) == 1

    (waits,) = Job.objects.waiting().filter(pk__in=[job.pk for job in jobs])
    assert (waits.reason, waits.why) == (
        "Power",
        "It is predicted to need 3.4 kW; the power budgets of rack r01, rack r02 leave that on none of 3 nodes where"
        " it would fit.",
    )
    assert [state.waiting for state in budget_states(seren, clock.now())] == [1, 1]
    assert set(Allocation.objects.values_list("node__rack", flat=True)) == {"r01"}


def test_start_estimate_follows_a_new_budget_at_once(seren):
    make.running(make.job(gpus_per_node=8, time_limit="01:00:00"))
    (job,) = whole_nodes(1)
    estimate_starts_once(seren, clock.now())
    before = Estimate.objects.get(job=job).p50

    limit(seren, for_jobs(1))
    estimate_starts_once(seren, clock.now())

    assert Estimate.objects.get(job=job).p50 > before


def test_previewed_job_needs_power_too(seren):
    limit(seren, for_jobs(1))
    whole_nodes(1)
    picture = snapshot.take_snapshot(seren, clock.now())
    (known,) = picture.waiting

    assert known.need.watts == JOB_W
    assert add_job_power(seren, picture, known) == known


def test_snapshot_without_a_budget_reads_one_table_more_and_with_one_three(seren):
    def statements():
        with CaptureQueriesContext(
            connection,
        ) as found:
            snapshot.take_snapshot(seren, clock.now())
        return [row["sql"] for row in found if 'FROM "scheduling_power' in row["sql"] or "peak" in row["sql"]]

    whole_nodes(3)
    make.running(make.job(gpus_per_node=8))

    assert len(statements()) == 1
    limit(seren, for_jobs(1))
    assert len(statements()) == 3


# --- States ---


def test_state_has_idle_power_and_the_predicted_power_of_running_jobs(seren):
    make.running(make.job(gpus_per_node=8, nodes=2), on=["seren-001", "seren-003"])
    Node.objects.filter(name__in=["seren-003", "seren-004"]).update(rack="r02")
    limit(seren, 50_000)
    limit(seren, 2 * IDLE_W + JOB_W - 1, "rack", "r02")

    whole, rack = budget_states(seren, clock.now())

    assert (whole.name, whole.nodes, whole.idle_w, whole.jobs_w) == ("seren", 4, 4 * IDLE_W, 2 * JOB_W)
    assert (rack.name, rack.nodes, rack.predicted_w) == ("rack r02", 2, 2 * IDLE_W + JOB_W)
    assert (whole.is_exceeded, rack.is_exceeded) == (False, True)


def test_nodes_that_are_all_slices_have_the_idle_power_of_their_gpus(seren):
    Node.objects.filter(name="seren-001").update(gpus=14, mig_slices={"1g.10gb": 7, "3g.40gb": 7})
    limit(seren, 50_000)

    (whole,) = budget_states(seren, clock.now())

    assert whole.idle_w == 3 * IDLE_W + idle_node_w(4, "A100")


def test_other_clusters_have_no_budget(seren):
    limit(make.cluster("kalos"), 1)
    jobs = [make.job(cluster=seren, gpus_per_node=8) for _ in range(2)]

    assert budget_states(seren, clock.now()) == []
    assert schedule(seren) == 2
    assert states(jobs) == ["RUNNING", "RUNNING"]
