"""Quasi-shortest service first (Helios, SC'21): the smallest predicted GPU time goes first. Strict, without preemption.

The prediction is made once, at submission, by `predict`; here it is the paper's rolling estimate. Of the same user, the
same name and size count first, then the same name, then anything of the user, then everybody: each is a mean that
forgets older jobs (weight 0.5 on the newest), so that it needs no history in memory. Differences: names are compared as
they are, not by edit distance, and the gradient boosting model that the paper blends in is another predictor, not
this file.
"""

from __future__ import annotations

from scheduling.engine.engine import Job
from scheduling.engine.rules import Rules
from scheduling.engine.turns.strict import strict

NEWEST = 0.5


class Rolling:
    """Run time from what the user's jobs of that name and size took lately."""

    def __init__(self) -> None:
        self._means: dict[tuple[object, ...], float] = {}

    def predict(self, job: Job) -> float:
        for scope in self._scopes(job):
            if (mean := self._means.get(scope)) is not None:
                return mean
        return 0.0

    def learn(self, job: Job, ran_s: float) -> None:
        means = self._means
        for scope in self._scopes(job):
            mean = means.get(scope)
            means[scope] = ran_s if mean is None else mean + NEWEST * (ran_s - mean)

    def _scopes(self, job: Job) -> tuple[tuple[object, ...], ...]:
        user, name, gpus = job.user, job.name, job.ask.gpus
        return (user, name, gpus), (user, name), (user,), ()


class Qssf(Rules):
    name = "qssf"
    turn = staticmethod(strict)
    one_line = True

    def __init__(self, predictor: Rolling | None = None) -> None:
        self.predictor = predictor or Rolling()
        self.error_s = 0.0  # sum over ended jobs of |predicted - ran|
        self.ended_jobs = 0

    def key(self, job: Job, now: float) -> float:
        return self.predictor.predict(job) * job.ask.gpus

    def ended(self, job: Job, now: float) -> None:
        ran = now - job.since
        self.error_s += abs(job.key / max(1, job.ask.gpus) - ran)
        self.ended_jobs += 1
        self.predictor.learn(job, ran)

    def mean_error_s(self) -> float | None:
        return self.error_s / self.ended_jobs if self.ended_jobs else None
