"""Estimate run times: from past jobs of the same user and name, else as a fraction of the time limit. Pure.

Past jobs of the same user with the same name and size count first, then those with the same name; both need a few jobs.
All other jobs are assumed to use a fraction of their time limit, distributed as in past jobs. An estimate is an array
of equally likely run times, shortest first, so drawing one is an array lookup.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduling.engine.cluster import RunningJob, WaitingJob

DAY_S = 86_400.0
QUANTILE_COUNT = 20
MIN_PAST_JOBS = 3  # past jobs needed for an estimate
MAX_PAST_JOBS = 64  # the newest ones of one user, name and size
# Fractions of their limits that jobs use if there is no history: most end early, some use all of it
DEFAULT_LIMIT_FRACTIONS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.55, 0.75, 1.0, 1.0)

RunTimes = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PastJob:
    """A job that has ended."""

    user: str
    title: str
    gpus: int
    ran_s: float
    limit_s: float = math.inf


class RunTimeEstimates:
    """Estimates from past jobs."""

    def __init__(self, past: Iterable[PastJob] = (), parts: Sequence[float] = DEFAULT_LIMIT_FRACTIONS) -> None:
        """`past` is ordered by end time, the newest last."""
        self._habits: dict[tuple[object, ...], list[float]] = defaultdict(list)
        fractions = []
        for job in past:
            for scope in _scopes(job.user, job.title, job.gpus):
                self._habits[scope].append(job.ran_s)
            if math.isfinite(job.limit_s) and job.limit_s > 0:
                fractions.append(min(1.0, job.ran_s / job.limit_s))
        self._parts = _quantiles(fractions if len(fractions) >= len(DEFAULT_LIMIT_FRACTIONS) else parts)
        self._rows: dict[tuple[object, ...], RunTimes] = {}

    def waiting(self, job: WaitingJob) -> RunTimes:
        """Equally likely run times of a waiting job."""
        limit = job.time_limit.total_seconds() if job.time_limit else DAY_S
        return self._run_times(job.user, job.title, job.need.total_gpus, limit)

    def running(self, job: RunningJob, past_s: float) -> RunTimes:
        """Equally likely remaining times. Only past jobs that ran longer than this one has count; the limit bounds
        them.
        """
        limit = job.time_limit.total_seconds() if job.time_limit else max(DAY_S, 2 * past_s)
        row = self._run_times(job.user, job.title, job.gpus, limit)
        longer = row[row > past_s] - past_s
        return _quantiles(longer.tolist()) if len(longer) else max(0.0, limit - past_s) * self._parts

    def usual_run_time_s(self, job: WaitingJob) -> float | None:
        """The run time that nine of ten similar jobs did not exceed; None if there are too few."""
        for scope in _scopes(job.user, job.title, job.need.total_gpus):
            if len(ran := self._habits.get(scope, ())) >= MIN_PAST_JOBS:
                return float(_quantiles(ran[-MAX_PAST_JOBS:])[QUANTILE_COUNT * 9 // 10])
        return None

    def _run_times(self, user: str, title: str, gpus: int, limit_s: float) -> RunTimes:
        key = (user, title, gpus, limit_s)
        if (row := self._rows.get(key)) is None:
            row = self._rows[key] = self._find_run_times(user, title, gpus, limit_s)
        return row

    def _find_run_times(self, user: str, title: str, gpus: int, limit_s: float) -> RunTimes:
        for scope in _scopes(user, title, gpus):
            if len(ran := self._habits.get(scope, ())) >= MIN_PAST_JOBS:
                return np.minimum(_quantiles(ran[-MAX_PAST_JOBS:]), limit_s)
        return limit_s * self._parts


def _scopes(user: str, title: str, gpus: int) -> tuple[tuple[object, ...], ...]:
    return ((user, title, gpus), (user, title)) if title else ()


def _quantiles(values: Sequence[float]) -> RunTimes:
    """Reduce the values to `QUANTILE_COUNT` equally likely ones."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    at = (np.arange(QUANTILE_COUNT) + 0.5) / QUANTILE_COUNT * len(ordered)
    return ordered[at.astype(np.int64)]
