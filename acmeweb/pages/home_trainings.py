"""The running trainings that the viewer may see: progress, loss, and the work that a failure would lose.

Six queries for all trainings together; each reads a bounded number of rows per training shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobs.models import Attempt, Job, LatestProgress, ProgressSource
from jobs.queries import loss_lines
from scheduling.ledger.reads import facts as ledger_facts

MAX_TRAININGS_SHOWN = 10
MAX_TRAININGS_READ = 48  # the largest, reporting or not; jobs without progress are not shown as trainings


@dataclass(frozen=True, kw_only=True)
class FigureNote:
    """A word beside a figure, with a tooltip."""

    text: str
    title: str = ""


NO_PROGRESS_NOTE = FigureNote(
    text="never", title="No progress reports, and no steps in the log. Use acme_client to report progress."
)


@dataclass(frozen=True, kw_only=True)
class HomeTraining:
    job: Job
    latest_progress: LatestProgress | None  # None if the program neither reports progress nor prints any
    line: str  # points of the loss sparkline
    saved_at: datetime | None
    efficiency: ledger_facts.JobEfficiency | None

    @property
    def steps_total(self) -> int | None:
        latest = self.latest_progress
        return latest.steps_total if latest and latest.step is not None else None

    @property
    def progress_percent(self) -> int | None:
        latest = self.latest_progress
        if latest is None or latest.step is None or not latest.steps_total:
            return None
        return min(100, 100 * latest.step // latest.steps_total)

    @property
    def goodput_percent(self) -> str:
        return _percent_text(self.efficiency.goodput if self.efficiency else None)

    @property
    def ettr_percent(self) -> str:
        return _percent_text(self.efficiency.ettr if self.efficiency else None)

    @property
    def at_risk_since(self) -> datetime | None:
        return self.saved_at or (self.log_checkpoint and self.log_checkpoint.saved_at) or self.job.started_at

    @property
    def log_checkpoint(self) -> LatestProgress | None:
        """The latest progress whose checkpoint comes from the log, if no checkpoint was reported."""
        latest = self.latest_progress
        return latest if latest and latest.is_of_log and latest.saved_at and not self.saved_at else None

    @property
    def checkpoint_note(self) -> FigureNote | None:
        """Why the time of the last checkpoint is uncertain; None if the job reported the checkpoint."""
        if not self.at_risk_since:
            return None
        if logged := self.log_checkpoint:
            path = f" in {logged.saved_path}" if logged.saved_path else ""
            return FigureNote(
                text="log", title=f"Checkpoint at step {logged.saved_step}{path}, from the log (unverified)"
            )
        return None if self.saved_at else FigureNote(text="never")

    @property
    def progress_note(self) -> FigureNote | None:
        """Where the progress comes from; None if the job reports it."""
        latest = self.latest_progress
        if latest is None:
            return NO_PROGRESS_NOTE
        if not latest.is_of_log:
            return None
        return FigureNote(
            text="log", title=f"Read from {latest.get_source_display()}; the job does not report progress"
        )


def _percent_text(ratio: float | None) -> str:
    return "" if ratio is None else f"{round(100 * ratio)}%"


def running_trainings(visible: Any, now: datetime) -> list[HomeTraining]:
    """Return the running trainings, largest first: those lose most in a failure."""
    jobs = list(visible.largest_trainings().values_list("pk", flat=True)[:MAX_TRAININGS_READ])
    if not jobs:
        return []
    attempts = Attempt.objects.filter(job__in=jobs, ended_at__isnull=True)
    attempts = attempts.select_related("latest_progress", "job__user", "job__team", "job__cluster")
    attempts = attempts.defer("job__command", "job__environment", "job__labels", "job__comment")
    shown = sorted(attempts, key=lambda attempt: (-attempt.job.gpus, -attempt.job_id))[:MAX_TRAININGS_SHOWN]
    if not shown:
        return []
    lines = loss_lines.loss_sparklines([attempt.pk for attempt in shown])
    efficiency = ledger_facts.job_efficiency([attempt.job_id for attempt in shown], now)
    saved = ledger_facts.newest_checkpoint_times([attempt.job_id for attempt in shown])
    return [_home_training(attempt, lines, saved, efficiency) for attempt in shown]


def _home_training(
    attempt: Attempt,
    lines: Mapping[int, str],
    saved: Mapping[int, datetime],
    efficiency: Mapping[int, ledger_facts.JobEfficiency],
) -> HomeTraining:
    latest = getattr(attempt, "latest_progress", None)
    return HomeTraining(
        job=attempt.job,
        latest_progress=latest,
        line=lines.get(attempt.pk, ""),
        saved_at=saved.get(attempt.job_id),
        efficiency=efficiency.get(attempt.job_id) if _has_first_step(latest) else None,
    )


def _has_first_step(latest: LatestProgress | None) -> bool:
    """Whether the time of the first step is known. If it is not, all of the run time would count as productive."""
    return latest is not None and latest.source != ProgressSource.LATE
