"""Predict run times from what is known at submission: user, job name, size and time of the week.

`RollingPredictor` is the rolling estimate of Helios (SC'21). It uses, in this order, jobs of the same user, name and
size; of the same user and name; of the same user; of all users. Each estimate is a mean that forgets older jobs (weight
0.5 on the newest), so no history is kept in memory. Difference: names are compared as they are, not clustered by edit
distance. `blending` adds the trees that the paper combines with it.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from scheduling.engine.job import EngineJob

NEWEST_WEIGHT = 0.5
SharedMean = list[float | None]  # a list of one number, shared by all jobs of a scope


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
        for (mean,) in self._scope_means(job):
            if mean is not None:
                return mean
        return 0.0

    def learn(self, job: EngineJob, ran_s: float) -> None:
        for scope in self._scope_means(job):
            mean = scope[0]
            scope[0] = ran_s if mean is None else mean + NEWEST_WEIGHT * (ran_s - mean)

    def _scope_means(self, job: EngineJob) -> tuple[SharedMean, ...]:
        """The means from the narrowest scope to the widest; cached for jobs with the same user, name and size."""
        alike = job.user, job.name, job.group.gpus
        if (means := self._wider.get(alike)) is None:
            means = self._wider[alike] = tuple(self._means.setdefault(alike[:first], [None]) for first in (3, 2, 1, 0))
        return means
