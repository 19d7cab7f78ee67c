"""How often a job should save, from what the record knows of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from jobs.intervals import Advice, advice
from jobs.lifecycle import FAILURES
from jobs.models import Attempt, Checkpoint, Job

UNKNOWN = "Too little is known: it has not run yet, or never told how long a save holds it up."
RECENT = 50  # saves; older ones may have been of another kind


def advice_of(job: Job, attempts: Sequence[Attempt], now: datetime) -> Advice | None:
    """One query; none for a job that was never told to save and never did."""
    if not (job.checkpoint_dir or job.checkpoint_interval or any(one.saved_at for one in attempts)):
        return None
    newest = Checkpoint.objects.filter(job=job).order_by("-saved_at").values_list("saved_at", "stall_s", "attempt")
    rows = list(newest[:RECENT])[::-1]
    last = rows[-1][2] if rows else None
    return advice(
        failures=sum(one.state in FAILURES for one in attempts),
        ran_s=sum(_ran_s(one, now) for one in attempts),
        stalls_s=[stall_s for _, stall_s, _ in rows if stall_s is not None],
        saved_s=[at.timestamp() for at, _, attempt in rows if attempt == last],
    )


def _ran_s(one: Attempt, now: datetime) -> float:
    began = one.confirmed_at
    return ((one.ended_at or now) - began).total_seconds() if began else 0.0
