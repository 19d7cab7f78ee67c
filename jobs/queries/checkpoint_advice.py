"""How often a job should save, from what the record knows of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from jobs.core.checkpoint_interval import CheckpointAdvice, advise_checkpoint_interval
from jobs.core.lifecycle import FAILURE_STATES
from jobs.models import Attempt, Checkpoint, Job

NO_ADVICE_TEXT = "Too little is known: it has not run yet, or never told how long a save holds it up."
RECENT_CHECKPOINTS = 50  # saves; older ones may have been of another kind


def job_checkpoint_advice(job: Job, attempts: Sequence[Attempt], now: datetime) -> CheckpointAdvice | None:
    """One query; none for a job that was never told to save and never did."""
    if not (job.checkpoint_dir or job.checkpoint_interval or any(one.saved_at for one in attempts)):
        return None
    newest = Checkpoint.objects.filter(job=job).order_by("-saved_at").values_list("saved_at", "stall_s", "attempt")
    rows = list(newest[:RECENT_CHECKPOINTS])[::-1]
    last = rows[-1][2] if rows else None
    return advise_checkpoint_interval(
        failures=sum(one.state in FAILURE_STATES for one in attempts),
        ran_s=sum(_attempt_runtime_s(one, now) for one in attempts),
        stalls_s=[stall_s for _, stall_s, _ in rows if stall_s is not None],
        saved_s=[at.timestamp() for at, _, attempt in rows if attempt == last],
    )


def _attempt_runtime_s(one: Attempt, now: datetime) -> float:
    began = one.confirmed_at
    return ((one.ended_at or now) - began).total_seconds() if began else 0.0
