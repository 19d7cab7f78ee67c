"""The log of a running attempt → how it counts its steps and what it prints of them, a little further. The only code
that changes a Cadence.

What is heard is kept together with the place in the log up to which it was heard, in one transaction: killed
anywhere, no step is lost and none told twice. Where that place is not known (the row is lost, the log was cut off),
only steps beyond the known ones count. Moments are those of looking, for a log's clocks are anybody's; a checkpoint is
dated to the look before, so that what is unsaved is never said to be less than it is.

Nothing of it is history, so nothing of it is an Event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta

from django.db import transaction

from failures.detection import training_output
from failures.detection.hang import SectionInterval
from failures.detection.step_cadence import CadenceState, update_cadence
from failures.detection.training_output import TrainingOutput
from failures.models import Cadence
from jobs.actions import progress
from jobs.actions.retention import delete_batch
from jobs.core.hostlist import BadHostlist, expand
from jobs.logs.job_log import LogStream, decode_log_text
from jobs.models import Attempt, Pulse

MAX_READ_BYTES = 1 << 20  # at one look; of what came beyond that the newest
FIRST_READ_BYTES = 64 << 10  # of a log that nobody has looked at yet
LATE_FIRST_READ = timedelta(
    minutes=1
)  # whoever is looked at for the first time after that may have completed steps long before


def mark_looked_at(attempts: Sequence[Attempt], now: datetime) -> None:
    """They go to the end of the line, though there was nothing new, or nothing that could be read."""
    rows = [Cadence(attempt=attempt, looked_at=now) for attempt in attempts]
    Cadence.objects.bulk_create(rows, update_conflicts=True, unique_fields=["attempt"], update_fields=["looked_at"])


def update_from_log(attempt: Attempt, now: datetime) -> CadenceState:
    """Raises NoLog. A log that was cut off or written anew is heard from its end on."""
    row: Cadence | None = getattr(attempt, "cadence", None)
    log = LogStream(attempt.job.cluster.log_root, attempt.log_path)
    if row is not None and row.read == log.size:
        return _stored_cadence(row)
    fresh = row is None or row.read > log.size
    known = CadenceState() if row is None or fresh else _stored_cadence(row)
    begin = max(0 if row is None or fresh else row.read, log.size - (FIRST_READ_BYTES if fresh else MAX_READ_BYTES))
    raw = log.read_range(begin, log.size)
    whole = raw[: max(raw.rfind(b"\n"), raw.rfind(b"\r")) + 1]
    heard = update_cadence(known, decode_log_text(whole).splitlines(), now.timestamp())
    rows = decode_log_text(whole.replace(b"\r", b"\n")).splitlines()
    said = training_output.parse_training_output(rows, _log_step(attempt), _attempt_hosts(attempt))
    with transaction.atomic():
        _record_printed_progress(attempt, said, row, now, is_fresh=fresh)
        _save_cadence(attempt, heard, begin + len(whole), now)
    return heard


def _attempt_hosts(attempt: Attempt) -> Sequence[str]:
    """A list that nobody can read costs what its names would tell, not the log."""
    try:
        return expand(attempt.nodelist)
    except BadHostlist:
        return ()


def _log_step(attempt: Attempt) -> int | None:
    pulse: Pulse | None = getattr(attempt, "pulse", None)
    return pulse.step if pulse and pulse.is_of_log else None


def _record_printed_progress(
    attempt: Attempt, said: TrainingOutput, row: Cadence | None, now: datetime, *, is_fresh: bool
) -> None:
    newest, before, is_first = said.newest, _log_step(attempt), row is None or not row.read
    if is_first and (newest or said.saved) and _log_is_shared(attempt):
        return  # what stands there may be of an earlier attempt
    since = row.looked_at if row else attempt.confirmed_at
    late = is_first and since is not None and now - since > LATE_FIRST_READ
    if newest and not (is_fresh and before is not None and newest.step <= before):
        at = min(now, attempt.ended_at or now)
        progress.record_log_step(attempt.pk, asdict(newest) | {"at": at}, total=newest.total, is_late=late)
    if said.saved and since and not late:
        one = said.saved
        progress.record_log_checkpoint(attempt.pk, step=one.step, path=one.path, saved_at=since)


def _log_is_shared(attempt: Attempt) -> bool:
    """A cluster that starts a job again by itself may write on into the same file."""
    others = Attempt.objects.filter(job=attempt.job_id, log_path=attempt.log_path).exclude(pk=attempt.pk)
    return others.exists()


def _stored_cadence(row: Cadence) -> CadenceState:
    sections = tuple(SectionInterval(**one) for one in row.sections)
    return CadenceState(furthest=row.furthest, moments=tuple(row.moments), sections=sections, steps=tuple(row.steps))


def _save_cadence(attempt: Attempt, heard: CadenceState, read: int, now: datetime) -> None:
    fields = {
        "read": read,
        "furthest": dict(heard.furthest),
        "moments": list(heard.moments),
        "steps": list(heard.steps),
        "sections": [asdict(one) for one in heard.sections],
        "looked_at": now,
    }
    attempt.cadence, _ = Cadence.objects.update_or_create(attempt=attempt, defaults=fields)


def forget_ended_cadences() -> int:
    return delete_batch(Cadence.objects.filter(attempt__ended_at__isnull=False))
