"""Record the usage of each cluster once a minute, for its charts of a day and a week.

Eligible rows     Clusters without a row for this minute.
What a turn does  `record_minutes_once` reads each cluster's summary and the newest samples of its nodes, and writes one
                  row per cluster. `delete_old_minutes` deletes rows after the retention time.
Failure story     An existing row (two workers, a repeated turn) is not changed. A missed minute stays a gap in the
                  charts, because its values cannot be determined later. A cluster that does not respond gets a row
                  too, from the database.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import connection
from django.db.models import Count, Sum

from jobs.actions.retention import delete_all
from jobs.core.gpu_shares import WHOLE_GPU
from jobs.core.telemetry_math import interval_start
from jobs.models import MINUTE_RETENTION, ClusterMinute, Job, Resolution
from jobs.models.job import CHARGED_MILLI
from jobs.queries.busy_nodes import nodes_with_jobs
from jobs.queries.cluster_summary import ClusterSummary, cluster_summaries

ONE_MINUTE = timedelta(minutes=1)

# The newest sample of each node within the minute, so that a late sample does not count a node twice
GPU_UTILIZATION_SQL = """
SELECT n.cluster_id, avg(util) FROM (
  SELECT DISTINCT ON (node_id) node_id, gpu_util FROM jobs_sample
  WHERE resolution = %s AND at > %s AND at <= %s ORDER BY node_id, at DESC
) AS newest JOIN jobs_node n ON n.id = newest.node_id, unnest(newest.gpu_util) AS util GROUP BY 1
"""


def record_minutes_once(now: datetime) -> int:
    """Return the number of rows written."""
    at = interval_start(now, 60)
    there = set(ClusterMinute.objects.filter(at=at).values_list("cluster", flat=True))
    summaries = [summary for summary in cluster_summaries(now) if summary.cluster.pk not in there]
    if not summaries:
        return 0
    utilization, requested, busy = _gpu_utilization(now), _waiting_gpus(), busy_node_counts()
    rows = [
        _minute_row(
            summary,
            at,
            utilization=utilization.get(summary.cluster.pk),
            requested=requested.get(summary.cluster.pk, 0),
            busy_nodes=busy.get(summary.cluster.pk, 0),
        )
        for summary in summaries
    ]
    ClusterMinute.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)


def _minute_row(
    summary: ClusterSummary, at: datetime, *, utilization: float | None, requested: int, busy_nodes: int
) -> ClusterMinute:
    return ClusterMinute(
        cluster=summary.cluster,
        at=at,
        gpus=summary.capacity.total,
        allocated=summary.capacity.allocated,
        closed=summary.capacity.drained + summary.capacity.down,
        utilization=utilization,
        running=summary.running,
        waiting=summary.waiting,
        requested=requested,
        busy_nodes=busy_nodes,
    )


def _gpu_utilization(now: datetime) -> dict[int, float]:
    with connection.cursor() as cursor:
        cursor.execute(GPU_UTILIZATION_SQL, [Resolution.RAW, now - ONE_MINUTE, now])
        return {cluster: mean for cluster, mean in cursor.fetchall() if mean is not None}


def busy_node_counts() -> dict[int, int]:
    """The number of nodes with jobs by cluster, those from outside Acme included."""
    busy = nodes_with_jobs().order_by().values_list("cluster")
    return dict(busy.annotate(nodes=Count("pk")))


def _waiting_gpus() -> dict[int, int]:
    rows = Job.objects.waiting().order_by().values_list("cluster")
    return {cluster: -(-milli // WHOLE_GPU) for cluster, milli in rows.annotate(milli=Sum(CHARGED_MILLI))}


def delete_old_minutes(now: datetime) -> int:
    return delete_all(ClusterMinute.objects.filter(at__lt=now - MINUTE_RETENTION))
