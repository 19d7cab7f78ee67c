"""Aggregates telemetry: many samples of one node to one value per GPU. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

Series = Sequence[float | None]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def last(values: Sequence[float]) -> float:
    return values[-1]


# A mean would hide short temperature peaks. For Xid codes, operators look up the most recent one.
AGGREGATIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "gpu_util": mean,
    "gpu_memory_mib": mean,
    "gpu_temperature_c": max,
    "gpu_power_w": mean,
    "xid": last,
}


def aggregate_per_gpu(column: str, rows: Sequence[Series]) -> list[float | None]:
    """Return one value per GPU from rows in chronological order. A GPU without a reading stays None."""
    width = max((len(row) for row in rows), default=0)
    return [_aggregate_gpu(AGGREGATIONS[column], [row[gpu] for row in rows if gpu < len(row)]) for gpu in range(width)]


def _aggregate_gpu(aggregate: Callable[[Sequence[float]], float], values: Series) -> float | None:
    measured = [value for value in values if value is not None]
    return aggregate(measured) if measured else None


def interval_start(at: datetime, seconds: int) -> datetime:
    """Return the start of the interval that contains this time."""
    return at - timedelta(seconds=at.timestamp() % seconds)
