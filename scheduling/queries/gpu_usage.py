"""GPU utilization of the jobs of a period, from telemetry, as `waste.JobGpuUse`.

Takes three statements. The cost grows with the GPU-intervals allocated. Periods longer than two days use hourly
samples, so a month of 10,000 GPUs reads about seven million rows, each by the index (node, resolution, at).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import connection
from django.db.models import Min, Q

from jobs.core.lifecycle import FINAL_STATES
from jobs.models import Attempt, Cluster, Job, Resolution
from jobs.models.permissions import Caller
from scheduling.ledger.waste import IDLE_BELOW, JobGpuUse
from scheduling.queries.ledger_rows import any_of

FINE_RESOLUTION_LIMIT = timedelta(days=2)

GPU_USAGE_SQL = """
WITH held AS MATERIALIZED (
  SELECT t.job_id, al.node_id, al.gpu, greatest(al.held_at, %(since)s) AS begin,
    least(coalesce(al.released_at, %(until)s), %(until)s) AS over
  FROM unnest(%(attempts)s::bigint[]) AS one (id)
  JOIN jobs_attempt t ON t.id = one.id JOIN jobs_allocation al ON al.attempt_id = t.id WHERE al.gpu IS NOT NULL
), per_gpu AS (
  SELECT h.job_id, h.node_id, h.gpu, sum(greatest(extract(epoch FROM h.over - h.begin), 0)) AS held_s,
    coalesce(sum(m.seen), 0) AS seen, coalesce(sum(m.idle), 0) AS idle
  FROM held h CROSS JOIN LATERAL (
    SELECT count(s.gpu_util[h.gpu + 1]) AS seen, count(*) FILTER (WHERE s.gpu_util[h.gpu + 1] < %(below)s) AS idle
    FROM jobs_sample s WHERE s.node_id = h.node_id AND s.resolution = %(resolution)s
      AND s.at >= h.begin AND s.at <= h.over - %(step)s
  ) AS m GROUP BY 1, 2, 3
)
SELECT job_id, sum(held_s), sum(seen), sum(idle), count(*) FILTER (WHERE seen > 0 AND idle = seen), count(*)
FROM per_gpu GROUP BY 1
"""


def resolution(since: datetime, until: datetime) -> Resolution:
    """Return the finest resolution within the limit. Recently added clusters may have no hourly samples yet, so only
    the time since the first cluster was added counts."""
    first = Cluster.objects.aggregate(first=Min("created_at"))["first"]
    begin = max(since, first) if first else since
    return Resolution(Resolution.FIVE_MINUTES if until - begin <= FINE_RESOLUTION_LIMIT else Resolution.HOUR)


class _JobRow(NamedTuple):
    """What the report needs of a job. A month has tens of thousands, and model instances would take seconds."""

    pk: int
    public_id: str
    name: str
    foreign_user: str
    username: str
    team: str
    kind: str


def gpu_uses(caller: Caller, since: datetime, until: datetime) -> list[JobGpuUse]:
    """Return the GPU use of the jobs that the caller may see. Cluster operators see the jobs of all teams."""
    visible = Job.objects.all() if caller.may_operate_clusters else caller.jobs()
    in_period = Q(ended_at__gte=since) | (Q(ended_at=None) & ~Q(state__in=FINAL_STATES))
    rows: Any = visible.filter(in_period, submitted_at__lt=until, gpus_per_node__gt=0).order_by()
    columns = ("pk", "public_id", "name", "foreign_user", "user__username", "team__name", "kind")
    jobs = {row[0]: _JobRow._make(row) for row in rows.values_list(*columns)}
    started = Attempt.objects.filter(job__in=any_of(jobs), promised_at__lt=until)
    attempts = list(started.filter(Q(ended_at=None) | Q(ended_at__gt=since)).order_by().values_list("pk", flat=True))
    step = resolution(since, until)
    return [
        _job_use(jobs[job], float(held) / 3600, seen * step / 3600, idle * step / 3600, never, gpus)
        for job, held, seen, idle, never, gpus in _measured_usage(attempts, since, until, step)
    ]


def _measured_usage(attempts: list[int], since: datetime, until: datetime, step: Resolution) -> list[tuple]:
    params = {"since": since, "until": until, "attempts": attempts, "below": IDLE_BELOW, "resolution": int(step)}
    with connection.cursor() as cursor:
        cursor.execute(GPU_USAGE_SQL, params | {"step": timedelta(seconds=step)})
        return cursor.fetchall()


def _job_use(job: _JobRow, held_h: float, measured_h: float, idle_h: float, never: int, gpus: int) -> JobGpuUse:
    return JobGpuUse(
        public_id=job.public_id,
        name=job.name,
        user=job.foreign_user or job.username,
        team=job.team,
        kind=job.kind,
        gpus=gpus,
        never_used=never,
        held_h=held_h,
        measured_h=float(measured_h),
        idle_h=float(idle_h),
    )
