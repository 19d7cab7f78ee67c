"""The trainings that run, as far as the viewer may see them: how far, how it goes, what would be lost.

Six statements for all of them together; each reads a bounded number of rows for each training shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from jobs.core import sparkline
from jobs.models import Attempt, Job, ProgressSource, Pulse
from scheduling.queries import ledger_facts

MAX_TRAININGS_SHOWN = 12
MAX_TRAININGS_READ = 48  # the widest, whether they report or not: who does not is no training to show
POINTS_READ = 600

# The end of each attempt's range in the table's own key
LOSSES_SQL = """
SELECT a.id, ARRAY(SELECT loss FROM jobs_progress WHERE attempt_id = a.id AND loss IS NOT NULL
  ORDER BY at DESC LIMIT %s) FROM unnest(%s::bigint[]) AS a (id)
"""


@dataclass(frozen=True, kw_only=True)
class HomeTraining:
    job: Job
    pulse: Pulse | None  # of a program that neither reports nor prints anything
    line: str  # of the loss
    saved_at: datetime | None
    ettr: float | None

    @property
    def at_risk_since(self) -> datetime | None:
        return self.saved_at or (self.told and self.told.saved_at) or self.job.started_at

    @property
    def told(self) -> Pulse | None:
        """Where nobody has reported a checkpoint, the one that its log tells of."""
        pulse = self.pulse
        return pulse if pulse and pulse.is_of_log and pulse.saved_at and not self.saved_at else None


def running_trainings(visible: Any, now: datetime) -> list[HomeTraining]:
    """The widest first: there most is lost."""
    jobs = list(visible.largest_trainings().values_list("pk", flat=True)[:MAX_TRAININGS_READ])
    if not jobs:
        return []
    found = Attempt.objects.filter(job__in=jobs, ended_at__isnull=True)
    found = found.select_related("pulse", "job__user", "job__team", "job__cluster")
    found = found.defer("job__command", "job__environment", "job__labels", "job__comment")
    shown = sorted(found, key=lambda one: (-one.job.gpus, -one.job_id))[:MAX_TRAININGS_SHOWN]
    if not shown:
        return []
    lines = _loss_sparklines([one.pk for one in shown])
    ettr = ledger_facts.job_ettr([one.job_id for one in shown], now)
    saved = ledger_facts.newest_checkpoint_times([one.job_id for one in shown])
    return [_home_training(one, lines, saved, ettr) for one in shown]


def _home_training(
    one: Attempt, lines: Mapping[int, str], saved: Mapping[int, datetime], ettr: Mapping[int, float | None]
) -> HomeTraining:
    pulse = getattr(one, "pulse", None)
    return HomeTraining(
        job=one.job,
        pulse=pulse,
        line=lines.get(one.pk, ""),
        saved_at=saved.get(one.job_id),
        ettr=ettr.get(one.job_id) if _has_first_step(pulse) else None,
    )


def _has_first_step(pulse: Pulse | None) -> bool:
    """When its first step came; where nobody knows, all of its time would count as useful."""
    return pulse is not None and pulse.source != ProgressSource.LATE


def _loss_sparklines(attempts: Sequence[int]) -> dict[int, str]:
    with connection.cursor() as cursor:
        cursor.execute(LOSSES_SQL, [POINTS_READ, list(attempts)])
        return {attempt: sparkline.sparkline_points(losses[::-1]) for attempt, losses in cursor.fetchall()}
