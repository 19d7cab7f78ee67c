"""Tiresias (NSDI'19), discretised two-dimensional least attained service: who has used few GPU-seconds goes first.

Attained service is GPUs x seconds. It sorts jobs into queues: a job enters the first, and the next one when its service
passes a threshold. Nothing about run times is known. Inside a queue who runs goes on, and the others come in order of
submission. Differences: a job is demoted at the very moment, not at the next round; which models must be consolidated
is not profiled, the placement decides; starved jobs are not promoted, as is the default of the authors' simulator;
and a job that was stopped keeps its place by submission, where theirs puts the last stopped first.
"""

from __future__ import annotations

from scheduling.engine.engine import Job
from scheduling.engine.rules import Rules
from scheduling.engine.turns.preempting import preempting

THRESHOLDS = (3250.0, 7200.0)  # GPU-seconds: three queues, the defaults of the authors' simulator
APART = 1e12  # between the keys of two queues: more seconds than any trace has


class Tiresias(Rules):
    name = "tiresias"
    turn = staticmethod(preempting)
    preempts = True

    def __init__(self, thresholds: tuple[float, ...] = THRESHOLDS) -> None:
        self.thresholds = thresholds

    def key(self, job: Job, now: float) -> float:
        return job.level * APART + job.submitted

    def cost(self, job: Job, now: float) -> float:
        """Where ranks of running jobs are not followed, the queue is told by the service itself."""
        return max((passed for passed in self.thresholds if passed <= job.attained), default=0.0)

    def rank(self, job: Job, now: float) -> float:
        """Behind all who run in the same queue: nobody stops for his equal."""
        return job.level * APART + now

    def next_change(self, job: Job, now: float) -> float | None:
        if job.level == len(self.thresholds) or not job.ask.gpus:
            return None
        return now + max(0.0, self.thresholds[job.level] - job.attained) / job.ask.gpus

    def changed(self, job: Job, now: float) -> None:
        job.level += 1
