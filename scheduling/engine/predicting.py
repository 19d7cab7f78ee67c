"""Predict run times from what is known at submission: user, job name, kind and size.

`RollingPredictor` is the rolling estimate of Helios (SC'21). It uses, in this order, jobs of the same user, name and
size; of the same user and name; of the same user and a similar name; of the same user and kind; of the same user; of
the same kind; all jobs. Each estimate is a mean that forgets older jobs (weight 0.5 on the newest), so no history is
kept in memory. Differences: names are similar if they differ only in their numbers, not by edit distance, so that one
lookup finds them; and the kinds are ours. `blending` adds the trees that the paper combines with it.
"""

from __future__ import annotations

import math
import re

from mypy_extensions import mypyc_attr

from scheduling.engine.job import EngineJob

NEWEST_WEIGHT = 0.5
DAY_S = 86_400.0
SharedMean = list[float | None]  # a list of one number, shared by all jobs of a scope
NAME_NUMBERS = re.compile(r"[0-9a-f]{7,}|[0-9]+")  # also hashes


def name_without_numbers(name: str) -> str:
    """The name in small letters with a # for each number or hash. Similar names share it."""
    return NAME_NUMBERS.sub("#", name.lower())


def updated_mean(mean: float | None, ran_s: float) -> float:
    """The mean after one more run time. It forgets older ones."""
    return ran_s if mean is None else mean + NEWEST_WEIGHT * (ran_s - mean)


def bounded_prediction(mean: float | None, limit_s: float) -> float:
    """A run time for the order of the queue: the mean of similar jobs, at most the limit. Without similar jobs the
    limit, else a day.
    """
    if mean is None:
        return limit_s if limit_s < math.inf else DAY_S
    return min(mean, limit_s)


@mypyc_attr(allow_interpreted_subclasses=True)
class Predictor:
    """Predicts run times and learns from jobs that have ended."""

    def predict(self, job: EngineJob) -> float:
        """The expected run time in seconds, from what is known at submission."""
        raise NotImplementedError

    def learn(self, job: EngineJob, ran_s: float) -> None:
        """Record that the job ended after this run time."""


@mypyc_attr(allow_interpreted_subclasses=True)
class RollingPredictor(Predictor):
    """An exponentially weighted mean per scope."""

    def __init__(self) -> None:
        self._means: dict[tuple[object, ...], SharedMean] = {}
        self._scopes: dict[tuple[int, int, int, int], tuple[SharedMean, ...]] = {}

    def predict(self, job: EngineJob) -> float:
        mean = self.expected_mean(job)
        return 0.0 if mean is None else mean

    def expected_mean(self, job: EngineJob) -> float | None:
        """The mean of the narrowest scope in which a job has ended; None if no job has ended."""
        for (mean,) in self._scope_means(job):
            if mean is not None:
                return mean
        return None

    def learn(self, job: EngineJob, ran_s: float) -> None:
        for scope in self._scope_means(job):
            scope[0] = updated_mean(scope[0], ran_s)

    def _scope_means(self, job: EngineJob) -> tuple[SharedMean, ...]:
        """The means from the narrowest scope to the widest; cached for jobs with the same user, name, size and kind."""
        alike = job.user, job.name, job.group.gpus, job.kind
        if (means := self._scopes.get(alike)) is None:
            user, name, gpus, kind = alike
            scopes: tuple[tuple[object, ...], ...] = (
                *((user, name, gpus), (user, name), ("similar", user, job.similar)),
                *(("user and kind", user, kind), (user,), ("kind", kind), ()),
            )
            means = self._scopes[alike] = tuple(self._means.setdefault(scope, [None]) for scope in scopes)
        return means


class BoundedPredictor(Predictor):
    """The predictions of a live cluster: the mean of another predictor, at most the limit; without ended jobs the limit
    or a day.
    """

    def __init__(self, means: RollingPredictor) -> None:
        self._means = means

    def predict(self, job: EngineJob) -> float:
        return bounded_prediction(self._means.expected_mean(job), job.expected_s)

    def learn(self, job: EngineJob, ran_s: float) -> None:
        self._means.learn(job, ran_s)
