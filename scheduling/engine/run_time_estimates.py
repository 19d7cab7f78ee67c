"""How long jobs take, as far as anybody can tell: as the same user's jobs of that name, else a part of the limit.

Of the same user, the same name and size count first, then the same name; both need a few past jobs to say anything.
Everybody else runs for a part of his time limit, and the parts are those of past jobs. An answer is a row of equally
likely run times, shortest first, so that drawing one is looking up a number. Pure.
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
MIN_PAST_JOBS = 3  # past jobs that make a habit
MAX_PAST_JOBS = 64  # of one user, name and size: the newest
# Parts of their limits that jobs take where there is no history: most end early, some use it up
DEFAULT_LIMIT_FRACTIONS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.55, 0.75, 1.0, 1.0)

RunTimes = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PastJob:
    user: str
    title: str
    gpus: int
    ran_s: float
    limit_s: float = math.inf


class RunTimeEstimates:
    def __init__(self, past: Iterable[PastJob] = (), parts: Sequence[float] = DEFAULT_LIMIT_FRACTIONS) -> None:
        """`past` is in the order of their ends, the newest last."""
        self._habits: dict[tuple[object, ...], list[float]] = defaultdict(list)
        used = []
        for job in past:
            for scope in _scopes(job.user, job.title, job.gpus):
                self._habits[scope].append(job.ran_s)
            if math.isfinite(job.limit_s) and job.limit_s > 0:
                used.append(min(1.0, job.ran_s / job.limit_s))
        self._parts = _quantiles(used if len(used) >= len(DEFAULT_LIMIT_FRACTIONS) else parts)
        self._rows: dict[tuple[object, ...], RunTimes] = {}

    def waiting(self, job: WaitingJob) -> RunTimes:
        limit = job.time_limit.total_seconds() if job.time_limit else DAY_S
        return self._run_times(job.user, job.title, job.need.total_gpus, limit)

    def running(self, job: RunningJob, past_s: float) -> RunTimes:
        """What is left. It has not ended yet, so only those count that took longer; the limit is the end of all."""
        limit = job.time_limit.total_seconds() if job.time_limit else max(DAY_S, 2 * past_s)
        row = self._run_times(job.user, job.title, job.gpus, limit)
        longer = row[row > past_s] - past_s
        return _quantiles(longer.tolist()) if len(longer) else max(0.0, limit - past_s) * self._parts

    def usual_run_time_s(self, job: WaitingJob) -> float | None:
        """What nine of ten took of those that are like it; None where there were too few to say."""
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
    """As many numbers as everybody has, each as likely as the others."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    at = (np.arange(QUANTILE_COUNT) + 0.5) / QUANTILE_COUNT * len(ordered)
    return ordered[at.astype(np.int64)]
