"""Reads the new lines of a running attempt's log for steps and checkpoints. The only code that changes a Cadence.

The result and the read position are stored in one transaction, so a kill neither loses nor repeats a step. If the
position is unknown (the row is lost, the log was truncated), only steps beyond the known ones count. Times are those of
reading, because clocks in logs are unreliable. A checkpoint gets the time of the previous read, so that unsaved work is
never understated.

Cadences are not history, so no events are recorded.
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
from jobs.models import Attempt, LatestProgress

MAX_READ_BYTES = 1 << 20  # per read; of more new lines only the newest are read
FIRST_READ_BYTES = 64 << 10  # for the first read of a log
LATE_FIRST_READ = timedelta(minutes=1)  # an attempt first read later than this may have completed steps long before


def mark_looked_at(attempts: Sequence[Attempt], now: datetime) -> None:
    """Move the attempts to the end of the reading order, even if nothing new could be read."""
    rows = [Cadence(attempt=attempt, looked_at=now) for attempt in attempts]
    Cadence.objects.bulk_create(rows, update_conflicts=True, unique_fields=["attempt"], update_fields=["looked_at"])


def update_from_log(attempt: Attempt, now: datetime) -> CadenceState:
    """The cadence after reading the new lines. Raises LogReadError. A truncated log is read from its current end."""
    row: Cadence | None = getattr(attempt, "cadence", None)
    log = LogStream(attempt.job.cluster.log_root, attempt.log_path)
    if row is not None and row.read == log.size:
        return _stored_cadence(row)
    is_fresh = row is None or row.read > log.size
    previous = CadenceState() if row is None or is_fresh else _stored_cadence(row)
    start = max(
        0 if row is None or is_fresh else row.read, log.size - (FIRST_READ_BYTES if is_fresh else MAX_READ_BYTES)
    )
    raw = log.read_range(start, log.size)
    complete_lines = raw[: max(raw.rfind(b"\n"), raw.rfind(b"\r")) + 1]
    cadence = update_cadence(previous, decode_log_text(complete_lines).splitlines(), now.timestamp())
    rows = decode_log_text(complete_lines.replace(b"\r", b"\n")).splitlines()
    output = training_output.parse_training_output(rows, _log_step(attempt), _attempt_hosts(attempt))
    with transaction.atomic():
        _record_printed_progress(attempt, output, row, now, is_fresh=is_fresh)
        _save_cadence(attempt, cadence, start + len(complete_lines), now)
    return cadence


def _attempt_hosts(attempt: Attempt) -> Sequence[str]:
    """The hosts of the attempt; empty if its node list cannot be parsed, so that the log is still read."""
    try:
        return expand(attempt.nodelist)
    except BadHostlist:
        return ()


def _log_step(attempt: Attempt) -> int | None:
    latest: LatestProgress | None = getattr(attempt, "latest_progress", None)
    return latest.step if latest and latest.is_of_log else None


def _record_printed_progress(
    attempt: Attempt, output: TrainingOutput, row: Cadence | None, now: datetime, *, is_fresh: bool
) -> None:
    newest, last_step, is_first = output.newest, _log_step(attempt), row is None or not row.read
    if is_first and (newest or output.saved) and _log_is_shared(attempt):
        return  # these lines may come from an earlier attempt
    since = row.looked_at if row else attempt.confirmed_at
    late = is_first and since is not None and now - since > LATE_FIRST_READ
    if newest and not (is_fresh and last_step is not None and newest.step <= last_step):
        at = min(now, attempt.ended_at or now)
        progress.record_log_step(attempt.pk, asdict(newest) | {"at": at}, total=newest.total, is_late=late)
    if output.saved and since and not late:
        checkpoint = output.saved
        progress.record_log_checkpoint(attempt.pk, step=checkpoint.step, path=checkpoint.path, saved_at=since)


def _log_is_shared(attempt: Attempt) -> bool:
    """Whether another attempt has the same log. Clusters that requeue jobs may append to the same file."""
    others = Attempt.objects.filter(job=attempt.job_id, log_path=attempt.log_path).exclude(pk=attempt.pk)
    return others.exists()


def _stored_cadence(row: Cadence) -> CadenceState:
    sections = tuple(SectionInterval(**section) for section in row.sections)
    return CadenceState(furthest=row.furthest, moments=tuple(row.moments), sections=sections, steps=tuple(row.steps))


def _save_cadence(attempt: Attempt, cadence: CadenceState, read: int, now: datetime) -> None:
    fields = {
        "read": read,
        "furthest": dict(cadence.furthest),
        "moments": list(cadence.moments),
        "steps": list(cadence.steps),
        "sections": [asdict(section) for section in cadence.sections],
        "looked_at": now,
    }
    attempt.cadence, _ = Cadence.objects.update_or_create(attempt=attempt, defaults=fields)


def forget_ended_cadences() -> int:
    return delete_batch(Cadence.objects.filter(attempt__ended_at__isnull=False))
