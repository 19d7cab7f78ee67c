"""Earliest deadline first (Liu and Layland, JACM'73), with preemption. Jobs without a deadline go last, in order of
submission.

The textbook's policy: it neither knows run times nor refuses jobs, so a job that has missed its deadline still goes
first. On one processor it meets all deadlines if that is possible at all. Under overload it fails jobs one after the
other, because it works for the most urgent job even if that one is late anyway; `chronus` is the answer to that. On a
live cluster only jobs that agreed to be preempted are stopped.
"""

from __future__ import annotations

from scheduling.engine.engine import Engine, PolicyRules
from scheduling.engine.job import EngineJob
from scheduling.engine.turns.preempting import preempting_turn


class EdfRules(PolicyRules):
    """Ranks all jobs by their deadline."""

    name = "edf"
    preempts = True

    def turn(self, engine: Engine, now: float) -> None:
        preempting_turn(engine, now)

    def key(self, job: EngineJob, now: float) -> float:
        return job.deadline
