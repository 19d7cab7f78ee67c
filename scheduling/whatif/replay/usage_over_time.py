"""Usage over the time of a replay at regular intervals: GPUs held, free and unusable, and waiting jobs. Pure.

Nothing is sampled between two points of the grid. If the replay takes longer than the grid was sized for, every second
point is dropped and the interval doubles, so the series stays small for a day as for a year.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs.traces.trace import Floats
from scheduling.engine.engine import Engine
from scheduling.engine.placements.gradient import Fragmentation

GRID_SAMPLES = 500
USAGE_COLUMNS = ("held", "free", "fragmented", "waiting")
PERCENTILES = tuple(range(101))
MAX_SERIES_POINTS = 200


@dataclass(frozen=True, kw_only=True)
class UsageSeries:
    """GPUs held and free, free GPUs that typical jobs cannot use, and waiting jobs. One row per time."""

    at_s: Floats
    held: Floats
    free: Floats
    fragmented: Floats
    waiting: Floats

    @staticmethod
    def sum_of_pools(courses: list[UsageSeries]) -> UsageSeries:
        """The sum over pools that were replayed separately, at all times of any of them."""
        at = np.unique(np.concatenate([series.at_s for series in courses]))
        sums = {name: np.zeros(len(at)) for name in USAGE_COLUMNS}
        for series in courses:
            if len(series.at_s):
                row = np.searchsorted(series.at_s, at, side="right") - 1
                for name in USAGE_COLUMNS:
                    sums[name] += np.where(row < 0, 0.0, getattr(series, name)[np.maximum(row, 0)])
        return UsageSeries(at_s=at, **sums)


class UsageSampler:
    """Samples an engine on a time grid."""

    def __init__(self, engine: Engine, fragmentation: Fragmentation, start: float, span: float) -> None:
        self._engine, self._fragmentation = engine, fragmentation
        self._step = max(1.0, span / GRID_SAMPLES)
        self._start = start
        self._rows: list[tuple[float, float, float, float, float]] = []

    def __call__(self, due: float, now: float, present: int) -> float:
        """Add samples until `now`. Nothing has changed between `due` and `now`. Return the time of the next one."""
        due = max(due, self._start)
        state = self._current_usage(present)
        while due < now:
            self._rows.append((due, *state))
            if len(self._rows) >= 2 * GRID_SAMPLES:
                del self._rows[1::2]
                self._step *= 2
            due = self._rows[-1][0] + self._step
        return due

    def _current_usage(self, present: int) -> tuple[float, float, float, float]:
        engine = self._engine
        resources = engine.resources
        # Nodes of a replay are equal, and no job runs on a node that is down
        held = resources.usable.bit_count() * resources.most - resources.free_gpus
        return held, resources.free_gpus, self._fragmentation.of_all_nodes(resources), present - len(engine.running)

    def course(self) -> UsageSeries:
        columns = np.array(self._rows, dtype=np.float64).reshape(-1, 5).T
        return UsageSeries(at_s=columns[0], **dict(zip(USAGE_COLUMNS, columns[1:], strict=True)))


def run_curves(queue: Floats, jct: Floats, course: UsageSeries, gpus: int) -> dict[str, Any]:
    """Curves of a run for charts, as lists of numbers, ready for JSON.

    They are small enough to be stored with the figures of the run: a distribution is 101 percentiles, and a series has
    at most `MAX_SERIES_POINTS` points. A point of the queue is the largest value of its interval, so that no peak is
    lost.
    """
    return {"queue_s": _percentiles(queue), "jct_s": _percentiles(jct), "usage": _usage(course, gpus)}


def _percentiles(values: Floats) -> list[float]:
    return np.percentile(values, PERCENTILES).round(1).tolist() if len(values) else []


def _usage(course: UsageSeries, gpus: int) -> dict[str, list[float]]:
    """Seconds since the first point, the mean share of held GPUs in percent, and the longest queue."""
    count = len(course.at_s)
    if not count:
        return {"at_s": [], "held_pct": [], "waiting": []}
    width = math.ceil(count / MAX_SERIES_POINTS)
    begins = np.arange(0, count, width)
    sizes = np.diff(np.append(begins, count))
    return {
        "at_s": (course.at_s[begins] - course.at_s[0]).round(0).tolist(),
        "held_pct": (np.add.reduceat(course.held, begins) / sizes / max(1, gpus) * 100).round(2).tolist(),
        "waiting": np.maximum.reduceat(course.waiting, begins).round(0).tolist(),
    }
