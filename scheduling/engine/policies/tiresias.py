"""Tiresias (NSDI'19), discretized two-dimensional least attained service: jobs with the fewest GPU-seconds go first.

Attained service is GPUs x seconds. It sorts jobs into queues: a job enters the first queue, and the next one when its
service passes a threshold. Run times are unknown. Within a queue, running jobs continue, and the others follow in order
of submission. With `promote`, the paper's PromoteKnob, a job that has waited that many times as long as it ran returns
to the first queue with its service reset. Without it, the default of the authors' simulator, a job may starve.
Differences: a job is demoted immediately, not at the next round, and promoted at the next event; which models need
consolidation is not profiled, the placement decides; and a stopped job keeps its place by submission, while theirs puts
the job stopped last first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from mypy_extensions import mypyc_attr

from acmeweb.common.errors import InvalidField
from scheduling.engine.engine import Engine, PolicyRules
from scheduling.engine.job import EngineJob
from scheduling.engine.settings import positive_number, reject_unknown
from scheduling.engine.turns.preempting import preempting_turn

THRESHOLDS = (3250.0, 7200.0)  # GPU-seconds: three queues, the defaults of the authors' simulator
QUEUE_GAP = 1e12  # distance between the keys of two queues: more seconds than any trace has


@mypyc_attr(allow_interpreted_subclasses=True)
class TiresiasRules(PolicyRules):
    """Ranks jobs by queue, then running before waiting, then by submission."""

    name = "tiresias"
    preempts = True

    def __init__(self, thresholds: tuple[float, ...] = THRESHOLDS, promote: float | None = None) -> None:
        self.thresholds = thresholds
        self._promote = promote
        self._starving: list[tuple[float, int, int, EngineJob]] = []  # time of promotion, number, run count, job

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> PolicyRules:
        reject_unknown(settings, "promote")
        return cls(promote=positive_number(settings, "promote")) if settings else cls()

    def refuse_live(self) -> None:
        if self._promote:
            raise InvalidField("promote", "is only available in replays")

    def restore(self, job: EngineJob) -> None:
        job.level = bisect_right(self.thresholds, job.attained)

    def turn(self, engine: Engine, now: float) -> None:
        while self._starving and self._starving[0][0] <= now:
            _, _, runs, job = heappop(self._starving)
            if job.places is None and job.runs == runs:
                job.level, job.attained = 0, 0.0
                job.group.queue = [entry for entry in job.group.queue if entry[3] is not job]
                heapify(job.group.queue)
                engine.submit(job, now)
                engine.enqueue_arrivals()
        preempting_turn(engine, now)

    def key(self, job: EngineJob, now: float) -> float:
        if self._promote and job.attained:
            ran_s = job.attained / job.group.charged_gpus
            heappush(self._starving, (now + self._promote * ran_s, job.number, job.runs, job))
        return self._queue_level(job) * QUEUE_GAP + job.submitted

    def cost(self, job: EngineJob, now: float) -> float:
        """The last threshold that the service passed, for policies that do not follow ranks of running jobs."""
        return max((threshold for threshold in self.thresholds if threshold <= job.attained), default=0.0)

    def rank(self, job: EngineJob, now: float) -> float:
        """Behind all running jobs of the same queue, so no job preempts an equal one."""
        return self._queue_level(job) * QUEUE_GAP + now

    def next_rank_change(self, job: EngineJob, now: float) -> float | None:
        if job.level == len(self.thresholds) or not job.group.charged_gpus:
            return None
        return now + max(0.0, self.thresholds[job.level] - job.attained) / job.group.charged_gpus

    def on_rank_change(self, job: EngineJob, now: float) -> None:
        job.level += 1

    def _queue_level(self, job: EngineJob) -> int:
        return job.level
