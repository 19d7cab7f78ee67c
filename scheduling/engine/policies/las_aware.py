"""Least attained service that knows GPU models, after Gavel (OSDI'20): Tiresias with service by the speed of a model.

A second counts by how fast the job is on its model, compared with the first one that it requests: at half the speed it
counts half. So jobs on slow GPUs keep their turn for longer. Within a queue, the jobs that lose most on their slowest
model choose first, and so get the fast GPUs; the others find these taken, and start on what is left if they end earlier
there than after a wait (`state/model_choice`). Differences: Gavel solves a linear program for fractions of time on each
type, and stops all jobs every six minutes to realize them. Here a job is stopped only for one with less service, and on
a live cluster only if its contract permits that. Without speeds all models count as equal, which is `tiresias`.
"""

from __future__ import annotations

from bisect import bisect_right

from mypy_extensions import mypyc_attr

from scheduling.engine.job import EngineJob
from scheduling.engine.policies.tiresias import QUEUE_GAP, TiresiasRules

MAX_LOSS = 100.0
LOSS_KEY_S = QUEUE_GAP / 400  # more than the seconds since 1970, so that the loss decides before the submission
LOSS_RANK_S = 1e-3  # far less than the time between two turns, so no job preempts one that started before


@mypyc_attr(allow_interpreted_subclasses=True)
class LasAwareRules(TiresiasRules):
    """Ranks jobs by queue, then running before waiting, then by what they lose on their slowest model."""

    name = "las-aware"
    weighs_service = True

    def restore(self, job: EngineJob) -> None:
        # Rounded, because a database adds attempts in another order
        job.level = bisect_right(self.thresholds, round(job.attained, 3))

    def key(self, job: EngineJob, now: float) -> float:
        return super().key(job, now) - _loss(job) * LOSS_KEY_S

    def rank(self, job: EngineJob, now: float) -> float:
        rank = super().rank(job, now)
        return rank if job.places is not None else rank + (MAX_LOSS - _loss(job)) * LOSS_RANK_S

    def next_rank_change(self, job: EngineJob, now: float) -> float | None:
        at = super().next_rank_change(job, now)
        return None if at is None else now + (at - now) * job.slowdown


def _loss(job: EngineJob) -> float:
    """How many times as long it runs on its slowest model as on its fastest."""
    slowdowns = (job.wider_group or job.group).need.slowdowns
    return min(max(slowdowns) / min(slowdowns), MAX_LOSS) if slowdowns else 1.0
