"""Quasi-shortest service first (Helios, SC'21): the smallest predicted GPU time goes first. Strict, without preemption.

The prediction is made once, at submission, by the paper's rolling estimate alone (`predicting` lists the differences).
Another predictor can be passed, as in `qssf-ml`. The report contains the mean error of the predictions. On a live
cluster the prediction is stored with the job, and the rules predict nothing themselves.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from scheduling.engine.engine import Engine, PolicyRules
from scheduling.engine.job import EngineJob
from scheduling.engine.predicting import Predictor, RollingPredictor
from scheduling.engine.turns.strict import strict_turn


@mypyc_attr(allow_interpreted_subclasses=True)
class QssfRules(PolicyRules):
    """Orders jobs by predicted run time times GPUs."""

    name = "qssf"
    single_queue = True

    def __init__(self, predictor: Predictor | None = None) -> None:
        self._predictor = predictor
        self._predicted_s: dict[int, float] = {}  # predictions of jobs that have not ended
        self._error_s = 0.0  # sum over ended jobs of |predicted - ran|
        self._ended = 0

    @property
    def predictor(self) -> Predictor:
        """Predicts the jobs that have no prediction yet; created when it is needed first."""
        if self._predictor is None:
            self._predictor = self.new_predictor()
        return self._predictor

    def new_predictor(self) -> Predictor:
        return RollingPredictor()

    @property
    def needs_run_times(self) -> bool:
        return True

    def turn(self, engine: Engine, now: float) -> None:
        strict_turn(engine, now)

    def key(self, job: EngineJob, now: float) -> float:
        return self.predicted_run_time_s(job) * job.group.charged_gpus

    def predicted_run_time_s(self, job: EngineJob) -> float:
        """The prediction that is stored with the job, else the one of these rules, which is made once."""
        if job.predicted_s >= 0.0:
            return job.predicted_s
        predicted_s = self._predicted_s.get(job.number)
        if predicted_s is None:
            predicted_s = self._predicted_s[job.number] = self.predictor.predict(job)
        return predicted_s

    def on_job_end(self, job: EngineJob, now: float) -> None:
        if job.predicted_s >= 0.0:
            return
        ran_s = job.attained / (job.group.charged_gpus or 1.0) + now - job.since
        predicted_s = self._predicted_s.pop(job.number, None)
        if predicted_s is not None:
            self._error_s += abs(predicted_s - ran_s)
            self._ended += 1
        self.predictor.learn(job, ran_s)

    def mean_error_s(self) -> float | None:
        return self._error_s / self._ended if self._ended else None
