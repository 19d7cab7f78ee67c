"""The only code that changes LogReadState, the read positions of running logs.

Records no events: read positions are not history.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime, timedelta

from django.db import models, transaction
from django.db.models import F, Q

from failures.detection.step_cadence import cadence_to_json
from failures.models import LogReadState
from failures.queries.log_resume import LogFollowResult
from failures.queries.log_steps import PrintedSteps
from jobs.actions import progress
from jobs.actions.retention import delete_batch
from jobs.core.lifecycle import FAILURE_STATES
from jobs.models import Attempt

LEASE = timedelta(seconds=90)  # longer than the time limit of a task
MAX_NEW_ROWS = 500
LAST_READ_GRACE = timedelta(minutes=10)  # to read the rest of the log of an ended attempt
DIAGNOSIS_GRACE = timedelta(hours=1)  # the bundle of a failed attempt is stored long before


def add_running_attempts(now: datetime) -> int:
    """Add a row for each running attempt with a log that has none. Returns how many. Safe to run concurrently."""
    running = Attempt.objects.with_log().filter(ended_at=None, confirmed_at__isnull=False, log_read_state=None)
    attempts = running.order_by("pk").values_list("pk", flat=True)[:MAX_NEW_ROWS]
    rows = [LogReadState(attempt_id=pk, due_at=now) for pk in attempts]
    return len(LogReadState.objects.bulk_create(rows, ignore_conflicts=True))


# --- the reader for the diagnosis


def claim(now: datetime) -> LogReadState | None:
    """Claim the log that has been due for the longest time.

    Only one is claimed at a time, because diagnoses need the other workers.
    `tries` is counted before the work starts.
    """
    with transaction.atomic():
        if LogReadState.objects.filter(claimed_until__gte=now).exists():
            return None
        free = LogReadState.objects.due(now).select_for_update(skip_locked=True, of=("self",)).order_by("due_at")
        if (row := free.only("pk").first()) is None:
            return None
        LogReadState.objects.filter(pk=row.pk).update(tries=F("tries") + 1, claimed_until=now + LEASE)
    return LogReadState.objects.select_related("attempt__job__cluster").get(pk=row.pk)


def save_diagnosis_position(row: LogReadState, result: LogFollowResult, now: datetime) -> bool:
    """Store the result. False if another worker has claimed the row, or it was deleted after a diagnosis."""
    fields: dict[str, object] = {
        "size": result.size,
        "due_at": result.due_at,
        "looked_at": now,
        "claimed_until": None,
        "tries": 0,
    }
    if result.state is not None:
        fields |= {"read": result.read, "seam": result.seam, "state": result.state}
    return bool(_claimed_row(row).update(**fields))


def retry_log_later(row: LogReadState, until: datetime) -> None:
    """Postpone a log that cannot be read now, for example because its storage is away. This is not counted."""
    _claimed_row(row).update(due_at=until, claimed_until=None, tries=0)


def postpone_log(row: LogReadState, until: datetime) -> None:
    """Postpone a log after an error. `tries` stays counted, so that it is left to the diagnosis after a few errors."""
    _claimed_row(row).update(due_at=until, claimed_until=None)


def _claimed_row(row: LogReadState) -> models.QuerySet[LogReadState]:
    return LogReadState.objects.filter(pk=row.pk, tries=row.tries, claimed_until=row.claimed_until)


# --- the reader of steps


def mark_steps_looked_at(row: LogReadState, now: datetime) -> None:
    """Move the log to the end of the reading order, even if it cannot be read."""
    LogReadState.objects.filter(pk=row.pk).update(steps_looked_at=now)


def save_steps(row: LogReadState, found: PrintedSteps | None, now: datetime) -> bool:
    """Store the new steps and the position together. False if another worker has read the same lines."""
    unchanged = LogReadState.objects.filter(pk=row.pk, steps_read=row.steps_read)
    if found is None:
        return bool(unchanged.update(steps_read_at=now))
    with transaction.atomic():
        cadence = cadence_to_json(found.cadence)
        if not unchanged.update(steps_read=found.read, steps_read_at=now, cadence=cadence):
            return False
        if found.step:
            values = asdict(found.step) | {"at": min(now, row.attempt.ended_at or now)}
            progress.record_log_step(row.pk, values, total=found.step.total, is_late=found.is_late)
        if found.saved and found.saved_at:
            saved = found.saved
            progress.record_log_checkpoint(row.pk, step=saved.step, path=saved.path, saved_at=found.saved_at)
    return True


def close_old_steps(now: datetime) -> None:
    """Forget the cadences of attempts that ended long ago: the rest of their logs could not be read."""
    old = Attempt.objects.filter(ended_at__lt=now - LAST_READ_GRACE)
    LogReadState.objects.filter(cadence__isnull=False, attempt__in=old).update(cadence=None)


def close_steps(attempts: Iterable[Attempt]) -> None:
    """Forget the cadences of ended attempts after the rest of their logs was read."""
    LogReadState.objects.filter(attempt__in=[attempt.pk for attempt in attempts]).update(cadence=None)


# --- the end of an attempt


def forget_diagnosis_state(attempts: Iterable[int]) -> None:
    """Forget what was read for the diagnosis. A row with a cadence stays until the rest of the log was read for it."""
    rows = LogReadState.objects.filter(attempt__in=attempts)
    rows.filter(cadence__isnull=True).delete()
    rows.update(state=None, seam=b"", read=0)


def forget_ended_attempts(now: datetime) -> int:
    """Delete the rows of ended attempts that no reader needs: those of failed attempts after the diagnosis."""
    has_succeeded = ~Q(attempt__state__in=sorted(FAILURE_STATES))
    is_unneeded = Q(state=None) | has_succeeded | Q(attempt__ended_at__lt=now - DIAGNOSIS_GRACE)
    return delete_batch(LogReadState.objects.filter(is_unneeded, attempt__ended_at__isnull=False, cadence__isnull=True))
