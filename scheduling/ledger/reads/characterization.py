"""The figures of the page Characterization: jobs by kind, state, size and times, GPU utilization, and failures.

Jobs are counted in SQL, one row per combination that occurs. Of more than `MAX_JOBS` jobs every n-th is counted, which
changes shares and quantiles by less than a percentage point; of more than `MAX_NODE_SAMPLES` telemetry rows those of
every n-th interval are read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import Min

from failures.queries import failure_statistics
from jobs.models import Cluster, Node, Resolution, Sample
from scheduling.ledger.reads import gpu_usage
from scheduling.ledger.reads import table as ledger_table
from scheduling.ledger.rules.characterization import BOUNDS_S, CauseFigures, JobCell
from scheduling.whatif.replay.acme_study import FAILURE_GPU_TIME

MAX_JOBS = 200_000
MAX_NODE_SAMPLES = 50_000

# Jobs with GPUs that were submitted in the period, have run and have ended
POPULATION_SQL = """
FROM jobs_job j WHERE j.submitted_at >= %(since)s AND j.submitted_at < %(until)s AND j.gpus_per_node > 0
  AND j.started_at IS NOT NULL AND j.ended_at IS NOT NULL
  AND (%(cluster)s::bigint IS NULL OR j.cluster_id = %(cluster)s)
"""
# A bound belongs to the interval below it, which width_bucket counts otherwise; times have whole microseconds
CELLS_SQL = """
WITH job AS MATERIALIZED (
  SELECT j.id, j.kind, j.state, j.nodes * j.gpus_per_node AS gpus, j.submitted_at,
    extract(epoch FROM j.ended_at - j.started_at)::float8 AS ran_s
  {population} AND j.id %% %(nth)s = 0
), tries AS (
  SELECT a.job_id, min(coalesce(a.confirmed_at, a.promised_at)) AS first_start,
    sum(extract(epoch FROM a.ended_at - a.promised_at))::float8 AS held_s
  FROM jobs_attempt a JOIN job ON job.id = a.job_id WHERE a.ended_at IS NOT NULL GROUP BY 1
)
SELECT kind, state, gpus, width_bucket(ran_s - 5e-7, %(bounds)s::float8[]),
  width_bucket(extract(epoch FROM first_start - submitted_at)::float8 - 5e-7, %(bounds)s::float8[]),
  count(*), sum(gpus * held_s)
FROM job JOIN tries ON tries.job_id = job.id GROUP BY 1, 2, 3, 4, 5
"""
UTILIZATION_SQL = """
SELECT floor(util)::int, count(*) FROM unnest(%(times)s::timestamptz[]) AS at (moment)
JOIN jobs_sample s ON s.resolution = %(resolution)s AND s.at = at.moment
JOIN jobs_node n ON n.id = s.node_id CROSS JOIN LATERAL unnest(s.gpu_util) AS util
WHERE util IS NOT NULL AND (%(cluster)s::bigint IS NULL OR n.cluster_id = %(cluster)s) GROUP BY 1
"""


@dataclass(frozen=True, kw_only=True)
class JobCounts:
    """The counted jobs. `nth`: every n-th of all `jobs` was counted."""

    cells: Sequence[JobCell]
    jobs: int
    nth: int


@dataclass(frozen=True, kw_only=True)
class UtilizationCounts:
    """GPU samples by whole percent of utilization. Each is the mean of `resolution` seconds."""

    counts: dict[int, int]
    resolution: Resolution
    nth: int


def job_counts(cluster: Cluster | None, since: datetime, until: datetime) -> JobCounts:
    period = {"since": since, "until": until, "cluster": cluster.pk if cluster else None}
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) {POPULATION_SQL}", period)
        jobs = cursor.fetchone()[0]
        nth = max(1, math.ceil(jobs / MAX_JOBS))
        cursor.execute(CELLS_SQL.format(population=POPULATION_SQL), period | {"nth": nth, "bounds": list(BOUNDS_S)})
        rows = cursor.fetchall()
    cells = [
        JobCell(kind=kind, state=state, gpus=gpus, ran=ran, waited=waited, jobs=count, gpu_s=gpu_s)
        for kind, state, gpus, ran, waited, count, gpu_s in rows
    ]
    return JobCounts(cells=cells, jobs=jobs, nth=nth)


def utilization_counts(cluster: Cluster | None, since: datetime, until: datetime) -> UtilizationCounts:
    step = gpu_usage.resolution(since, until)
    # An installation may be younger than the period
    first_sample = Sample.objects.filter(resolution=step, at__gte=since).aggregate(first=Min("at"))["first"]
    since = first_sample or since
    nodes = Node.objects.filter(gpus__gt=0)
    count = (nodes.filter(cluster=cluster) if cluster else nodes).count()
    intervals = (until - since) / timedelta(seconds=step)
    nth = max(1, math.ceil(count * intervals / MAX_NODE_SAMPLES))
    first = math.ceil(since.timestamp() / step) * step
    moments = range(first, int(until.timestamp()), step * nth)
    times = [datetime.fromtimestamp(moment, since.tzinfo) for moment in moments]
    with connection.cursor() as cursor:
        cursor.execute(
            UTILIZATION_SQL,
            {"times": times, "resolution": int(step), "cluster": cluster.pk if cluster else None},
        )
        return UtilizationCounts(counts=dict(cursor.fetchall()), resolution=step, nth=nth)


def cause_figures(
    cluster: Cluster | None, since: datetime, until: datetime, teams: Sequence[int] | None, *, with_mttf: bool = True
) -> list[CauseFigures]:
    """Return the failures of these teams by cause, with the functions of the pages Failures and Reports. Only the MTTF
    needs the ledger, which takes seconds."""
    table = failure_statistics.failure_table("cause", since, until, teams, cluster.pk if cluster else None)
    mttf = ledger_table.table("cluster", since, until, teams, cluster).mttf_by_cause if with_mttf else {}
    return [
        CauseFigures(
            cause=row.reason,
            category=row.category,
            failures=row.num,
            gpu_time_pct=row.gpu_time_share_pct,
            ran_min=row.time_to_failure_min_avg,
            restart_min=row.time_to_restart_min_avg,
            hours_per_failure=mttf[row.reason].mean if row.reason in mttf else None,
            published_pct=FAILURE_GPU_TIME.get(row.reason),
        )
        for row in table.rows
    ]
