"""How fast jobs are on each GPU model: what operators have given, and steps per second of earlier attempts. Reads only.

Each process caches measured speeds for a minute, because a turn runs every second and they change slowly.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from jobs.core.gpu_models import SEPARATOR, gpu_models
from jobs.models import Cluster, Job
from scheduling.engine.cluster import WaitingJob
from scheduling.engine.gpu_speeds import GpuSpeeds, SpeedEntry, SpeedScope, SpeedSource
from scheduling.models import GpuSpeed
from scheduling.queries.measured_speeds import ByModel, measure_speeds

MAX_SCOPES = 500  # names that are looked up at once; the jobs of others have no measured speeds in this turn
MAX_AGE_S = 60.0
MAX_CACHED = 20_000


def speeds_of(cluster: Cluster, waiting: Iterable[WaitingJob]) -> GpuSpeeds:
    """Return the speeds of the waiting jobs that name several GPU models."""
    return known_speeds(cluster, {speed_scope(job) for job in waiting if SEPARATOR in job.need.gpu_model})


def speed_scope(job: WaitingJob) -> SpeedScope:
    return SpeedScope(job.user, job.title, job.need.total_gpus)


def known_speeds(cluster: Cluster, scopes: Collection[SpeedScope]) -> GpuSpeeds:
    """Return the speed table of the cluster, and the measured speeds of these jobs."""
    return GpuSpeeds(table=speed_table(cluster), measured=measured.of(cluster, scopes))


def speed_table(cluster: Cluster) -> tuple[SpeedEntry, ...]:
    rows = GpuSpeed.objects.filter(cluster=cluster).order_by("pattern", "gpu_model")
    columns = rows.values_list("pattern", "gpu_model", "speed")
    return tuple(SpeedEntry(pattern=pattern, gpu_model=model, speed=speed) for pattern, model, speed in columns)


class _MeasuredSpeeds:
    """Caches measured speeds, also that there are none."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, SpeedScope], tuple[float, ByModel]] = {}

    def of(self, cluster: Cluster, scopes: Collection[SpeedScope]) -> dict[SpeedScope, ByModel]:
        now, asked = time.monotonic(), [scope for scope in scopes if scope.title and scope.gpus]
        old = [scope for scope in asked if now - self._at(cluster, scope) >= MAX_AGE_S][:MAX_SCOPES]
        if len(self._known) > MAX_CACHED:
            self._known.clear()
        found = measure_speeds(cluster, old)
        self._known |= {(cluster.pk, scope): (now, found.get(scope, {})) for scope in old}
        known = {scope: self._known.get((cluster.pk, scope), (0.0, {}))[1] for scope in asked}
        return {scope: by_model for scope, by_model in known.items() if by_model}

    def _at(self, cluster: Cluster, scope: SpeedScope) -> float:
        return self._known.get((cluster.pk, scope), (float("-inf"), {}))[0]


measured = _MeasuredSpeeds()


@dataclass(frozen=True, kw_only=True)
class ModelSpeed:
    """What is known of one job on one model."""

    gpu_model: str
    speed: float | None
    attempts: int = 0
    slowdown: float | None = None


@dataclass(frozen=True, kw_only=True)
class JobModelSpeeds:
    """What is known of one job, on the models that it requests; if it names none, on those with a known speed."""

    source: SpeedSource
    pattern: str
    models: tuple[ModelSpeed, ...]


def job_model_speeds(job: Job) -> JobModelSpeeds:
    scope, requested = SpeedScope(str(job.user_id), job.name, job.nodes * job.gpus_per_node), gpu_models(job.gpu_model)
    known = known_speeds(job.cluster, [scope]).of(scope, requested)
    models = requested or tuple(known.by_model)
    slowdowns = known.slowdowns(models) or (None,) * len(models)
    rows = tuple(
        ModelSpeed(
            gpu_model=model, speed=known.by_model.get(model), attempts=known.attempts.get(model, 0), slowdown=slowdown
        )
        for model, slowdown in zip(models, slowdowns, strict=True)
    )
    return JobModelSpeeds(source=known.source, pattern=known.pattern, models=rows)
