"""How fast jobs are on each GPU model: what operators have given, and steps per second of earlier attempts. Reads only.

Each process caches measured speeds for a minute, because a turn runs every second and they change slowly.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from statistics import median

from django.db import connection

from jobs.core.gpu_models import SEPARATOR, gpu_models
from jobs.models import Cluster, Job
from scheduling.engine.cluster import WaitingJob
from scheduling.engine.gpu_speeds import GivenSpeed, GpuSpeeds, MeasuredSpeed, SpeedScope, SpeedSource
from scheduling.models import GpuSpeed

MAX_ATTEMPTS = 20  # the newest jobs of a name
MAX_SCOPES = 500  # names that are looked up at once; the jobs of others have no measured speeds in this turn
MAX_AGE_S = 60.0
MAX_CACHED = 20_000
MIN_STEPS = 10  # between the first and the last report of an attempt
MIN_SPAN_S = 60.0

ByModel = dict[str, MeasuredSpeed]

# From each name to its newest jobs, to their attempts and to the first and the last report of each, all by index. An
# attempt counts with its mean speed, so that checkpoints and evaluations between its steps count too
SELECT_STEPS = """
SELECT w.user_id, w.name, w.gpus, n.gpu_model,
       (late.step - early.step) / extract(epoch FROM late.at - early.at)::float8
FROM unnest(%(users)s::bigint[], %(names)s::text[], %(gpus)s::int[]) w (user_id, name, gpus)
CROSS JOIN LATERAL (
  SELECT j.id FROM jobs_job j
  WHERE j.name = w.name AND j.user_id = w.user_id AND j.cluster_id = %(cluster)s AND j.started_at IS NOT NULL
    AND j.nodes * j.gpus_per_node = w.gpus
  ORDER BY j.id DESC LIMIT %(most)s
) j
JOIN jobs_attempt a ON a.job_id = j.id
CROSS JOIN LATERAL (
  SELECT at, step FROM jobs_progress p WHERE p.attempt_id = a.id AND step IS NOT NULL ORDER BY at LIMIT 1
) early
CROSS JOIN LATERAL (
  SELECT at, step FROM jobs_progress p WHERE p.attempt_id = a.id AND step IS NOT NULL ORDER BY at DESC LIMIT 1
) late
CROSS JOIN LATERAL (
  SELECT d.gpu_model FROM jobs_allocation l JOIN jobs_node d ON d.id = l.node_id
  WHERE l.attempt_id = a.id AND d.gpu_model <> '' LIMIT 1
) n
WHERE late.step - early.step >= %(steps)s AND late.at - early.at >= %(span)s * interval '1 second'
"""


def speeds_of(cluster: Cluster, waiting: Iterable[WaitingJob]) -> GpuSpeeds:
    """Return the speeds of the waiting jobs that name several GPU models."""
    return known_speeds(cluster, {speed_scope(job) for job in waiting if SEPARATOR in job.need.gpu_model})


def speed_scope(job: WaitingJob) -> SpeedScope:
    return SpeedScope(job.user, job.title, job.need.total_gpus)


def job_speed_scope(job: Job) -> SpeedScope:
    return SpeedScope(str(job.user_id), job.name, job.nodes * job.gpus_per_node)


def known_speeds(cluster: Cluster, scopes: Collection[SpeedScope]) -> GpuSpeeds:
    """Return the given speeds of the cluster, and the measured ones of these jobs."""
    return GpuSpeeds(given=given_speeds(cluster), measured=measured.of(cluster, scopes))


def given_speeds(cluster: Cluster) -> tuple[GivenSpeed, ...]:
    rows = GpuSpeed.objects.filter(cluster=cluster).order_by("pattern", "gpu_model")
    columns = rows.values_list("pattern", "gpu_model", "speed")
    return tuple(GivenSpeed(pattern=pattern, gpu_model=model, speed=speed) for pattern, model, speed in columns)


def measure_speeds(cluster: Cluster, scopes: Collection[SpeedScope]) -> dict[SpeedScope, ByModel]:
    """Return the median steps per second of the newest attempts of each name, by GPU model."""
    columns = list(zip(*((int(scope.user), scope.title, scope.gpus) for scope in scopes), strict=True))
    if not columns:
        return {}
    values = dict(zip(("users", "names", "gpus"), map(list, columns), strict=True))
    values |= {"cluster": cluster.pk, "most": MAX_ATTEMPTS, "steps": MIN_STEPS, "span": MIN_SPAN_S}  # type: ignore[dict-item]
    found: dict[SpeedScope, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with connection.cursor() as cursor:
        cursor.execute(SELECT_STEPS, values)
        for user, name, gpus, model, steps_per_s in cursor.fetchall():
            found[SpeedScope(str(user), name, gpus)][model].append(steps_per_s)
    return {
        scope: {
            model: MeasuredSpeed(steps_per_s=median(rates), attempts=len(rates)) for model, rates in by_model.items()
        }
        for scope, by_model in found.items()
    }


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
    scope, requested = job_speed_scope(job), gpu_models(job.gpu_model)
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
