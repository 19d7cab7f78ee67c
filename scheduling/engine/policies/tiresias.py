"""Tiresias (NSDI'19), discretised two-dimensional least attained service: who has used few GPU-seconds goes first.

Attained service is GPUs x seconds. It sorts jobs into queues: a job enters the first, and the next one when its service
passes a threshold. Nothing about run times is known. Inside a queue who runs goes on, and the others come in order of
submission. With `promote`, the paper's PromoteKnob, who has waited that many times as long as he ever ran goes back
into the first queue with a clean sheet; without it, as is the default of the authors' simulator, he may starve.
Differences: a job is demoted at the very moment, not at the next round, and promoted at the next event; which models
must be consolidated is not profiled, the placement decides; and a job that was stopped keeps its place by submission,
where theirs puts the last stopped first.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from mypy_extensions import mypyc_attr

from scheduling.engine.engine import Engine, EngineJob
from scheduling.engine.rules import PolicyRules
from scheduling.engine.settings import positive_number, reject_unknown
from scheduling.engine.turns.preempting import preempting_turn

THRESHOLDS = (3250.0, 7200.0)  # GPU-seconds: three queues, the defaults of the authors' simulator
QUEUE_GAP = 1e12  # between the keys of two queues: more seconds than any trace has


@mypyc_attr(allow_interpreted_subclasses=True)
class TiresiasRules(PolicyRules):
    name = "tiresias"
    preempts = True

    def __init__(self, thresholds: tuple[float, ...] = THRESHOLDS, promote: float | None = None) -> None:
        self.thresholds = thresholds
        self._promote = promote
        self._starving: list[tuple[float, int, int, EngineJob]] = []  # when, number, which run was the last

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> PolicyRules:
        reject_unknown(settings, "promote")
        return cls(promote=positive_number(settings, "promote")) if settings else cls()

    def turn(self, engine: Engine, now: float) -> None:
        while self._starving and self._starving[0][0] <= now:
            _, _, runs, job = heappop(self._starving)
            if job.places is None and job.runs == runs:
                job.level, job.attained = 0, 0.0
                job.ask.line = [entry for entry in job.ask.line if entry[3] is not job]
                heapify(job.ask.line)
                engine.submit(job, now)
                engine.enqueue_arrivals()
        preempting_turn(engine, now)

    def key(self, job: EngineJob, now: float) -> float:
        if self._promote and job.attained:
            ran_s = job.attained / job.ask.gpus
            heappush(self._starving, (now + self._promote * ran_s, job.number, job.runs, job))
        return self._queue_level(job) * QUEUE_GAP + job.submitted

    def cost(self, job: EngineJob, now: float) -> float:
        """Where ranks of running jobs are not followed, the queue is told by the service itself."""
        return max((passed for passed in self.thresholds if passed <= job.attained), default=0.0)

    def rank(self, job: EngineJob, now: float) -> float:
        """Behind all who run in the same queue: nobody stops for his equal."""
        return self._queue_level(job) * QUEUE_GAP + now

    def next_change(self, job: EngineJob, now: float) -> float | None:
        if job.level == len(self.thresholds) or not job.ask.gpus:
            return None
        return now + max(0.0, self.thresholds[job.level] - job.attained) / job.ask.gpus

    def changed(self, job: EngineJob, now: float) -> None:
        job.level += 1

    def _queue_level(self, job: EngineJob) -> int:
        return job.level
