"""The only code that changes Following, the read positions of running logs. Records no events: they are not history."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import models, transaction
from django.db.models import F, Q

from failures.models import Following
from jobs.actions.retention import delete_batch
from jobs.core.lifecycle import FAILURE_STATES
from jobs.models import Attempt

LEASE = timedelta(seconds=90)  # longer than the time limit of a task
MAX_NEW_ROWS = 500
DIAGNOSIS_GRACE = timedelta(hours=1)  # the bundle of a failed attempt is stored long before


def add_running_attempts(now: datetime) -> int:
    """Add a row for each running attempt with a log that has none. Returns how many. Safe to run concurrently."""
    running = Attempt.objects.filter(ended_at=None, confirmed_at__isnull=False, following=None).exclude(log_path="")
    fresh = running.exclude(job__cluster__log_root="").order_by("pk").values_list("pk", flat=True)[:MAX_NEW_ROWS]
    rows = [Following(attempt_id=pk, due_at=now) for pk in fresh]
    return len(Following.objects.bulk_create(rows, ignore_conflicts=True))


def claim(now: datetime) -> Following | None:
    """Claim the log that is due longest. Only one at a time, because diagnoses need the other workers.

    `tries` is counted before the work starts.
    """
    with transaction.atomic():
        if Following.objects.filter(claimed_until__gte=now).exists():
            return None
        free = Following.objects.due(now).select_for_update(skip_locked=True, of=("self",)).order_by("due_at")
        if (row := free.only("pk").first()) is None:
            return None
        Following.objects.filter(pk=row.pk).update(tries=F("tries") + 1, claimed_until=now + LEASE)
    return Following.objects.select_related("attempt__job__cluster").get(pk=row.pk)


@dataclass(frozen=True, kw_only=True)
class LogFollowResult:
    """The result of reading a growing log; `state` is None if nothing new was read."""

    size: int
    due_at: datetime
    read: int = 0
    seam: bytes = b""
    state: bytes | None = None


def save_log_offset(row: Following, result: LogFollowResult, now: datetime) -> bool:
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


def postpone_log(row: Following, until: datetime) -> None:
    """Postpone a log after an error. `tries` stays counted, so that it is left to the diagnosis after a few errors."""
    _claimed_row(row).update(due_at=until, claimed_until=None)


def _claimed_row(row: Following) -> models.QuerySet[Following]:
    return Following.objects.filter(pk=row.pk, tries=row.tries, claimed_until=row.claimed_until)


def forget_offsets(attempts: Iterable[int]) -> None:
    Following.objects.filter(attempt__in=attempts).delete()


def forget_ended_attempts(now: datetime) -> int:
    """Delete the rows of ended attempts: successful ones immediately, failed ones after the diagnosis."""
    over = ~Q(attempt__state__in=sorted(FAILURE_STATES)) | Q(attempt__ended_at__lt=now - DIAGNOSIS_GRACE)
    return delete_batch(Following.objects.filter(over, attempt__ended_at__isnull=False))
