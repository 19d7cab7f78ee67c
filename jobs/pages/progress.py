"""How a job goes, as part of its page: the newest figures, its checkpoints, and where its series is drawn from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.db.models import Count, Max, Q

from jobs.models import Attempt, Checkpoint, CheckpointVerdict, Job, Pulse

CHART_POINTS = 800
MAX_CHECKPOINTS_SHOWN = 6


@dataclass(frozen=True, kw_only=True)
class JobCheckpointSummary:
    """What it saved, whichever attempt did."""

    newest: list[Checkpoint]
    count: int
    good_at: datetime | None  # the newest that reached remote storage and was not judged bad


def progress_panel(job: Job, attempt: Attempt | None) -> dict[str, Any]:
    """Empty where it never reported anything: most jobs are no trainings."""
    pulse = Pulse.objects.filter(attempt=attempt).first() if attempt else None
    saved = _checkpoint_summary(job)
    if pulse is None and not saved.count:
        return {}
    return {
        "pulse": pulse,
        "attempt": attempt,
        "saved": saved,
        "odd": [name for name in ("loss", "grad_norm") if pulse and _is_non_finite(getattr(pulse, name))],
        "series": f"/api/v1/jobs/{job.public_id}/progress/?{urlencode(_series_params(attempt))}",
        "marks": f"/api/v1/jobs/{job.public_id}/checkpoints/?limit=100",
    }


def _series_params(attempt: Attempt | None) -> dict[str, int]:
    return {"points": CHART_POINTS} | ({"attempt": attempt.number} if attempt else {})


def _is_non_finite(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)


def _checkpoint_summary(job: Job) -> JobCheckpointSummary:
    rows = Checkpoint.objects.filter(job=job)
    good = Q(durable_at__isnull=False) & ~Q(verdict=CheckpointVerdict.BAD)
    told = rows.order_by().aggregate(count=Count("pk"), good_at=Max("saved_at", filter=good))
    newest = rows.order_by("-saved_at", "-pk")[: MAX_CHECKPOINTS_SHOWN if told["count"] else 0]
    return JobCheckpointSummary(newest=list(newest), count=told["count"], good_at=told["good_at"])
