"""How a job goes, as part of its page: the newest figures, its checkpoints, and where its series is drawn from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.db.models import Count, Max, Q

from jobs.models import Attempt, Checkpoint, Job, Pulse, Verdict

POINTS = 800
MOST_CHECKPOINTS = 6


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What it saved, whichever attempt did."""

    newest: list[Checkpoint]
    count: int
    good_at: datetime | None  # the newest that reached remote storage and was not judged bad


def panel(job: Job, attempt: Attempt | None) -> dict[str, Any]:
    """Empty where it never reported anything: most jobs are no trainings."""
    pulse = Pulse.objects.filter(attempt=attempt).first() if attempt else None
    saved = _saved(job)
    if pulse is None and not saved.count:
        return {}
    return {
        "pulse": pulse,
        "attempt": attempt,
        "saved": saved,
        "odd": [name for name in ("loss", "grad_norm") if pulse and _is_odd(getattr(pulse, name))],
        "series": f"/api/v1/jobs/{job.public_id}/progress/?{urlencode(_asked(attempt))}",
        "marks": f"/api/v1/jobs/{job.public_id}/checkpoints/?limit=100",
    }


def _asked(attempt: Attempt | None) -> dict[str, int]:
    return {"points": POINTS} | ({"attempt": attempt.number} if attempt else {})


def _is_odd(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)


def _saved(job: Job) -> Saved:
    rows = Checkpoint.objects.filter(job=job)
    good = Q(durable_at__isnull=False) & ~Q(verdict=Verdict.BAD)
    told = rows.order_by().aggregate(count=Count("pk"), good_at=Max("saved_at", filter=good))
    newest = rows.order_by("-saved_at", "-pk")[: MOST_CHECKPOINTS if told["count"] else 0]
    return Saved(newest=list(newest), count=told["count"], good_at=told["good_at"])
