"""How long will it run? Predictions from what is known at submission: whose job, its name, its width, the time of week.

`Rolling` is Helios' rolling estimate (SC'21): of the same user, the same name and size count first, then the same name,
then anything of the user, then everybody; each is a mean that forgets older jobs (weight 0.5 on the newest), so that it
needs no history in memory. Difference: names are compared as they are, not clustered by edit distance. `blending` has
what the paper uses beside it.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from scheduling.engine.engine import EngineJob

NEWEST_WEIGHT = 0.5
SharedMean = list[float | None]  # one number, that many share


@mypyc_attr(allow_interpreted_subclasses=True)
class Predictor:
    def predict(self, job: EngineJob) -> float:
        """Seconds, from what is known when it is submitted."""
        raise NotImplementedError

    def learn(self, job: EngineJob, ran_s: float) -> None:
        """It has ended."""


class RollingPredictor(Predictor):
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
        """From the narrowest to the widest; looked up once for all who are alike."""
        alike = job.user, job.name, job.ask.gpus
        if (known := self._wider.get(alike)) is None:
            known = self._wider[alike] = tuple(self._means.setdefault(alike[:first], [None]) for first in (3, 2, 1, 0))
        return known
