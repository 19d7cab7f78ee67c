"""Themis (NSDI'20), finish-time fairness: GPUs go to the jobs that sharing has slowed down most.

The measure is rho: the time from submission to the end on this cluster, divided by the run time alone. A job that
starts holds a lease of 20 minutes and is safe; after that, any job that is worse off may take its GPUs. Differences: no
bids and no hidden payments, because the auction equals a walk in order of rho if each bid is for one gang; all free
GPUs are offered to all jobs, not to the worst fifth (f = 0.8) first; an app is one job; and a gang cannot run on fewer
GPUs, so "alone" means its own run time and not that on an N-th of the cluster. Run times are known: the true ones in a
replay. Jobs with equal requests are ordered by the time at which their rho passes 2, which is close to the order of
rho.
"""

from __future__ import annotations

from scheduling.engine.engine import Engine, PolicyRules
from scheduling.engine.job import EngineJob
from scheduling.engine.policies.tiresias import QUEUE_GAP
from scheduling.engine.turns.preempting import preempting_turn

LEASE_S = 1200.0
RATIO_STEPS = 1e6  # resolution of rho


class ThemisRules(PolicyRules):
    """Ranks jobs by finish-time ratio; running jobs are safe during their lease."""

    name = "themis"
    preempts = True

    def turn(self, engine: Engine, now: float) -> None:
        preempting_turn(engine, now)

    def key(self, job: EngineJob, now: float) -> float:
        job.level = 0
        return job.submitted + 2 * _run_time_alone(job) - job.remaining_s

    def rank(self, job: EngineJob, now: float) -> float:
        leased = job.places is not None and job.level == 0
        return now if leased else QUEUE_GAP - RATIO_STEPS * min(_finish_time_ratio(job, now), 1e5)

    def next_rank_change(self, job: EngineJob, now: float) -> float | None:
        return now + LEASE_S if job.level == 0 else None

    def on_rank_change(self, job: EngineJob, now: float) -> None:
        job.level = 1


def _run_time_alone(job: EngineJob) -> float:
    return max(1.0, job.expected_s)


def _finish_time_ratio(job: EngineJob, now: float) -> float:
    """Rho, if the job ran from now until its end."""
    return (now - job.submitted + job.remaining_s) / _run_time_alone(job)
