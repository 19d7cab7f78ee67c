"""Shortest job first, with an oracle: the true run time is known. Strict and without preemption.

The bound against which Helios (SC'21) measures QSSF. On a live cluster the oracle is what is expected: the time limit.
"""

from __future__ import annotations

from scheduling.engine.engine import Job
from scheduling.engine.rules import Rules
from scheduling.engine.turns.strict import strict


class Sjf(Rules):
    name = "sjf"
    turn = staticmethod(strict)
    one_line = True

    def key(self, job: Job, now: float) -> float:
        return job.remaining_s
