"""Estimate run times: from past jobs of the same user and name, else from the prediction, else from the limit. Pure.

A time limit is an upper bound, not a prediction. Reservations rely on it, because they must hold; whatever is merely
expected uses `expected_remaining_s`. It spreads the prediction log-normally and looks only at run times that are longer
than the job has run already, so a job that has outrun its prediction is expected to go on for a while.

`RunTimeEstimates` gives whole distributions. Past jobs of the same user with the same name and size count first, then
those with the same name; both need a few jobs. Then the prediction counts. A job without one is assumed to use a
fraction of its time limit, distributed as in past jobs. An estimate is an array of equally likely run times, shortest
first, so drawing one is an array lookup.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from scheduling.engine.cluster import ClusterSnapshot, RunningJob, WaitingJob
from scheduling.engine.history import UNKNOWN_S

DAY_S = 86_400.0
QUANTILE_COUNT = 20
MIN_PAST_JOBS = 3  # past jobs needed for an estimate
MAX_PAST_JOBS = 64  # the newest ones of one user, name and size
# Fractions of their limits that jobs use if there is no history: most end early, some use all of it
DEFAULT_LIMIT_FRACTIONS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.55, 0.75, 1.0, 1.0)

LIMIT_FRACTION = 0.35  # the median of these
PREDICTION_SIGMA = 1.0  # of the logarithm: nine of ten jobs run within a factor of five of their prediction
MAX_SIGMAS = 6.0  # a job that has run longer than this is treated as if its prediction were longer
MAX_REMAINING_S = 1e9  # so that the end is a date
NORMAL = NormalDist()
LEVELS = [(level + 0.5) / QUANTILE_COUNT for level in range(QUANTILE_COUNT)]

RunTimes = NDArray[np.float64]


def expected_remaining_s(predicted_s: float, ran_s: float = 0.0, limit_s: float = math.inf) -> float:
    """The time that a job is expected to run from now on, if it has run for `ran_s`: the median, at most until its
    limit. Without a prediction (`UNKNOWN_S`) a job is expected to use a third of its limit, or a day.
    """
    return _remaining_times(predicted_s, ran_s, limit_s, [0.5])[0]


def expected_end(snapshot: ClusterSnapshot, job: RunningJob) -> datetime | None:
    """When a running job is expected to end; None without a prediction."""
    predicted_s = snapshot.history.prediction_s(job.id, trees=True) if snapshot.history else UNKNOWN_S
    if predicted_s < 0.0 or not job.started_at:
        return None
    attained_by_speed = snapshot.history.attained_by_speed.get(job.id, 0.0) if snapshot.history else 0.0
    return predicted_end(
        predicted_s * job.slowdown,
        now=snapshot.now,
        started_at=job.started_at,
        limit=job.time_limit,
        earlier_s=job.slowdown * attained_by_speed / max(1, job.gpus),  # as if all attempts had run on this model
    )


def predicted_end(
    predicted_s: float, *, now: datetime, started_at: datetime, limit: timedelta | None, earlier_s: float = 0.0
) -> datetime:
    """When a job is expected to end that began at `started_at`, after attempts that ran for `earlier_s` together. A
    prediction is for all attempts, the limit for each.
    """
    limit_s = earlier_s + limit.total_seconds() if limit else math.inf
    ran_s = earlier_s + max(0.0, (now - started_at).total_seconds())
    return now + timedelta(seconds=min(expected_remaining_s(predicted_s, ran_s, limit_s), MAX_REMAINING_S))


def _remaining_times(predicted_s: float, ran_s: float, limit_s: float, levels: Sequence[float]) -> list[float]:
    """Quantiles of the remaining time."""
    if predicted_s < 0.0:
        predicted_s = LIMIT_FRACTION * limit_s if limit_s < math.inf else DAY_S
    middle = math.log(max(1.0, min(predicted_s, limit_s)))
    longer = 1.0
    if ran_s > 0.0:
        middle = max(middle, math.log(ran_s) - MAX_SIGMAS * PREDICTION_SIGMA)
        longer = NORMAL.cdf((middle - math.log(ran_s)) / PREDICTION_SIGMA)
    logs = [middle - PREDICTION_SIGMA * NORMAL.inv_cdf(longer * (1.0 - level)) for level in levels]
    return [max(0.0, min(math.exp(log), limit_s) - ran_s) for log in logs]


SPREAD = np.array(_remaining_times(1.0, 0.0, math.inf, LEVELS))  # run times of a job with a prediction of 1 s


@dataclass(frozen=True, kw_only=True)
class PastJob:
    """A job that has ended."""

    user: str
    title: str
    gpus: int
    ran_s: float
    limit_s: float = math.inf
    kind: str = ""
    predicted_s: float = UNKNOWN_S  # before it started


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

    def waiting(self, job: WaitingJob, predicted_s: float = UNKNOWN_S) -> RunTimes:
        """Equally likely run times of a waiting job."""
        limit = _limit_s(job)
        if predicted_s >= 0.0 and self._similar_run_times(job.user, job.title, job.need.total_gpus) is None:
            return np.minimum(max(1.0, predicted_s) * SPREAD, limit)
        return self._run_times(job.user, job.title, job.need.total_gpus, limit if limit < math.inf else DAY_S)

    def running(self, job: RunningJob, past_s: float, predicted_s: float = UNKNOWN_S) -> RunTimes:
        """Equally likely remaining times, on its GPU model. Only run times that are longer than this job has run count;
        the limit bounds them.
        """
        slowdown = job.slowdown
        if slowdown == 1.0:
            return self._remaining(job, past_s, predicted_s, _limit_s(job))
        return slowdown * self._remaining(job, past_s / slowdown, predicted_s, _limit_s(job) / slowdown)

    def _remaining(self, job: RunningJob, past_s: float, predicted_s: float, limit: float) -> RunTimes:
        """The remaining times on the first GPU model that it requested."""
        bound = limit if limit < math.inf else max(DAY_S, 2 * past_s)
        row = self._run_times(job.user, job.title, job.gpus, bound)
        longer = row[row > past_s] - past_s
        is_similar = self._similar_run_times(job.user, job.title, job.gpus) is not None
        if predicted_s >= 0.0 and not (is_similar and len(longer)):
            return np.array(_remaining_times(predicted_s, past_s, limit, LEVELS))
        return _quantiles(longer.tolist()) if len(longer) else max(0.0, bound - past_s) * self._parts

    def usual_run_time_s(self, job: WaitingJob) -> float | None:
        """The run time that nine of ten similar jobs did not exceed; None if there are too few."""
        ran = self._similar_run_times(job.user, job.title, job.need.total_gpus)
        return None if ran is None else float(_quantiles(ran)[QUANTILE_COUNT * 9 // 10])

    def _similar_run_times(self, user: str, title: str, gpus: int) -> list[float] | None:
        """The newest run times of the narrowest scope with enough jobs; None if there is none."""
        for scope in _scopes(user, title, gpus):
            if len(ran := self._habits.get(scope, ())) >= MIN_PAST_JOBS:
                return list(ran[-MAX_PAST_JOBS:])
        return None

    def _run_times(self, user: str, title: str, gpus: int, limit_s: float) -> RunTimes:
        key = (user, title, gpus, limit_s)
        if (row := self._rows.get(key)) is None:
            row = self._rows[key] = self._find_run_times(user, title, gpus, limit_s)
        return row

    def _find_run_times(self, user: str, title: str, gpus: int, limit_s: float) -> RunTimes:
        ran = self._similar_run_times(user, title, gpus)
        return limit_s * self._parts if ran is None else np.minimum(_quantiles(ran), limit_s)


def _limit_s(job: WaitingJob | RunningJob) -> float:
    return job.time_limit.total_seconds() if job.time_limit else math.inf


def _scopes(user: str, title: str, gpus: int) -> tuple[tuple[object, ...], ...]:
    return ((user, title, gpus), (user, title)) if title else ()


def _quantiles(values: Sequence[float]) -> RunTimes:
    """Reduce the values to `QUANTILE_COUNT` equally likely ones."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    at = (np.arange(QUANTILE_COUNT) + 0.5) / QUANTILE_COUNT * len(ordered)
    return ordered[at.astype(np.int64)]
