"""The only code that changes a StackDump. Each function is one transaction that also records an Event."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction

from acmeweb.common import live
from failures.actions.incidents import DETECTOR_ENGINE, sanitize_for_storage
from failures.models import Diagnosis, Incident, StackDump
from jobs.actions import journal, stack_requests
from jobs.actions.journal import Author
from jobs.models import Attempt

STACKS_TIMEOUT = timedelta(seconds=30)  # one turn sends the signal, the ranks write, the next turn reads
MAX_STORED_BYTES = 256 << 10
STACKS_AUTHOR = Author(by=DETECTOR_ENGINE)


@transaction.atomic
def request_stacks(attempt: Attempt, incident: Incident, log_size: int, now: datetime) -> StackDump | None:
    """Request the stacks of a hanging attempt before recovery decides. None if the program does not support it."""
    if not stack_requests.request_stacks(
        attempt, author=STACKS_AUTHOR, why=f"Stacks of the ranks for incident {incident.pk}."
    ):
        return None
    return StackDump.objects.create(
        attempt=attempt,
        incident=incident,
        requested_at=now,
        until=now + STACKS_TIMEOUT,
        log_from=log_size,
        log_size=log_size,
    )


def update_log_size(dump: StackDump, log_size: int) -> None:
    StackDump.objects.open().filter(pk=dump.pk).update(log_size=log_size)


@transaction.atomic
def close_dump(dump: StackDump, text: str, ranks: int, sentences: Sequence[str], now: datetime) -> bool:
    """Store the stacks, or the reason why there are none, and add it to the diagnosis. False if already closed."""
    raw = text.encode("utf-8", "replace")
    notes = sanitize_for_storage(list(sentences))
    fields = {
        "closed_at": now,
        "ranks": ranks,
        "summary": notes,
        "packed": zlib.compress(raw[:MAX_STORED_BYTES], 9) if raw else None,
        "size": len(raw),
    }
    if not StackDump.objects.open().filter(pk=dump.pk).update(**fields):
        return False
    row = Diagnosis.objects.select_for_update(of=("self",)).defer("bundle").filter(attempt=dump.attempt_id).first()
    if row is not None:
        Diagnosis.objects.filter(pk=row.pk).update(notes=[*row.notes, *notes])
    attempt = dump.attempt
    detail = {"incident": dump.incident_id, "ranks": ranks}
    journal.job_event(
        "stacks.read", STACKS_AUTHOR, attempt.job, attempt=attempt, why=" ".join(notes), detail=detail
    ).save()
    live.publish_on_commit(f"incident:{dump.incident_id}", f"job:{attempt.job.public_id}")
    return True
