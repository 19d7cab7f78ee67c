"""The power of a fleet over time, from the jobs that ran on it without caps. Pure.

Profiles are integrated, not sampled, so the mean power of each interval is exact. Intervals last a second. They are
longer for long schedules, so that the number of intervals, summed over the jobs, is limited.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jobs.traces.trace import Floats
from scheduling.power.rules.energy import kwh
from scheduling.power.rules.gpu_clocks import PowerFleet
from scheduling.whatif.replay.power.budget_run import PowerJobs

SHORTEST_INTERVAL_S = 1.0
MAX_INTERVALS = 2_000_000
MAX_JOB_INTERVALS = 100_000_000  # summed over the jobs: seconds of work
CHUNK = 500_000  # intervals of jobs that are computed at once
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class PowerOverTime:
    """From the first start to the last end. `mean_w` has one value per interval."""

    first_s: float
    interval_s: float
    mean_w: Floats
    energy_j: float

    @property
    def energy_kwh(self) -> float:
        return kwh(self.energy_j)

    @property
    def peak_w(self) -> float:
        return float(self.mean_w.max(initial=0.0))

    def highest_w(self, most_points: int) -> tuple[Floats, Floats]:
        """The times at which equal parts begin, and the highest mean of each part."""
        begins = np.arange(0, len(self.mean_w), max(1, math.ceil(len(self.mean_w) / most_points)))
        highest: Floats = np.maximum.reduceat(self.mean_w, begins) if len(begins) else np.empty(0)
        return self.first_s + begins.astype(np.float64) * self.interval_s, highest

    def above_s(self, budget_w: float) -> float:
        """The time in intervals whose mean is above the budget."""
        return self.interval_s * int((self.mean_w > budget_w).sum())

    def longest_above_s(self, budget_w: float) -> float:
        """The longest time without an interval below the budget."""
        within = np.flatnonzero(np.concatenate([[True], self.mean_w <= budget_w, [True]]))
        return self.interval_s * int(np.diff(within).max() - 1)


@dataclass(frozen=True, kw_only=True)
class _JobIntervals:
    """The intervals in which each job runs."""

    first: Rows
    count: Rows

    @property
    def total(self) -> int:
        return int((self.first + self.count).max(initial=0))

    def chunks(self) -> Iterator[tuple[Rows, Rows]]:
        """Pairs of job and interval, job by job and in order of time. A long job is in several chunks."""
        ends = np.cumsum(self.count)
        begins = ends - self.count
        for low in range(0, int(ends[-1]) if len(ends) else 0, CHUNK):
            high = min(low + CHUNK, int(ends[-1]))
            jobs = np.arange(np.searchsorted(ends, low, side="right"), np.searchsorted(ends, high, side="left") + 1)
            rows = np.repeat(jobs, np.minimum(ends[jobs], high) - np.maximum(begins[jobs], low))
            yield rows, self.first[rows] + np.arange(low, high) - begins[rows]


def power_over_time(
    jobs: PowerJobs, fleet: PowerFleet, on_progress: Callable[[], None] = lambda: None
) -> PowerOverTime:
    """The power of all nodes. `on_progress` is called often; an exception in it ends the computation."""
    first_s = float(jobs.start_s.min(initial=np.inf))
    end_s = jobs.start_s + jobs.work_s
    span_s = float(end_s.max(initial=first_s)) - first_s if len(end_s) else 0.0
    interval_s, idle_w = _interval_s(jobs, span_s), fleet.power_w(0, 0)
    intervals = _intervals(jobs, first_s, interval_s)
    joules = np.zeros(intervals.total)
    for rows, at in intervals.chunks():
        at_s = first_s + at.astype(np.float64) * interval_s
        lowest = int(at.min())
        found = np.bincount(at - lowest, weights=_joules_above_idle(jobs, fleet, rows, at_s, interval_s))
        joules[lowest : lowest + len(found)] += found
        on_progress()
    return PowerOverTime(
        first_s=first_s,
        interval_s=interval_s,
        mean_w=idle_w + joules / interval_s,
        energy_j=idle_w * span_s + float(joules.sum()),
    )


def _interval_s(jobs: PowerJobs, span_s: float) -> float:
    return max(SHORTEST_INTERVAL_S, span_s / MAX_INTERVALS, float(jobs.work_s.sum()) / MAX_JOB_INTERVALS)


def _intervals(jobs: PowerJobs, first_s: float, interval_s: float) -> _JobIntervals:
    first = np.floor((jobs.start_s - first_s) / interval_s).astype(np.int64)
    end = np.ceil((jobs.start_s + jobs.work_s - first_s) / interval_s).astype(np.int64)
    return _JobIntervals(first=first, count=np.maximum(1, end - first))


def _joules_above_idle(jobs: PowerJobs, fleet: PowerFleet, rows: Rows, at_s: Floats, interval_s: float) -> Floats:
    """What each job draws above idle GPUs in an interval that begins at `at_s`."""
    profiles, start_s, work_s = jobs.profiles.rows(rows), jobs.start_s[rows], jobs.work_s[rows]
    before, after = (np.clip(at - start_s, 0, work_s) for at in (at_s, at_s + interval_s))
    high_s = profiles.high_s(after) - profiles.high_s(before)
    above_w = profiles.low_w - fleet.clocks.idle_w
    joules: Floats = (
        fleet.supply_factor
        * jobs.gpus[rows]
        * (above_w * (after - before) + (profiles.high_w - profiles.low_w) * high_s)
    )
    return joules
