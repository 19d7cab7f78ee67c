"""AFS (NSDI'21): every GPU goes to the job for which it shortens the mean completion time most, compared in pairs.

Of two jobs, let the first be the one that ends earlier. If it gets the GPU, it ends earlier still, and then all its
GPUs help the second. So the second gets the GPU only if its gain, as a part of its new speed, is larger than the gain
of the first, as a part of its old speed: this follows from the sum of the two completion times. Jobs without a GPU get
their first one before others get more, the shortest first. Jobs keep their batch size.
"""

from __future__ import annotations

import math
from functools import reduce

import numpy as np

from scheduling.research.widths.placing import spread_places
from scheduling.research.widths.values import Places, WidthJob, WidthPolicy, WidthView


class PairwiseGains(WidthPolicy):
    name = "afs"

    def places(self, view: WidthView) -> dict[int, Places]:
        jobs = [GrowingJob(view, job) for job in view.jobs]
        for _ in range(view.gpus):
            able = [job for job in jobs if job.can_grow]
            if not able:
                break
            reduce(preferred, able).gpus += 1
        return spread_places(view, {job.number: job.gpus for job in sorted(jobs, key=lambda job: job.gpus)})


class GrowingJob:
    """A job and the GPUs that it has been given so far in this decision."""

    def __init__(self, view: WidthView, job: WidthJob) -> None:
        gpus = np.arange(1, min(job.widest, view.gpus) + 1)
        self.number, self.gpus = job.number, 0
        self._speeds: list[float] = [0.0, *job.forecast.speeds(gpus, -(-gpus // view.node_gpus)).tolist()]
        self._work = job.forecast.seconds_left(1, 1) * self._speeds[1]

    @property
    def can_grow(self) -> bool:
        """Whether one more GPU makes it faster."""
        return self.gpus + 1 < len(self._speeds) and self.next_speed > self.speed

    @property
    def speed(self) -> float:
        return self._speeds[self.gpus]

    @property
    def next_speed(self) -> float:
        return self._speeds[self.gpus + 1]

    def seconds_left(self, gpus: int) -> float:
        return self._work / self._speeds[gpus] if self._speeds[gpus] > 0 else math.inf


def preferred(one: GrowingJob, other: GrowingJob) -> GrowingJob:
    """Which of two jobs gets the next GPU."""
    if not one.gpus or not other.gpus:
        return min(one, other, key=lambda job: (job.gpus > 0, job.seconds_left(1), job.number))
    first, second = sorted((one, other), key=lambda job: (job.seconds_left(job.gpus), job.number))
    second_gain = (second.next_speed - second.speed) / second.next_speed
    return second if second_gain > (first.next_speed - first.speed) / first.speed else first
