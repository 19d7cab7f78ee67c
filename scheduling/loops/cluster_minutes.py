"""Minute: write down what each cluster came to, once a minute, so that its day and its week can be drawn.

Who is eligible   every cluster without a row of this minute.
What a turn does  `minute_once` reads each cluster at a glance and the newest samples of its nodes, and writes one row
                  for each; `forget_once` deletes what is older than its keeping.
Failure story     A row that is there already (two workers, a repeated turn) is left as it is. A minute in which nobody
                  looked stays a gap, and is drawn as one: what was then cannot be seen any more. A cluster that does
                  not answer is written down too, with what the record knows of it.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import connection
from django.db.models import F, Sum

from jobs.actions.retention import delete_all
from jobs.core.telemetry_math import interval_start
from jobs.models import MINUTE_RETENTION, Job, Minute, Resolution
from jobs.queries.cluster_summary import ClusterSummary, cluster_summaries

ONE_MINUTE = timedelta(minutes=1)

# Of a node's samples within the minute the newest: a cluster that is sampled late must not count twice
GPU_UTILISATION_SQL = """
SELECT n.cluster_id, avg(util) FROM (
  SELECT DISTINCT ON (node_id) node_id, gpu_util FROM jobs_sample
  WHERE resolution = %s AND at > %s AND at <= %s ORDER BY node_id, at DESC
) AS newest JOIN jobs_node n ON n.id = newest.node_id, unnest(newest.gpu_util) AS util GROUP BY 1
"""


def record_minutes_once(now: datetime) -> int:
    """Return how many clusters were written down."""
    at = interval_start(now, 60)
    there = set(Minute.objects.filter(at=at).values_list("cluster", flat=True))
    looked = [glance for glance in cluster_summaries(now) if glance.cluster.pk not in there]
    if not looked:
        return 0
    busy, wanted = _gpu_utilisation(now), _waiting_gpus()
    rows = [_minute_row(one, at, busy.get(one.cluster.pk), wanted.get(one.cluster.pk, 0)) for one in looked]
    Minute.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)


def _minute_row(one: ClusterSummary, at: datetime, busy: float | None, wanted: int) -> Minute:
    return Minute(
        cluster=one.cluster,
        at=at,
        gpus=one.capacity.total,
        held=one.capacity.allocated,
        closed=one.capacity.drained + one.capacity.down,
        busy=busy,
        running=one.running,
        waiting=one.waiting,
        wanted=wanted,
    )


def _gpu_utilisation(now: datetime) -> dict[int, float]:
    with connection.cursor() as cursor:
        cursor.execute(GPU_UTILISATION_SQL, [Resolution.RAW, now - ONE_MINUTE, now])
        return {cluster: mean for cluster, mean in cursor.fetchall() if mean is not None}


def _waiting_gpus() -> dict[int, int]:
    rows = Job.objects.waiting().order_by().values_list("cluster")
    return dict(rows.annotate(gpus=Sum(F("nodes") * F("gpus_per_node"))))


def delete_old_minutes(now: datetime) -> int:
    return delete_all(Minute.objects.filter(at__lt=now - MINUTE_RETENTION))
