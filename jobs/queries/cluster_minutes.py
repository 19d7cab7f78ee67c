"""Reads the per-minute load of a cluster, or of all clusters together, as a series of equal steps.

`scheduling.ledger.loops.cluster_minutes` writes the rows. A query reads the minutes of its range from one index:
1,440 rows for a day, 10,080 for a week.
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


DAY_STEP = timedelta(minutes=30)
DAY_STEP_COUNT = 49  # the first one is the same half hour of yesterday
RECENT = timedelta(minutes=5)

# Means over the GPUs of all clusters. A cluster without telemetry does not count for the utilization
DAY_USAGE_SQL = """
SELECT %(last)s - floor(extract(epoch FROM %(until)s - at) / %(step)s)::int,
    100.0 * sum(allocated) / nullif(sum(gpus), 0),
    sum(utilization * gpus) / nullif(sum(gpus) FILTER (WHERE utilization IS NOT NULL), 0),
    sum(utilization * gpus) FILTER (WHERE at > %(recent)s)
        / nullif(sum(gpus) FILTER (WHERE utilization IS NOT NULL AND at > %(recent)s), 0),
    sum(waiting)::float8 / count(DISTINCT at)
FROM jobs_clusterminute WHERE at > %(since)s AND at <= %(until)s GROUP BY 1
"""


@dataclass(frozen=True, kw_only=True)
class DayUsage:
    """Means over all clusters by half hour, from the same half hour of yesterday to the current one."""

    allocated_percent: Sequence[float | None]
    utilization: Sequence[float | None]
    pending: Sequence[float | None]
    recent_utilization: float | None  # the last five minutes


def day_usage(now: datetime) -> DayUsage:
    values: list[list[float | None]] = [[None] * DAY_STEP_COUNT for _ in range(3)]
    recent = None
    params = {
        "last": DAY_STEP_COUNT - 1,
        "step": DAY_STEP.total_seconds(),
        "since": now - DAY_STEP_COUNT * DAY_STEP,
        "recent": now - RECENT,
        "until": now,
    }
    with connection.cursor() as cursor:
        cursor.execute(DAY_USAGE_SQL, params)
        for number, allocated, utilization, newest, pending in cursor.fetchall():
            for series, value in zip(values, (allocated, utilization, pending), strict=True):
                series[number] = None if value is None else float(value)
            recent = newest if newest is not None else recent
    allocated_percent, utilizations, pendings = values
    return DayUsage(
        allocated_percent=allocated_percent, utilization=utilizations, pending=pendings, recent_utilization=recent
    )
