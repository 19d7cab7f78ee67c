"""Jobs whose speeds are known: a table of steps per second by width, for jobs that keep their batch size."""

from __future__ import annotations

import math

import numpy as np

from scheduling.research.widths.jobs import ElasticModel, Spread
from scheduling.research.widths.values import Floats, Ints, WidthForecast


class TableJob(ElasticModel):
    """A job of some steps. Between two widths of the table its speed is interpolated; nodes make no difference.

    The widths are ascending and start with 1.
    """

    def __init__(self, widths: Ints, steps_per_s: Floats, steps: float) -> None:
        self.work = steps
        self._widths, self._speeds = widths, steps_per_s

    @property
    def widest(self) -> int:
        return int(self._widths[self._speeds.argmax()])

    def speed(self, spread: Spread, progress: float) -> float:
        return float(self.speeds(np.array([sum(spread)]))[0])

    def speeds(self, gpus: Ints) -> Floats:
        speeds: Floats = np.interp(gpus, self._widths, self._speeds)
        return speeds

    def next_change(self, progress: float) -> float:
        return self.work

    def forecast(self, progress: float) -> WidthForecast:
        return TableForecast(self, self.work - progress)


class TableForecast(WidthForecast):
    def __init__(self, job: TableJob, left: float) -> None:
        self._job, self._left = job, left

    def speeds(self, gpus: Ints, nodes: Ints) -> Floats:
        return self._job.speeds(gpus)

    def seconds_left(self, gpus: int, nodes: int) -> float:
        speed = self._job.speed((gpus,), 0.0)
        return self._left / speed if speed > 0 else math.inf
