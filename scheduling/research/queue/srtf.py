"""Shortest remaining time first, with an oracle and preemption: the lower bound for the mean completion time.

Like Tiresias' `shortest` and HeliosArtifact's `srtf`: at each event, the jobs with the least remaining work get the
GPUs, and jobs that do not fit are skipped. Remaining times of running jobs shrink equally, so their order is the order
of their ends and never changes. HeliosArtifact decides once a second instead of at events.
"""

from __future__ import annotations

from scheduling.engine.engine import Engine, PolicyRules
from scheduling.engine.job import EngineJob
from scheduling.engine.turns.preempting import preempting_turn


class SrtfRules(PolicyRules):
    """Ranks all jobs by remaining time."""

    name = "srtf"
    preempts = True

    def turn(self, engine: Engine, now: float) -> None:
        preempting_turn(engine, now)

    def key(self, job: EngineJob, now: float) -> float:
        return job.remaining_s

    def rank(self, job: EngineJob, now: float) -> float:
        return now + job.remaining_s
