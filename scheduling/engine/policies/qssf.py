"""Quasi-shortest service first (Helios, SC'21): the smallest predicted GPU time goes first. Strict, without preemption.

The prediction is made once, at submission, by the paper's rolling estimate alone (`predicting` says how it differs from
the paper's); any other predictor may be given, as `qssf-ml` does. The mean error of the predictions is in the report.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from scheduling.engine.engine import Engine, EngineJob
from scheduling.engine.predicting import Predictor, RollingPredictor
from scheduling.engine.rules import PolicyRules
from scheduling.engine.turns.strict import strict_turn


@mypyc_attr(allow_interpreted_subclasses=True)
class QssfRules(PolicyRules):
    name = "qssf"
    one_line = True

    def __init__(self, predictor: Predictor | None = None) -> None:
        self.predictor = predictor or RollingPredictor()
        self._said: dict[int, float] = {}  # of those who have not ended
        self._error_s = 0.0  # sum over ended jobs of |predicted - ran|
        self._ended = 0

    def turn(self, engine: Engine, now: float) -> None:
        strict_turn(engine, now)

    def key(self, job: EngineJob, now: float) -> float:
        said = self._said.get(job.number)
        if said is None:
            said = self._said[job.number] = self.predictor.predict(job)
        return said * job.ask.gpus

    def ended(self, job: EngineJob, now: float) -> None:
        ran_s = job.attained / max(1, job.ask.gpus) + now - job.since
        said = self._said.pop(job.number, None)
        if said is not None:
            self._error_s += abs(said - ran_s)
            self._ended += 1
        self.predictor.learn(job, ran_s)

    def mean_error_s(self) -> float | None:
        return self._error_s / self._ended if self._ended else None
