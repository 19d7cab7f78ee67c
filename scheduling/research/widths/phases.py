"""Jobs whose batch size, and so their speed, changes in phases while they run. They run at one width."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from scheduling.research.widths.jobs import ElasticModel, Spread
from scheduling.research.widths.values import Floats, Ints, WidthForecast


@dataclass(frozen=True)
class Phase:
    seconds: float
    steps_per_s: float
    batch: int


class PhasedJob(ElasticModel):
    """Progress is counted in seconds of running. `knows_phases`: forecasts count later phases at their own speeds;
    if not, everything that is left is believed to go on at the present speed.
    """

    def __init__(self, phases: Sequence[Phase], gpus: int, *, knows_phases: bool) -> None:
        self._phases, self._gpus, self._knows_phases = phases, gpus, knows_phases
        self._ends = list(accumulate(phase.seconds for phase in phases))
        self.work = self._ends[-1]

    @property
    def widest(self) -> int:
        return self._gpus

    def speed(self, spread: Spread, progress: float) -> float:
        return 1.0

    def next_change(self, progress: float) -> float:
        return self._ends[self._at(progress)]

    def forecast(self, progress: float) -> WidthForecast:
        phase = self._phases[self._at(progress)]
        return PhaseForecast(phase.steps_per_s, self._seconds_left(progress, phase))

    def _at(self, progress: float) -> int:
        return min(bisect_right(self._ends, progress), len(self._ends) - 1)

    def _seconds_left(self, progress: float, present: Phase) -> float:
        if self._knows_phases:
            return self.work - progress
        at = self._at(progress)
        examples = (self._ends[at] - progress) * present.steps_per_s * present.batch
        examples += sum(phase.seconds * phase.steps_per_s * phase.batch for phase in self._phases[at + 1 :])
        return examples / (present.steps_per_s * present.batch)


@dataclass(frozen=True)
class PhaseForecast(WidthForecast):
    steps_per_s: float
    left_s: float

    def speeds(self, gpus: Ints, nodes: Ints) -> Floats:
        return np.full(len(gpus), self.steps_per_s)

    def seconds_left(self, gpus: int, nodes: int) -> float:
        return self.left_s
