"""Forecasts of deadlines: of a request, and of all jobs that wait or run. Reads only.

Each process caches what it knows of the past of a cluster for a minute, because reading thousands of rows for each
forecast would cost more than the forecast.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import datetime

from jobs.core.deadlines import DeadlineForecast
from jobs.core.lifecycle import LIVE_STATES, State
from jobs.models import Cluster, Job
from scheduling.core.deadlines import DeadlineModel, EndPrediction, JobScope, PastWait
from scheduling.core.distributions import Distribution
from scheduling.engine.cluster import ClusterSnapshot, WaitingJob
from scheduling.engine.history import SchedulingHistory
from scheduling.models import EstimateOutcome
from scheduling.queries import snapshot
from scheduling.queries.predictions import predict_run_times
from scheduling.whatif.replay.start_estimates import StartEstimate

MAX_PAST_WAITS = 5_000
MAX_MODEL_AGE_S = 60.0
MAX_FORECASTS = 2_000  # per turn, the nearest deadlines first
NO_ESTIMATE = "No forecast, because the start of the job cannot be estimated yet."


def of_waiting_job(
    cluster: Cluster, job: WaitingJob, deadline: datetime, estimate: StartEstimate, *, now: datetime
) -> DeadlineForecast:
    """Forecast a job that need not exist."""
    predicted = predict_run_times(cluster, [job])[job.id]
    model = models.of(cluster, now)
    scope = JobScope(job.user, job.title, job.need.total_gpus, job.kind)
    predicted_s = predicted.rolling_s if predicted.trees_s is None else predicted.trees_s
    limit_s = job.time_limit.total_seconds() if job.time_limit else math.inf
    run = model.run_time(scope, predicted_s, limit_s).scaled(estimate.slowdown).bounded(limit_s)
    gpus = job.need.total_gpus
    return _forecast(model.before_start(run, deadline, now=now, p50=estimate.p50, p90=estimate.p90, gpus=gpus))


def open_deadlines(
    cluster: Cluster, picture: ClusterSnapshot, estimates: Mapping[int, StartEstimate], now: datetime
) -> dict[int, DeadlineForecast]:
    """Forecast the waiting and running jobs whose deadline is ahead, by job id."""
    ahead = Job.objects.filter(cluster=cluster, deadline_at__gt=now, state__in=[State.PENDING, *LIVE_STATES])
    jobs = list(ahead.order_by("deadline_at")[:MAX_FORECASTS])
    if not jobs:
        return {}
    model, past = models.of(cluster, now), picture.history or SchedulingHistory()
    slowdowns = {job.id: job.slowdown for job in picture.running}
    slowdowns |= {job_id: estimate.slowdown for job_id, estimate in estimates.items()}
    return {
        job.pk: _open_forecast(model, job, past, estimates.get(job.pk), slowdowns.get(job.pk, 1.0), now) for job in jobs
    }


def _open_forecast(
    model: DeadlineModel,
    job: Job,
    past: SchedulingHistory,
    estimate: StartEstimate | None,
    slowdown: float,
    now: datetime,
) -> DeadlineForecast:
    assert job.deadline_at is not None
    run = _remaining_run_time(model, job, past, slowdown)
    if job.is_live:
        began = job.started_at or now
        return _forecast(model.after_start(run, job.deadline_at, now=now, started_at=began))
    if estimate is None:
        return DeadlineForecast(why=NO_ESTIMATE)
    times = {"p50": estimate.p50, "p90": estimate.p90}
    return _forecast(model.before_start(run, job.deadline_at, now=now, gpus=_whole_gpus(job), **times))


def _whole_gpus(job: Job) -> int:
    """The number by which run times are learned; 0 if the job has a part of a GPU."""
    return job.nodes * job.gpus_per_node


def _remaining_run_time(model: DeadlineModel, job: Job, past: SchedulingHistory, slowdown: float) -> Distribution:
    """The run time of the present or next attempt, on a GPU model with this slowdown. A prediction is for all attempts
    together, the limit for each."""
    predicted_s = past.prediction_s(job.pk, trees=True)
    run = model.run_time(JobScope(str(job.user_id), job.name, _whole_gpus(job), job.kind), predicted_s)
    earlier_s = past.attained_by_speed.get(job.pk, 0.0) / (job.gpus or 1)
    left = run if not earlier_s else run.remaining_after(earlier_s) or run
    left = left.scaled(slowdown)
    return left.bounded(job.time_limit.total_seconds()) if job.time_limit else left


def _forecast(known: EndPrediction) -> DeadlineForecast:
    return DeadlineForecast(probability=known.probability, why=known.why)


def past_waits(cluster: Cluster) -> list[PastWait]:
    """The newest start estimates whose outcome is known."""
    columns = ("made_at", "p50", "started_at", "job__nodes", "job__gpus_per_node")
    rows = EstimateOutcome.objects.filter(cluster=cluster).order_by("-started_at").values_list(*columns)
    return [
        PastWait(
            max(0.0, (p50 - made_at).total_seconds()), max(0.0, (started_at - made_at).total_seconds()), nodes * gpus
        )
        for made_at, p50, started_at, nodes, gpus in rows[:MAX_PAST_WAITS]
    ]


class _ModelCache:
    """Caches the model of each cluster."""

    def __init__(self) -> None:
        self._models: dict[int, tuple[float, DeadlineModel]] = {}

    def of(self, cluster: Cluster, now: datetime) -> DeadlineModel:
        cached = self._models.get(cluster.pk)
        if cached and time.monotonic() - cached[0] < MAX_MODEL_AGE_S:
            return cached[1]
        model = DeadlineModel(snapshot.past_jobs(cluster, now), past_waits(cluster))
        self._models[cluster.pk] = time.monotonic(), model
        return model


models = _ModelCache()
