"""Shortest remaining time first, with an oracle and preemption: the lower bound for mean completion time.

As Tiresias' `shortest` and HeliosArtifact's `srtf`: at each event the jobs with the least work left get the GPUs,
whoever does not fit is passed over. Remaining times of running jobs all shrink alike, so among them the order is that
of their ends and never changes; HeliosArtifact looks once a second instead of at events.
"""

from __future__ import annotations

from scheduling.engine.engine import Engine, EngineJob
from scheduling.engine.rules import PolicyRules
from scheduling.engine.turns.preempting import preempting_turn


class SrtfRules(PolicyRules):
    name = "srtf"
    preempts = True

    def turn(self, engine: Engine, now: float) -> None:
        preempting_turn(engine, now)

    def key(self, job: EngineJob, now: float) -> float:
        return job.remaining_s

    def rank(self, job: EngineJob, now: float) -> float:
        return now + job.remaining_s
