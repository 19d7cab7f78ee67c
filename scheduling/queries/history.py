"""Reads what the scheduler may know about the past of a cluster, for its snapshot. Two short queries."""

from __future__ import annotations

from datetime import datetime

from django.db import connection

from jobs.core.lifecycle import LIVE_STATES, State
from jobs.models import Cluster
from scheduling.models.history import ATTEMPT_TIMES, DECAYED_ATTEMPT, decay_rate

# One statement sees one state of both tables, so an attempt that is counted meanwhile is neither lost nor doubled
SELECT_USAGE = f"""
SELECT t.name, sum(part.used) FROM (
  SELECT u.team_id, u.gpu_seconds * exp(greatest(-600, -%(rate)s * extract(epoch FROM %(now)s - u.at)::float8)) AS used
  FROM scheduling_accountusage u WHERE u.cluster_id = %(cluster)s
  UNION ALL
  SELECT j.team_id, {DECAYED_ATTEMPT}
  FROM jobs_attempt a JOIN jobs_job j ON j.id = a.job_id {ATTEMPT_TIMES}
  WHERE NOT a.usage_counted AND j.cluster_id = %(cluster)s
) part JOIN jobs_team t ON t.id = part.team_id GROUP BY t.name
"""  # noqa: S608 - the parts are constants

# From the jobs to their attempts: a join of both may start at the ended attempts, which are the whole history. Named
# states can use an index; "not final" would read all jobs of the cluster
SELECT_ATTAINED = """
SELECT j.id, served.s FROM jobs_job j CROSS JOIN LATERAL (
  SELECT (sum(extract(epoch FROM greatest(a.ended_at, a.promised_at) - a.promised_at))
          * j.nodes * j.gpus_per_node)::float8 AS s
  FROM jobs_attempt a WHERE a.job_id = j.id AND a.ended_at IS NOT NULL
) served
WHERE j.cluster_id = %(cluster)s AND j.state = ANY(%(states)s) AND served.s IS NOT NULL
"""


def account_usage(cluster: Cluster, now: datetime) -> dict[str, float]:
    """Return the decayed GPU-seconds by team name, exact at `now` and including running attempts. The cost grows with
    the attempts that run or have ended since the last count, not with the history."""
    values = {"cluster": cluster.pk, "now": now, "rate": decay_rate(cluster)}
    with connection.cursor() as cursor:
        cursor.execute(SELECT_USAGE, values)
        return dict(cursor.fetchall())


def attained_service(cluster: Cluster) -> dict[int, float]:
    """Return the GPU-seconds of ended attempts by id of the waiting or running job. The cost grows with these jobs."""
    values = {"cluster": cluster.pk, "states": sorted({State.PENDING, *LIVE_STATES})}
    with connection.cursor() as cursor:
        cursor.execute(SELECT_ATTAINED, values)
        return dict(cursor.fetchall())
