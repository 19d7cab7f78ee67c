"""The progress panel of a job's page: newest values, checkpoints, and the URL of the chart data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.db.models import Count, Max, Q

from jobs.models import Attempt, Checkpoint, CheckpointVerdict, Job, LatestProgress

CHART_POINTS = 800
MAX_CHECKPOINTS_SHOWN = 6


@dataclass(frozen=True, kw_only=True)
class JobCheckpointSummary:
    """The checkpoints of all attempts of a job."""

    newest: list[Checkpoint]
    count: int
    good_at: datetime | None  # when the newest durable checkpoint that was not judged bad was saved


def progress_panel(job: Job, attempt: Attempt | None) -> dict[str, Any]:
    """The panel's context; empty if the job never reported progress, as most jobs that are not trainings."""
    latest = LatestProgress.objects.filter(attempt=attempt).first() if attempt else None
    saved = _checkpoint_summary(job)
    if latest is None and not saved.count:
        return {}
    return {
        "latest_progress": latest,
        "attempt": attempt,
        "saved": saved,
        "odd": [name for name in ("loss", "grad_norm") if latest and _is_non_finite(getattr(latest, name))],
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
    totals = rows.order_by().aggregate(count=Count("pk"), good_at=Max("saved_at", filter=good))
    newest = rows.order_by("-saved_at", "-pk")[: MAX_CHECKPOINTS_SHOWN if totals["count"] else 0]
    return JobCheckpointSummary(newest=list(newest), count=totals["count"], good_at=totals["good_at"])
