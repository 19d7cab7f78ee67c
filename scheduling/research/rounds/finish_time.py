"""Finish-time fairness of Gavel (OSDI'20), after Themis: no job is delayed much more than others by sharing.

A job's ratio is its time from submission to its expected end, divided by what that time would be with an equal part of
the cluster: the time that its steps so far would have taken, and the rest at the speed of an equal part. The largest
ratio is as small as possible. A job that cannot reach the common ratio even at full speed runs at full speed, and the
others do not wait for it. Not aware of GPU types, a job is believed to run everywhere as fast as on the first type.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from jobs.traces.trace import Floats
from scheduling.research.rounds.programs import JobDemands
from scheduling.research.rounds.values import RoundPolicy, RoundView, TimeShares

PART_TOLERANCE = 0.005  # how far from all GPUs the search for the ratio may end
MAX_TRIES = 24


class FinishTimeFairness(RoundPolicy):
    """Believes that all types are as fast as the first."""

    name = "finish-time"
    aware = False

    def __init__(self) -> None:
        self._history = EqualPartHistory()
        self._haste = 1.0

    def shares(self, view: RoundView) -> TimeShares:
        speed = view.job_speeds[:, 0]
        equal_part = np.minimum(1.0, view.types.total / len(speed) / view.gpus)
        jobs = FinishTimes(view, self._history.alone_s(view, equal_part * speed), speed)

        def part(demands: Floats) -> tuple[float, Floats]:
            return float(demands / speed @ view.gpus) / view.types.total, demands / speed

        fractions, self._haste = jobs.fractions(part, self._haste)
        return TimeShares.alone(fractions[:, None] * view.types.parts)


class AwareFinishTimeFairness(RoundPolicy):
    """Knows the speeds of the jobs on each type."""

    name = "finish-time-aware"

    def __init__(self) -> None:
        self._history = EqualPartHistory()
        self._haste = 1.0

    def shares(self, view: RoundView) -> TimeShares:
        equal_part = view.types.counts / len(view.numbers) / view.gpus[:, None]
        equal_part = equal_part / np.maximum(1.0, equal_part.sum(axis=1, keepdims=True))
        alone_s = self._history.alone_s(view, (view.job_speeds * equal_part).sum(axis=1))
        jobs = FinishTimes(view, alone_s, view.job_speeds.max(axis=1))
        fractions, self._haste = jobs.fractions(JobDemands(view).part, self._haste)
        return TimeShares.alone(fractions)


class EqualPartHistory:
    """How long the steps of each job so far would have taken with an equal part of the cluster."""

    def __init__(self) -> None:
        self._jobs: dict[int, tuple[float, float, float]] = {}  # number -> seconds so far, remaining steps, speed

    def alone_s(self, view: RoundView, speeds: Floats) -> Floats:
        """The whole time with an equal part, whose speed is now `speeds`."""
        columns = view.numbers.tolist(), view.remaining.tolist(), speeds.tolist()
        self._jobs = {
            number: (self._seconds(number, remaining), remaining, speed)
            for number, remaining, speed in zip(*columns, strict=True)
        }
        past = np.array([seconds for seconds, _, _ in self._jobs.values()])
        return past + view.remaining / speeds

    def _seconds(self, number: int, remaining: float) -> float:
        seconds, before, speed = self._jobs.get(number, (0.0, remaining, 1.0))
        return seconds + (before - remaining) / speed


class FinishTimes:
    """What each job demands to end at a common ratio."""

    def __init__(self, view: RoundView, alone_s: Floats, fastest: Floats) -> None:
        self._age_s, self._remaining = view.age_s, view.remaining
        self._alone_s, self._fastest = alone_s, fastest

    def demands(self, haste: float) -> Floats:
        """The speeds for a ratio of 1 / haste; full speed for jobs that cannot reach it."""
        left_s = self._alone_s / haste - self._age_s
        shortest_s = self._remaining / self._fastest
        return self._remaining / np.maximum(left_s, shortest_s)

    def fractions(self, part: Callable[[Floats], tuple[float, Floats]], haste: float) -> tuple[Floats, float]:
        """The fractions for the smallest ratio for which the GPUs suffice, and 1 / ratio. `part` says which part of the
        GPUs is needed; it grows almost linearly with haste, except where a job reaches full speed. `haste` is a guess.
        """
        highest = float((self._alone_s / (self._age_s + self._remaining / self._fastest)).max())
        low, high = 0.0, math.inf
        haste = min(haste, highest)
        needed, fractions = part(self.demands(haste))
        for number in range(MAX_TRIES):
            if abs(needed - 1) <= PART_TOLERANCE or (needed <= 1 and haste == highest):
                break
            low, high = (haste, high) if needed <= 1 else (low, haste)
            aim = min(haste / needed, highest)
            bisects = number % 3 == 2 or not low < aim < high
            haste = (low + min(high, highest)) / 2 if bisects else aim
            needed, fractions = part(self.demands(haste))
        return fractions / max(1.0, needed), haste
