"""The progress panel of a job's page: newest values, checkpoints, and the runs on its charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from django.db.models import Count, Max, Q

from jobs.core.lifecycle import StatusBadge
from jobs.models import Attempt, Checkpoint, CheckpointVerdict, Job, LatestProgress
from jobs.models.job import JobQuerySet
from jobs.pages import run_comparison

MAX_CHECKPOINTS_SHOWN = 6
# The charts, and the column that each needs
CHARTS = {
    "loss": "loss",
    "tokens_per_s": "tokens",
    "mfu": "mfu",
    "step_time_s": "step_time_s",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
}


@dataclass(frozen=True, kw_only=True)
class CheckpointRow:
    checkpoint: Checkpoint

    @property
    def verdict(self) -> StatusBadge | None:
        """The verdict's badge; None if the checkpoint was not judged."""
        match self.checkpoint.verdict:
            case CheckpointVerdict.BAD:
                return StatusBadge(tone="bad", icon="✗", label="bad", title=self.checkpoint.verdict_why)
            case CheckpointVerdict.GOOD:
                return StatusBadge(tone="good", icon="✓", label="good")
        return None


@dataclass(frozen=True, kw_only=True)
class JobCheckpointSummary:
    """The checkpoints of all attempts of a job."""

    newest: list[CheckpointRow]
    count: int
    good_at: datetime | None  # when the newest durable checkpoint that was not judged bad was saved

    @property
    def count_text(self) -> str:
        return f"{self.count}, the newest" if self.count > len(self.newest) else str(self.count)


def progress_panel(job: Job, attempt: Attempt | None, compared: Sequence[Job], visible: JobQuerySet) -> dict[str, Any]:
    """The panel's context; empty if the job never reported progress, as most jobs that are not trainings.

    `compared` are the other runs on the charts, `visible` all jobs that the user can see.
    """
    newest = LatestProgress.objects.filter(attempt__job=job).order_by("-attempt__number").first()
    latest = newest if newest and attempt and newest.attempt_id == attempt.pk else None
    saved = _checkpoint_summary(job)
    if newest is None and not saved.count:
        return {}
    return {
        "latest_progress": latest,
        "attempt": attempt,
        "saved": saved,
        "source": latest.get_source_display() if latest and latest.is_of_log else "",
        "logged": latest if latest and latest.is_of_log and latest.saved_at else None,
        "non_finite": [name for name in ("loss", "grad_norm") if latest and _is_non_finite(getattr(latest, name))],
        "charts": [name for name, column in CHARTS.items() if newest and getattr(newest, column) is not None],
        "runs": run_comparison.chart_runs(job, compared),
        "suggested": cache(lambda: run_comparison.suggested_runs(job, compared, visible)),
        "compare": run_comparison.compare_value(compared),
        "url": run_comparison.metrics_url(job, compared),
        "marks": f"/api/v1/jobs/{job.public_id}/checkpoints/?limit=100",
    }


def _is_non_finite(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)


def _checkpoint_summary(job: Job) -> JobCheckpointSummary:
    rows = Checkpoint.objects.filter(job=job)
    good = Q(durable_at__isnull=False) & ~Q(verdict=CheckpointVerdict.BAD)
    totals = rows.order_by().aggregate(count=Count("pk"), good_at=Max("saved_at", filter=good))
    newest = rows.order_by("-saved_at", "-pk")[: MAX_CHECKPOINTS_SHOWN if totals["count"] else 0]
    return JobCheckpointSummary(
        newest=[CheckpointRow(checkpoint=row) for row in newest], count=totals["count"], good_at=totals["good_at"]
    )
