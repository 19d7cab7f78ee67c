"""How long the jobs that started within the last hour had waited. Two small indexes find these jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection

# A job that started within the hour is running or ended within it
QUEUE_WAITS_SQL = """
SELECT cluster_id, percentile_cont(%s) WITHIN GROUP (
    ORDER BY extract(epoch FROM GREATEST(started_at - submitted_at, '0'))  -- some clusters report whole seconds
)
FROM jobs_job WHERE (state IN ('RUNNING', 'SUSPENDED') OR ended_at >= %s) AND started_at >= %s
GROUP BY ROLLUP (cluster_id) HAVING count(*) > 0 ORDER BY cluster_id
"""


@dataclass(frozen=True, kw_only=True)
class QueueWaits:
    """Seconds for each quantile; by cluster only those in which a job started."""

    by_cluster: Mapping[int, Sequence[float]]
    overall: Sequence[float]  # empty if no job started


def recent_queue_waits(now: datetime, quantiles: Sequence[float]) -> QueueWaits:
    since = now - timedelta(hours=1)
    with connection.cursor() as cursor:
        cursor.execute(QUEUE_WAITS_SQL, [list(quantiles), since, since])
        rows = dict(cursor.fetchall())
    overall = rows.pop(None, ())
    return QueueWaits(by_cluster=rows, overall=overall)
