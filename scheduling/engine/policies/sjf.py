"""Shortest job first, by expected run time. Strict, without preemption.

In a replay the expected run time is the true one unless errors are configured; this is the bound against which Helios
(SC'21) measures QSSF. On a live cluster it is the run time predicted from similar jobs, else the time limit.
"""

from __future__ import annotations

from scheduling.engine.engine import Engine, PolicyRules
from scheduling.engine.job import EngineJob
from scheduling.engine.turns.strict import strict_turn


class SjfRules(PolicyRules):
    """Orders jobs by expected run time."""

    name = "sjf"
    single_queue = True

    def turn(self, engine: Engine, now: float) -> None:
        strict_turn(engine, now)

    def key(self, job: EngineJob, now: float) -> float:
        return job.predicted_s if job.predicted_s >= 0.0 else job.expected_s
