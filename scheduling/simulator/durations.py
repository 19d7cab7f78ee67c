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
STEPS = 20
ENOUGH = 3  # past jobs that make a habit
KEPT = 64  # of one user, name and size: the newest
# Parts of their limits that jobs take where there is no history: most end early, some use it up
PARTS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.55, 0.75, 1.0, 1.0)

Row = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PastJob:
    user: str
    title: str
    gpus: int
    ran_s: float
    limit_s: float = math.inf


class Durations:
    def __init__(self, past: Iterable[PastJob] = (), parts: Sequence[float] = PARTS) -> None:
        """`past` is in the order of their ends, the newest last."""
        self._habits: dict[tuple[object, ...], list[float]] = defaultdict(list)
        used = []
        for job in past:
            for scope in _scopes(job.user, job.title, job.gpus):
                self._habits[scope].append(job.ran_s)
            if math.isfinite(job.limit_s) and job.limit_s > 0:
                used.append(min(1.0, job.ran_s / job.limit_s))
        self._parts = _row(used if len(used) >= len(PARTS) else parts)
        self._rows: dict[tuple[object, ...], Row] = {}

    def waiting(self, job: WaitingJob) -> Row:
        limit = job.time_limit.total_seconds() if job.time_limit else DAY_S
        return self._of(job.user, job.title, job.need.total_gpus, limit)

    def running(self, job: RunningJob, past_s: float) -> Row:
        """What is left. It has not ended yet, so only those count that took longer; the limit is the end of all."""
        limit = job.time_limit.total_seconds() if job.time_limit else max(DAY_S, 2 * past_s)
        row = self._of(job.user, job.title, job.gpus, limit)
        longer = row[row > past_s] - past_s
        return _row(longer.tolist()) if len(longer) else max(0.0, limit - past_s) * self._parts

    def usual(self, job: WaitingJob) -> float | None:
        """What nine of ten took of those that are like it; None where there were too few to say."""
        for scope in _scopes(job.user, job.title, job.need.total_gpus):
            if len(ran := self._habits.get(scope, ())) >= ENOUGH:
                return float(_row(ran[-KEPT:])[STEPS * 9 // 10])
        return None

    def _of(self, user: str, title: str, gpus: int, limit_s: float) -> Row:
        key = (user, title, gpus, limit_s)
        if (row := self._rows.get(key)) is None:
            row = self._rows[key] = self._looked_up(user, title, gpus, limit_s)
        return row

    def _looked_up(self, user: str, title: str, gpus: int, limit_s: float) -> Row:
        for scope in _scopes(user, title, gpus):
            if len(ran := self._habits.get(scope, ())) >= ENOUGH:
                return np.minimum(_row(ran[-KEPT:]), limit_s)
        return limit_s * self._parts


def _scopes(user: str, title: str, gpus: int) -> tuple[tuple[object, ...], ...]:
    return ((user, title, gpus), (user, title)) if title else ()


def _row(values: Sequence[float]) -> Row:
    """As many numbers as everybody has, each as likely as the others."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    at = (np.arange(STEPS) + 0.5) / STEPS * len(ordered)
    return ordered[at.astype(np.int64)]
