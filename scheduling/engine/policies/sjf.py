"""Shortest job first, by the expected run time. Strict and without preemption.

In a replay that is the true one, unless it is told to err: the bound against which Helios (SC'21) measures QSSF. On a
live cluster it is the time limit.
"""

from __future__ import annotations

from scheduling.engine.engine import Engine, Job
from scheduling.engine.rules import Rules
from scheduling.engine.turns.strict import strict


class Sjf(Rules):
    name = "sjf"
    one_line = True

    def turn(self, engine: Engine, now: float) -> None:
        strict(engine, now)

    def key(self, job: Job, now: float) -> float:
        return job.expected_s
