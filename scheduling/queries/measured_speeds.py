"""Steps per second of earlier attempts on each GPU model. Reads only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from datetime import timedelta
from statistics import median

from django.db import connection
from django.db.models import Count

from jobs.core.gpu_models import SEPARATOR
from jobs.models import Cluster, Job, clock
from scheduling.engine.gpu_speeds import MeasuredSpeed, SpeedScope
from scheduling.models.gpu_speed import GpuSpeed

MAX_ATTEMPTS = 20  # the newest jobs of a name
MAX_AGE = timedelta(days=90)  # of their submission, so that a common name does not read the whole history
MIN_STEPS = 10  # between the first and the last report of an attempt
MIN_SPAN_S = 60.0
MAX_RECENT_JOBS = 2_000  # among which `has_known_speeds` looks for names with measured speeds

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
    AND j.nodes * j.gpus_per_node = w.gpus AND j.submitted_at > %(since)s
  ORDER BY j.submitted_at DESC LIMIT %(most)s
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


def measure_speeds(cluster: Cluster, scopes: Collection[SpeedScope]) -> dict[SpeedScope, ByModel]:
    """Return the median steps per second of the newest attempts of each name, by GPU model."""
    columns = list(zip(*((int(scope.user), scope.title, scope.gpus) for scope in scopes), strict=True))
    if not columns:
        return {}
    values: dict[str, object] = dict(zip(("users", "names", "gpus"), map(list, columns), strict=True))
    values |= {"cluster": cluster.pk, "most": MAX_ATTEMPTS, "steps": MIN_STEPS, "span": MIN_SPAN_S}
    values["since"] = clock.now() - MAX_AGE
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


def has_known_speeds(cluster: Cluster) -> bool:
    """Whether jobs of any name have known speeds on two models: given, or measured of a recent job that names some."""
    given = GpuSpeed.objects.filter(cluster=cluster).order_by().values("pattern").annotate(models=Count("pk"))
    if given.filter(models__gt=1).exists():
        return True
    recent = Job.objects.filter(cluster=cluster).order_by("-id").values("pk")[:MAX_RECENT_JOBS]
    jobs = Job.objects.filter(pk__in=recent, gpu_model__contains=SEPARATOR).order_by()
    columns = jobs.values_list("user_id", "name", "nodes", "gpus_per_node").distinct()
    scopes = {SpeedScope(str(user), name, nodes * gpus) for user, name, nodes, gpus in columns if name}
    return any(len(by_model) > 1 for by_model in measure_speeds(cluster, scopes).values())
