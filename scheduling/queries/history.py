"""Reads what the scheduler may know about the past of a cluster, and the usage of past windows. Short queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from django.db import connection

from jobs.models import Cluster, Job
from scheduling.models.history import ATTEMPT_TIMES, DECAYED_ATTEMPT, EndedJob, decay_rate, jobs_in_order_of_ends

MAX_UNCOUNTED = 5_000  # ended attempts of all clusters that a snapshot adds; normally a few have ended since the count

# One statement sees one state of both tables, so an attempt that is counted meanwhile is neither lost nor doubled
SELECT_USAGE = f"""
SELECT t.name, sum(part.used) FROM (
  SELECT u.team_id, u.gpu_seconds * exp(greatest(-600, -%(rate)s * extract(epoch FROM %(now)s - u.at)::float8)) AS used
  FROM scheduling_accountusage u WHERE u.cluster_id = %(cluster)s
  UNION ALL
  SELECT j.team_id, {DECAYED_ATTEMPT}
  FROM (
    SELECT job_id, promised_at, ended_at FROM jobs_attempt WHERE NOT usage_counted AND ended_at IS NULL
    UNION ALL (
      SELECT job_id, promised_at, ended_at FROM jobs_attempt WHERE NOT usage_counted AND ended_at IS NOT NULL
      ORDER BY ended_at DESC LIMIT %(most)s
    )
  ) a JOIN jobs_job j ON j.id = a.job_id {ATTEMPT_TIMES}
  WHERE j.cluster_id = %(cluster)s
) part JOIN jobs_team t ON t.id = part.team_id GROUP BY t.name
"""  # noqa: S608 - the parts are constants

# Of the running jobs, which may be thousands, only those with a second attempt have ended ones. From jobs to attempts:
# a join of both may start at the ended attempts, which are the whole history
SELECT_ATTAINED = """
WITH candidates AS MATERIALIZED (
  SELECT j.id, j.nodes, j.gpus_per_node, j.gpu_milli
  FROM jobs_attempt a JOIN jobs_job j ON j.id = a.job_id AND j.cluster_id = %(cluster)s
  WHERE a.ended_at IS NULL AND a.number > 1
  UNION ALL
  SELECT id, nodes, gpus_per_node, gpu_milli FROM jobs_job WHERE cluster_id = %(cluster)s AND state = 'PENDING'
)
SELECT j.id, served.s, served.by_speed FROM candidates j
CROSS JOIN LATERAL (
  SELECT (sum(extract(epoch FROM greatest(a.ended_at, a.promised_at) - a.promised_at))
          * (j.nodes * j.gpus_per_node + j.gpu_milli / 1000.0))::float8 AS s,
         sum(extract(epoch FROM greatest(a.ended_at, a.promised_at) - a.promised_at)::float8 / a.slowdown)
          * (j.nodes * j.gpus_per_node + j.gpu_milli / 1000.0)::float8 AS by_speed
  FROM jobs_attempt a WHERE a.job_id = j.id AND a.ended_at IS NOT NULL
) served
WHERE served.s IS NOT NULL
"""

# Each attempt is joined with the windows that it overlaps only
SELECT_USED_PER_WINDOW = """
WITH windows AS (SELECT %(edges)s::timestamptz[] AS edges)
SELECT t.name, n, sum(
  (j.nodes::float8 * j.gpus_per_node + j.gpu_milli / 1000.0) * 2 / %(rate)s * sinh(%(rate)s / 2 * s.ran)
    * exp(greatest(-600, -%(rate)s * (extract(epoch FROM w.edges[n + 1] - e.till)::float8 + s.ran / 2)))
)
FROM windows w
CROSS JOIN jobs_job j JOIN jobs_attempt a ON a.job_id = j.id JOIN jobs_team t ON t.id = j.team_id
CROSS JOIN LATERAL generate_series(
  greatest(1, width_bucket(a.promised_at, w.edges)),
  least(array_length(w.edges, 1) - 1, width_bucket(coalesce(a.ended_at, %(now)s), w.edges))
) n
CROSS JOIN LATERAL (SELECT least(coalesce(a.ended_at, %(now)s), w.edges[n + 1]) AS till) e
CROSS JOIN LATERAL (
  SELECT least(64 * ln(2) / %(rate)s,
    greatest(0, extract(epoch FROM e.till - greatest(a.promised_at, w.edges[n]))))::float8 AS ran
) s
WHERE j.cluster_id = %(cluster)s AND (j.ended_at >= w.edges[1] OR j.ended_at IS NULL) GROUP BY t.name, n
"""


def used_per_window(cluster: Cluster, edges: Sequence[datetime], now: datetime) -> dict[str, list[float]]:
    """Return the GPU-seconds of each window between the edges, decayed to its end, by team name. The definition is that
    of `account_usage`; the cost grows with the attempts since the first edge."""
    values = {"cluster": cluster.pk, "edges": list(edges), "now": now, "rate": decay_rate(cluster)}
    used: dict[str, list[float]] = defaultdict(lambda: [0.0] * (len(edges) - 1))
    with connection.cursor() as cursor:
        cursor.execute(SELECT_USED_PER_WINDOW, values)
        for team, window, gpu_s in cursor.fetchall():
            used[team][window - 1] = gpu_s
    return dict(used)


def account_usage(cluster: Cluster, now: datetime, most: int = MAX_UNCOUNTED) -> dict[str, float]:
    """Return the decayed GPU-seconds by team name at `now`, including running attempts.

    Exact unless more than `most` attempts have ended and are not counted yet, as after an upgrade. Then the newest of
    them count, which have decayed least, and older ones are missing until the loop has counted them. So the cost grows
    with the attempts that run, not with the history.
    """
    values = {"cluster": cluster.pk, "now": now, "rate": decay_rate(cluster), "most": most}
    with connection.cursor() as cursor:
        cursor.execute(SELECT_USAGE, values)
        return dict(cursor.fetchall())


def learned_jobs(cluster: Cluster, most: int) -> list[EndedJob]:
    """Return the newest ended jobs from which run times were learned, in the order of their ends."""
    rows = Job.objects.filter(cluster=cluster, run_time_learned=True, foreign_id="", ended_at__isnull=False)
    return jobs_in_order_of_ends(rows.order_by("-ended_at").values("pk")[:most])


def attained_service(cluster: Cluster) -> tuple[dict[int, float], dict[int, float]]:
    """Return the GPU-seconds of ended attempts by id of the waiting or running job, and the same by the speeds of GPU
    models. The cost grows with the waiting jobs and those that have run before."""
    with connection.cursor() as cursor:
        cursor.execute(SELECT_ATTAINED, {"cluster": cluster.pk})
        rows = cursor.fetchall()
    return {job: gpu_s for job, gpu_s, _ in rows}, {job: by_speed for job, _, by_speed in rows}
