"""GPU utilization of the jobs of a period by user, from telemetry. Writes nothing.

One statement, which returns one row per user and team. Periods longer than two days use hourly samples. A month of
jobs has hundreds of thousands of allocations, most of them too short for a whole hour. So the GPUs that a job holds on
a node at one time are read together, and samples are looked up only for those that were held long enough to have one.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import F, Min, Q, QuerySet, Value
from django.db.models.functions import Coalesce, NullIf

from jobs.core.lifecycle import FINAL_STATES
from jobs.models import Cluster, Job, Resolution
from jobs.models.permissions import Caller
from scheduling.ledger.rules.waste import IDLE_BELOW, MAX_WORST_JOBS, JobGpuUse, TeamGpuUse

FINE_RESOLUTION_LIMIT = timedelta(days=2)

# `held` has the GPUs that a job held on a node in the same interval
GPU_USAGE_SQL = """
WITH job AS MATERIALIZED ({jobs}),
held AS MATERIALIZED (
  SELECT job.id AS job_id, al.node_id, greatest(al.held_at, p.since) AS begin,
    greatest(least(coalesce(al.released_at, p.until), p.until), p.since) AS over, array_agg(al.gpu) AS gpus
  FROM (SELECT %s::timestamptz AS since, %s::timestamptz AS until) AS p
  CROSS JOIN job JOIN jobs_attempt t ON t.job_id = job.id JOIN jobs_allocation al ON al.attempt_id = t.id
  WHERE al.gpu IS NOT NULL AND t.promised_at < p.until AND (t.ended_at IS NULL OR t.ended_at > p.since)
  GROUP BY 1, 2, 3, 4
), total AS (
  SELECT job_id, sum((over - begin) * cardinality(gpus)) AS held FROM held GROUP BY 1
), per_gpu AS (
  SELECT h.job_id, h.node_id, g.gpu, count(s.gpu_util[g.gpu + 1]) AS seen,
    count(*) FILTER (WHERE s.gpu_util[g.gpu + 1] < %s) AS idle
  FROM held h CROSS JOIN (SELECT %s::int AS resolution, %s::interval AS step) AS p
  JOIN jobs_sample s ON s.node_id = h.node_id AND s.resolution = p.resolution
    AND s.at >= h.begin AND s.at <= h.over - p.step
  CROSS JOIN unnest(h.gpus) AS g (gpu) WHERE h.over - h.begin >= p.step GROUP BY 1, 2, 3
), measured AS (
  SELECT job_id, sum(seen) AS seen, sum(idle) AS idle, count(*) FILTER (WHERE seen > 0 AND idle = seen) AS never
  FROM per_gpu GROUP BY 1
), ranked AS (
  SELECT job.*, total.held, m.seen, m.idle, m.never,
    row_number() OVER (PARTITION BY job.person, job.of_team ORDER BY m.idle DESC NULLS LAST, job.public_id) AS place
  FROM total JOIN job ON job.id = total.job_id LEFT JOIN measured m ON m.job_id = job.id
), worst AS MATERIALIZED (
  SELECT r.*, count(DISTINCT (h.node_id, g.gpu)) AS gpus
  FROM ranked r JOIN held h ON h.job_id = r.id CROSS JOIN unnest(h.gpus) AS g (gpu)
  WHERE r.place <= %s AND r.idle > 0
  GROUP BY r.id, r.public_id, r.name, r.person, r.of_team, r.kind, r.held, r.seen, r.idle, r.never, r.place
)
SELECT r.person, r.of_team, count(*), extract(epoch FROM sum(r.held))::float, coalesce(sum(r.seen), 0)::float,
  coalesce(sum(r.idle), 0)::float,
  (SELECT jsonb_agg(jsonb_build_array(w.public_id, w.name, w.kind, w.gpus, w.never, w.seen, w.idle) ORDER BY w.place)
   FROM worst w WHERE w.person = r.person AND w.of_team = r.of_team)
FROM ranked r GROUP BY r.person, r.of_team
"""


def resolution(since: datetime, until: datetime) -> Resolution:
    """Return the finest resolution within the limit. Recently added clusters may have no hourly samples yet, so only
    the time since the first cluster was added counts."""
    first = Cluster.objects.aggregate(first=Min("created_at"))["first"]
    begin = max(since, first) if first else since
    return Resolution(Resolution.FIVE_MINUTES if until - begin <= FINE_RESOLUTION_LIMIT else Resolution.HOUR)


def gpu_uses(caller: Caller, since: datetime, until: datetime) -> list[TeamGpuUse]:
    """Return the GPU use of the users whose jobs the caller may see, by team. Cluster operators see all teams."""
    step = resolution(since, until)
    jobs, of_jobs = _jobs_in_period(caller, since, until).query.sql_with_params()
    params = [*of_jobs, since, until, IDLE_BELOW, int(step), timedelta(seconds=step), MAX_WORST_JOBS]
    with connection.cursor() as cursor:
        cursor.execute(GPU_USAGE_SQL.format(jobs=jobs), params)
        return [_team_use(row, step / 3600) for row in cursor.fetchall()]


def _jobs_in_period(caller: Caller, since: datetime, until: datetime) -> QuerySet[Job, dict[str, Any]]:
    visible = Job.objects.all() if caller.may_operate_clusters else caller.jobs()
    in_period = Q(ended_at__gte=since) | (Q(ended_at=None) & ~Q(state__in=FINAL_STATES))
    rows = visible.filter(in_period, submitted_at__lt=until, gpus_per_node__gt=0).order_by()
    names = {"person": Coalesce(NullIf("foreign_user", Value("")), "user__username"), "of_team": F("team__name")}
    return rows.values("id", "public_id", "name", "kind", **names)


def _team_use(row: tuple[Any, ...], step_h: float) -> TeamGpuUse:
    user, team, jobs, held_s, seen, idle, worst = row
    return TeamGpuUse(
        user=user, team=team, jobs=jobs, held_h=held_s / 3600, measured_h=seen * step_h, idle_h=idle * step_h,
        worst=[
            JobGpuUse(
                public_id=public_id, name=name, kind=kind, gpus=gpus, never_used=never,
                measured_h=seen * step_h, idle_h=idle * step_h,
            )
            for public_id, name, kind, gpus, never, seen, idle in json.loads(worst or "[]")
        ],
    )  # fmt: skip
