"""Reads what the scheduler may know about the past of a cluster, for its snapshot. Two short queries."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from django.db import connection
from django.db.models import F, FloatField, Sum
from django.db.models.functions import Extract, Greatest

from jobs.core.lifecycle import LIVE_STATES, State
from jobs.models import Attempt, Cluster, Job
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


def attained_service(cluster: Cluster) -> Mapping[int, float]:
    """Return the GPU-seconds of ended attempts by id of the waiting or running job."""
    ran = Extract(Greatest("ended_at", "promised_at") - F("promised_at"), "epoch", output_field=FloatField())
    # Named states can use an index; "not final" would read all jobs of the cluster
    unfinished = sorted({State.PENDING, *LIVE_STATES})
    rows = Attempt.objects.filter(job__cluster=cluster, job__state__in=unfinished, ended_at__isnull=False)
    gpus = F("job__nodes") * F("job__gpus_per_node")
    return dict(rows.order_by().values_list("job").annotate(served=Sum(ran * gpus, output_field=FloatField())))
