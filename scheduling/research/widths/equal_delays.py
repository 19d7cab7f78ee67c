"""Finish-time fairness (Themis, NSDI'20) on GPUs of one type: the largest delay by sharing is as small as possible.

The delay of a job is its time from submission to its expected end, divided by what that time would be with an equal
part of the GPUs. The common delay is found by bisection.
"""

from __future__ import annotations

from scheduling.research.widths.turns import TakeTurns, equal_part, seconds_left
from scheduling.research.widths.values import WidthJob, WidthView

BISECTIONS = 40


class EqualDelays(TakeTurns):
    name = "finish-time"

    def __init__(self) -> None:
        super().__init__()
        self._alone: dict[int, tuple[float, float, float]] = {}  # seconds with an equal part, GPU-s so far, that part

    def fractions(self, view: WidthView) -> dict[int, float]:
        self._alone = {job.number: self._seconds_alone(view, job) for job in view.jobs}
        low, high = 0.0, 1.0
        while _needed_gpus(view, self._demands(view, high)) < view.gpus and high < 1e6:
            low, high = high, 2 * high
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            fits = _needed_gpus(view, self._demands(view, middle)) <= view.gpus
            low, high = (middle, high) if fits else (low, middle)
        return self._demands(view, low)

    def _seconds_alone(self, view: WidthView, job: WidthJob) -> tuple[float, float, float]:
        """What the work so far would have taken with an equal part."""
        part = equal_part(view, job.requested)
        alone_s, before, earlier_part = self._alone.get(job.number, (0.0, 0.0, part))
        alone_s += (job.attained_gpu_s - before) / job.requested / earlier_part
        return alone_s, job.attained_gpu_s, part

    def _demands(self, view: WidthView, haste: float) -> dict[int, float]:
        """The fractions for a delay of 1 / haste. A job that cannot reach it demands all the time."""
        return {job.number: self._demand(view, job, haste) for job in view.jobs}

    def _demand(self, view: WidthView, job: WidthJob, haste: float) -> float:
        alone_s, _, part = self._alone[job.number]
        left_s = seconds_left(view, job)
        if not haste:
            return 0.0
        available_s = (alone_s + left_s / part) / haste - job.age_s
        return 1.0 if available_s <= left_s else left_s / available_s


def _needed_gpus(view: WidthView, fractions: dict[int, float]) -> float:
    return sum(fractions[job.number] * job.requested for job in view.jobs)
