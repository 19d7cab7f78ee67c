"""Utilization and temperature of nodes: now, and over the last 24 hours.

One statement each, whatever the number of nodes. PostgreSQL computes the means over the GPUs, because reading the
arrays of a thousand nodes takes longer than the statements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection

from jobs.core.charts.sparkline import sparkline_points
from jobs.core.telemetry_math import interval_start
from jobs.models import Resolution
from jobs.queries.map_rows import MAX_READING_AGE

OLDEST_READING = timedelta(hours=1)  # that is shown, with its age
DAY_HOURS = 24
PERCENT_SCALE = (0.0, 100.0)
NEWEST_READINGS_SQL = """
SELECT node.id, newest.at, (SELECT avg(value) FROM unnest(newest.gpu_util) AS value),
  (SELECT max(value) FROM unnest(newest.gpu_temperature_c) AS value)
FROM jobs_node AS node, LATERAL (
  SELECT at, gpu_util, gpu_temperature_c FROM jobs_sample
  WHERE node_id = node.id AND resolution = %s AND at > %s AND at <= %s ORDER BY at DESC LIMIT 1
) AS newest
"""
HOURLY_UTILIZATION_SQL = """
SELECT node_id, array_agg(extract(epoch FROM at)::bigint), array_agg((SELECT avg(value) FROM unnest(gpu_util) AS value))
FROM jobs_sample WHERE node_id = ANY(%s) AND resolution = %s AND at >= %s AND at < %s GROUP BY node_id
"""


@dataclass(frozen=True, kw_only=True)
class NodeLoad:
    """The telemetry of a node. None means no reading."""

    utilization: float | None = None  # percent, the mean of its GPUs
    temperature: float | None = None  # of its hottest GPU
    outdated_since: datetime | None = None  # when it was read, if that is no longer current


def node_loads(now: datetime) -> dict[int, NodeLoad]:
    """The newest reading of the last hour of each node with telemetry, by node key."""
    with connection.cursor() as cursor:
        cursor.execute(NEWEST_READINGS_SQL, [Resolution.RAW, now - OLDEST_READING, now])
        return {
            node: NodeLoad(
                utilization=_finite(utilization),
                temperature=_finite(temperature),
                outdated_since=at if at <= now - MAX_READING_AGE else None,
            )
            for node, at, utilization, temperature in cursor.fetchall()
        }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def utilization_lines(nodes: Iterable[int], now: datetime) -> dict[int, str]:
    """The points of the sparklines of these nodes over the last 24 hours, by node key."""
    end = interval_start(now, Resolution.HOUR)
    begin = end - timedelta(hours=DAY_HOURS)
    with connection.cursor() as cursor:
        cursor.execute(HOURLY_UTILIZATION_SQL, [list(nodes), Resolution.HOUR, begin, end])
        return {node: _day_line(begin, hours, means) for node, hours, means in cursor.fetchall()}


def _day_line(begin: datetime, hours: Sequence[int], means: Sequence[float | None]) -> str:
    """The sparkline of 24 hours; an hour without telemetry is a gap."""
    values: list[float | None] = [None] * DAY_HOURS
    for hour, mean in zip(hours, means, strict=True):
        values[int(hour - begin.timestamp()) // Resolution.HOUR] = mean
    return sparkline_points(values, PERCENT_SCALE)
