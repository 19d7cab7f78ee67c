"""The only code that changes how far running logs were read. Nothing of it is history, so nothing of it is an Event."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import models, transaction
from django.db.models import F, Q

from failures.models import Following
from jobs.lifecycle import FAILURES
from jobs.models import Attempt
from jobs.retention import delete_batch

LEASE = timedelta(seconds=90)  # longer than a task may live
MOST_NOTED = 500
DIAGNOSED_BY = timedelta(hours=1)  # a failed attempt has its bundle long before


def note_running(now: datetime) -> int:
    """A row for each running attempt with a log that has none. Twice or by two workers at once: still one each."""
    running = Attempt.objects.filter(ended_at=None, confirmed_at__isnull=False, following=None).exclude(log_path="")
    fresh = running.exclude(job__cluster__log_root="").order_by("pk").values_list("pk", flat=True)[:MOST_NOTED]
    rows = [Following(attempt_id=pk, due_at=now) for pk in fresh]
    return len(Following.objects.bulk_create(rows, ignore_conflicts=True))


def claim(now: datetime) -> Following | None:
    """The log that waited longest. Counted before it is begun, and one at a time: verdicts need the other workers."""
    with transaction.atomic():
        if Following.objects.filter(taken_until__gte=now).exists():
            return None
        free = Following.objects.due(now).select_for_update(skip_locked=True, of=("self",)).order_by("due_at")
        if (row := free.only("pk").first()) is None:
            return None
        Following.objects.filter(pk=row.pk).update(tries=F("tries") + 1, taken_until=now + LEASE)
    return Following.objects.select_related("attempt__job__cluster").get(pk=row.pk)


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a look at a growing log found; `state` is None where nothing new was read."""

    size: int
    due_at: datetime
    read: int = 0
    seam: bytes = b""
    state: bytes | None = None


def keep(row: Following, look: Look, now: datetime) -> bool:
    """False when somebody else took the row meanwhile, or the attempt was judged and the row is gone."""
    fields: dict[str, object] = {
        "size": look.size,
        "due_at": look.due_at,
        "looked_at": now,
        "taken_until": None,
        "tries": 0,
    }
    if look.state is not None:
        fields |= {"read": look.read, "seam": look.seam, "state": look.state}
    return bool(_ours(row).update(**fields))


def put_off(row: Following, until: datetime) -> None:
    """It stays counted: a log that breaks its reader is left to the diagnosis after a few tries."""
    _ours(row).update(due_at=until, taken_until=None)


def _ours(row: Following) -> models.QuerySet[Following]:
    return Following.objects.filter(pk=row.pk, tries=row.tries, taken_until=row.taken_until)


def forget(attempts: Iterable[int]) -> None:
    Following.objects.filter(attempt__in=attempts).delete()


def forget_ended(now: datetime) -> int:
    """Of attempts that ended well at once; of those that failed when the diagnosis has surely had its turn."""
    over = ~Q(attempt__state__in=sorted(FAILURES)) | Q(attempt__ended_at__lt=now - DIAGNOSED_BY)
    return delete_batch(Following.objects.filter(over, attempt__ended_at__isnull=False))
