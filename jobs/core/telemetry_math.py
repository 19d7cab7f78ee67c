"""Arithmetic over telemetry: many samples of one node to one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

Series = Sequence[float | None]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def last(values: Sequence[float]) -> float:
    return values[-1]


# Means hide the moment that matters for heat; the last Xid is the one a person looks up.
AGGREGATIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "gpu_util": mean,
    "gpu_memory_mib": mean,
    "gpu_temperature_c": max,
    "gpu_power_w": mean,
    "xid": last,
}


def aggregate_per_gpu(column: str, rows: Sequence[Series]) -> list[float | None]:
    """One value a GPU, from rows in the order of time; a GPU that was never measured stays None."""
    width = max((len(row) for row in rows), default=0)
    return [_aggregate_gpu(AGGREGATIONS[column], [row[gpu] for row in rows if gpu < len(row)]) for gpu in range(width)]


def _aggregate_gpu(how: Callable[[Sequence[float]], float], values: Series) -> float | None:
    measured = [value for value in values if value is not None]
    return how(measured) if measured else None


def interval_start(at: datetime, seconds: int) -> datetime:
    """The begin of the interval that a moment falls into."""
    return at - timedelta(seconds=at.timestamp() % seconds)
