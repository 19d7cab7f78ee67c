"""Reads the per-minute load of a cluster as a series of equal steps.

`scheduling.loops.cluster_minutes` writes the rows. A query reads the minutes of its range from one index: 1,440 rows
for a day, 10,080 for a week.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import connection

from jobs.core.telemetry_math import interval_start
from jobs.models import Cluster

MINUTE_COLUMNS = ("gpus", "allocated", "closed", "utilization", "running", "waiting", "requested")
STEPS_S = (60, 300, 900, 1800, 3600, 7200, 14_400)  # step sizes of plots; each divides a day

MINUTE_MEANS_SQL = f"""
SELECT floor(extract(epoch FROM at) / %(step)s)::bigint - %(first)s,
    {", ".join(f"avg({name})" for name in MINUTE_COLUMNS)}
FROM jobs_clusterminute WHERE cluster_id = %(cluster)s AND at >= %(since)s AND at < %(until)s GROUP BY 1
"""  # noqa: S608 - constant names


@dataclass(frozen=True, kw_only=True)
class ClusterUsageSeries:
    """Means over equal steps from `begin` on. None where no minute was recorded."""

    begin: datetime
    step_s: int
    values: dict[str, Sequence[float | None]]  # by column


def cluster_usage_series(cluster: Cluster, span: timedelta, most: int, now: datetime) -> ClusterUsageSeries:
    """Return the finest series with at most `most` steps. The last step is the current one."""
    step = next((step for step in STEPS_S if span.total_seconds() <= step * most), STEPS_S[-1])
    begin = interval_start(now - span, step) + timedelta(seconds=step)
    first, count = int(begin.timestamp()) // step, int((now - begin).total_seconds()) // step + 1
    values: dict[str, list[float | None]] = {name: [None] * count for name in MINUTE_COLUMNS}
    params = {"step": step, "first": first, "cluster": cluster.pk, "since": begin, "until": now}
    with connection.cursor() as cursor:
        cursor.execute(MINUTE_MEANS_SQL, params)
        for number, *means in cursor.fetchall():
            for name, mean in zip(MINUTE_COLUMNS, means, strict=True):
                values[name][number] = None if mean is None else round(float(mean), 1)
    return ClusterUsageSeries(begin=begin.astimezone(UTC), step_s=step, values={**values})
