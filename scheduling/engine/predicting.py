"""Predict run times from what is known at submission: user, job name, size and time of the week.

`RollingPredictor` is the rolling estimate of Helios (SC'21). It uses, in this order, jobs of the same user, name and
size; of the same user and name; of the same user; of all users. Each estimate is a mean that forgets older jobs (weight
0.5 on the newest), so no history is kept in memory. Difference: names are compared as they are, not clustered by edit
distance. `blending` adds the trees that the paper combines with it.
"""

from __future__ import annotations

import math

from mypy_extensions import mypyc_attr

from scheduling.engine.job import EngineJob

NEWEST_WEIGHT = 0.5
DAY_S = 86_400.0
SharedMean = list[float | None]  # a list of one number, shared by all jobs of a scope


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


class RollingPredictor(Predictor):
    """An exponentially weighted mean per user, name and size."""

    def __init__(self) -> None:
        self._means: dict[tuple[object, ...], SharedMean] = {}
        self._wider: dict[tuple[int, int, int], tuple[SharedMean, ...]] = {}

    def predict(self, job: EngineJob) -> float:
        mean = self.narrowest_mean(job)
        return 0.0 if mean is None else mean

    def narrowest_mean(self, job: EngineJob) -> float | None:
        """The mean of the narrowest scope in which a job has ended; None if no job has ended."""
        for (mean,) in self._scope_means(job):
            if mean is not None:
                return mean
        return None

    def learn(self, job: EngineJob, ran_s: float) -> None:
        for scope in self._scope_means(job):
            scope[0] = updated_mean(scope[0], ran_s)

    def _scope_means(self, job: EngineJob) -> tuple[SharedMean, ...]:
        """The means from the narrowest scope to the widest; cached for jobs with the same user, name and size."""
        alike = job.user, job.name, job.group.gpus
        if (means := self._wider.get(alike)) is None:
            means = self._wider[alike] = tuple(self._means.setdefault(alike[:first], [None]) for first in (3, 2, 1, 0))
        return means


class BoundedPredictor(RollingPredictor):
    """The predictions of a live cluster: the rolling estimate, at most the limit; without ended jobs the limit or a
    day.
    """

    def predict(self, job: EngineJob) -> float:
        return bounded_prediction(self.narrowest_mean(job), job.expected_s)
