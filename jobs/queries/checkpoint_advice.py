"""Loads the data for the recommended checkpoint interval of a job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from jobs.core.checkpoint_interval import CheckpointAdvice, advise_checkpoint_interval
from jobs.core.lifecycle import FAILURE_STATES
from jobs.models import Attempt, Checkpoint, Job

NO_ADVICE_TEXT = "Not enough data: the job has not run yet, or never reported how long a save stalls it."
RECENT_CHECKPOINTS = 50  # older saves may have had another duration


def job_checkpoint_advice(job: Job, attempts: Sequence[Attempt], now: datetime) -> CheckpointAdvice | None:
    """Return the recommended interval with one query, or None. No query for jobs without any sign of checkpoints."""
    if not (job.checkpoint_dir or job.checkpoint_interval or any(attempt.saved_at for attempt in attempts)):
        return None
    newest = Checkpoint.objects.filter(job=job).order_by("-saved_at").values_list("saved_at", "stall_s", "attempt")
    rows = list(newest[:RECENT_CHECKPOINTS])[::-1]
    # Only saves of one attempt: the gap between two attempts is not an interval
    last = rows[-1][2] if rows else None
    return advise_checkpoint_interval(
        failures=sum(attempt.state in FAILURE_STATES for attempt in attempts),
        ran_s=sum(_attempt_runtime_s(attempt, now) for attempt in attempts),
        stalls_s=[stall_s for _, stall_s, _ in rows if stall_s is not None],
        saved_s=[at.timestamp() for at, _, attempt in rows if attempt == last],
    )


def _attempt_runtime_s(attempt: Attempt, now: datetime) -> float:
    began = attempt.confirmed_at
    return ((attempt.ended_at or now) - began).total_seconds() if began else 0.0
