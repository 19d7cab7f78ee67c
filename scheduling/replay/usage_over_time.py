"""How a replay went over time: what was held, free, useless and waited for, on an even grid. Pure.

Looking costs nothing between two moments of the grid. When the replay takes longer than the grid was made for, every
second moment is dropped and the steps double, so that it stays small for a day as for a year.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jobs.traces.trace import Floats
from scheduling.engine.engine import Engine
from scheduling.engine.placements.gradient import Fragmentation

GRID_SAMPLES = 500
USAGE_COLUMNS = ("held", "free", "fragmented", "waiting")


@dataclass(frozen=True, kw_only=True)
class UsageSeries:
    """GPUs held, free, and of the free ones those that typical jobs cannot use; jobs that wait. One row a moment."""

    at_s: Floats
    held: Floats
    free: Floats
    fragmented: Floats
    waiting: Floats

    @staticmethod
    def sum_of_pools(courses: list[UsageSeries]) -> UsageSeries:
        """The sum over pools that were replayed apart, at the moments of any of them."""
        at = np.unique(np.concatenate([one.at_s for one in courses]))
        sums = {name: np.zeros(len(at)) for name in USAGE_COLUMNS}
        for one in courses:
            if len(one.at_s):
                row = np.searchsorted(one.at_s, at, side="right") - 1
                for name in USAGE_COLUMNS:
                    sums[name] += np.where(row < 0, 0.0, getattr(one, name)[np.maximum(row, 0)])
        return UsageSeries(at_s=at, **sums)


class UsageSampler:
    def __init__(self, engine: Engine, fragmentation: Fragmentation, start: float, span: float) -> None:
        self._engine, self._fragmentation = engine, fragmentation
        self._step = max(1.0, span / GRID_SAMPLES)
        self._start = start
        self._rows: list[tuple[float, float, float, float, float]] = []

    def __call__(self, due: float, now: float, there: int) -> float:
        """Nothing has changed between the moment asked for and now."""
        due = max(due, self._start)
        state = self._current_usage(there)
        while due < now:
            self._rows.append((due, *state))
            if len(self._rows) >= 2 * GRID_SAMPLES:
                del self._rows[1::2]
                self._step *= 2
            due = self._rows[-1][0] + self._step
        return due

    def _current_usage(self, there: int) -> tuple[float, float, float, float]:
        engine = self._engine
        room = engine.room
        # The nodes of a replay are alike, and on one that is down nobody runs
        held = room.usable.bit_count() * room.most - room.free_gpus
        return held, room.free_gpus, self._fragmentation.of_all_nodes(room), there - len(engine.running)

    def course(self) -> UsageSeries:
        columns = np.array(self._rows, dtype=np.float64).reshape(-1, 5).T
        return UsageSeries(at_s=columns[0], **dict(zip(USAGE_COLUMNS, columns[1:], strict=True)))
