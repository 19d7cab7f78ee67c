"""Themis (NSDI'20), finish-time fairness: GPUs go to whom sharing has hurt most.

Hurt is rho: how long a job takes here, from its submission, over how long it would take alone. Who starts holds a lease
of 20 minutes and is safe; after it, whoever is worse off by then may have his GPUs. Differences: no bids and no hidden
payments, the auction is a walk in order of rho, which is what it comes to when each bid is for one gang; all free GPUs
are offered to all, not to the worst fifth (f = 0.8) first; an app is one job; and a gang cannot run on fewer GPUs, so
"alone" is its own run time and not that on an N-th of the cluster. Run times are known: true ones in a replay.
Jobs that ask for the same stand in order of the moment at which their rho passes 2, which is close to its order.
"""

from __future__ import annotations

from scheduling.engine.engine import Engine, EngineJob
from scheduling.engine.policies.tiresias import QUEUE_GAP
from scheduling.engine.rules import PolicyRules
from scheduling.engine.turns.preempting import preempting_turn

LEASE_S = 1200.0
RATIO_STEPS = 1e6  # steps of rho that are told apart


class ThemisRules(PolicyRules):
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

    def next_change(self, job: EngineJob, now: float) -> float | None:
        return now + LEASE_S if job.level == 0 else None

    def changed(self, job: EngineJob, now: float) -> None:
        job.level = 1


def _run_time_alone(job: EngineJob) -> float:
    return max(1.0, job.expected_s)


def _finish_time_ratio(job: EngineJob, now: float) -> float:
    """If it ran from now on to its end."""
    return (now - job.submitted + job.remaining_s) / _run_time_alone(job)
