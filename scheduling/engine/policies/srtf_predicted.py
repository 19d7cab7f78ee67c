"""Shortest predicted remaining time first, with preemption: what `srtf` does with an oracle, from learned run times.

The prediction is that of `qssf`, made once at submission. The remaining time is the prediction without the time that
the job has run; a job that has outrun its prediction goes first. On a live cluster only jobs that agreed to be
preempted are stopped.
"""

from __future__ import annotations

from scheduling.engine.engine import Engine
from scheduling.engine.job import EngineJob
from scheduling.engine.policies.qssf import QssfRules
from scheduling.engine.turns.preempting import preempting_turn


class SrtfPredictedRules(QssfRules):
    """Ranks all jobs by predicted remaining time."""

    name = "srtf-predicted"
    single_queue = False
    preempts = True

    def turn(self, engine: Engine, now: float) -> None:
        preempting_turn(engine, now)

    def key(self, job: EngineJob, now: float) -> float:
        ran_s = job.attained / (job.group.charged_gpus or 1.0)
        return max(0.0, self.predicted_run_time_s(job) - ran_s)

    def rank(self, job: EngineJob, now: float) -> float:
        return now + self.key(job, now)
