"""Reads the new lines of a running attempt's log for steps and checkpoints. Read-only.

If the position is unknown (the row is lost, the log was truncated), only steps beyond the known ones count. Times are
those of reading, because clocks in logs are unreliable. A checkpoint gets the time of the previous read, so that
unsaved work is never understated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db.models import F, Q

from acmeweb.common.errors import InvalidInput
from failures.detection import training_output
from failures.detection.step_cadence import CadenceState, cadence_from_json, update_cadence
from failures.detection.training_output import LoggedCheckpoint, LoggedStep, TrainingOutput
from failures.models import LogReadState
from failures.queries.monitored_attempts import running_trainings, without_reports
from jobs.core.hostlist import expand
from jobs.logs.job_log import LogStream, decode_log_text
from jobs.models import Attempt, LatestProgress

MAX_LOGS = 500  # per turn
READ_INTERVAL = timedelta(seconds=14)  # with a turn every 5 s, each log is read every 15 s
MAX_READ_BYTES = 1 << 20  # per read; of more new lines only the newest are read
FIRST_READ_BYTES = 64 << 10  # for the first read of a log
LATE_FIRST_READ = timedelta(minutes=1)  # an attempt first read later than this may have completed steps long before


@dataclass(frozen=True, kw_only=True)
class PrintedSteps:
    """What was read from the new lines of a log: the cadence, and the progress that is to be stored."""

    read: int
    cadence: CadenceState
    step: LoggedStep | None = None
    is_late: bool = False  # the step may have been printed long before it was read
    saved: LoggedCheckpoint | None = None
    saved_at: datetime | None = None


def attempts_to_read(now: datetime) -> list[Attempt]:
    """Running trainings without reports whose logs are due, longest unread first."""
    due = Q(log_read_state__steps_looked_at=None) | Q(log_read_state__steps_looked_at__lte=now - READ_INTERVAL)
    rows = without_reports(running_trainings()).filter(due, log_read_state__isnull=False)
    order = F("log_read_state__steps_looked_at").asc(nulls_first=True)
    return list(rows.select_related("log_read_state", "latest_progress").order_by(order, "pk")[:MAX_LOGS])


def ended_attempts_to_close() -> list[Attempt]:
    """Ended attempts whose log was read for steps while they ran: the rest of it is read once, when it is complete."""
    rows = Attempt.objects.filter(ended_at__isnull=False, log_read_state__cadence__isnull=False, log_pending=False)
    related = rows.select_related("job__cluster", "log_read_state", "latest_progress").defer("job__command")
    return list(related.order_by("log_read_state__steps_looked_at", "pk")[:MAX_LOGS])


def read_new_steps(attempt: Attempt, log: LogStream, now: datetime) -> PrintedSteps | None:
    """What the new lines contain; None if there are none. A truncated log is read again from near its end."""
    row: LogReadState = attempt.log_read_state
    if row.steps_read == log.size and row.cadence is not None:
        return None
    is_fresh = row.cadence is None or row.steps_read > log.size
    before = CadenceState() if is_fresh else cadence_from_json(row.cadence)
    start = max(0 if is_fresh else row.steps_read, log.size - (FIRST_READ_BYTES if is_fresh else MAX_READ_BYTES))
    raw = log.read_range(start, log.size)
    # The last line of an ended attempt is complete without a newline
    complete_lines = raw if attempt.ended_at else raw[: max(raw.rfind(b"\n"), raw.rfind(b"\r")) + 1]
    cadence = update_cadence(before, decode_log_text(complete_lines).splitlines(), now.timestamp())
    found = PrintedSteps(read=start + len(complete_lines), cadence=cadence)
    rows = decode_log_text(complete_lines.replace(b"\r", b"\n")).splitlines()
    output = training_output.parse_training_output(rows, _log_step(attempt), _attempt_hosts(attempt))
    return _with_progress(found, attempt, output, now, is_fresh=is_fresh)


def _with_progress(
    found: PrintedSteps, attempt: Attempt, output: TrainingOutput, now: datetime, *, is_fresh: bool
) -> PrintedSteps:
    """Add the step and the checkpoint that are to be stored."""
    row, last_step = attempt.log_read_state, _log_step(attempt)
    is_first = not row.steps_read
    if is_first and (output.newest or output.saved) and _log_is_shared(attempt):
        return found  # these lines may come from an earlier attempt
    since = row.steps_read_at or attempt.confirmed_at
    late = is_first and since is not None and now - since > LATE_FIRST_READ
    repeats = output.newest and is_fresh and last_step is not None and output.newest.step <= last_step
    saved = None if late else output.saved
    return replace(found, step=None if repeats else output.newest, is_late=late, saved=saved, saved_at=since)


def _attempt_hosts(attempt: Attempt) -> Sequence[str]:
    """The hosts of the attempt; empty if its node list cannot be parsed, so that the log is still read."""
    try:
        return expand(attempt.nodelist)
    except InvalidInput:
        return ()


def _log_step(attempt: Attempt) -> int | None:
    latest: LatestProgress | None = getattr(attempt, "latest_progress", None)
    return latest.step if latest and latest.is_of_log else None


def _log_is_shared(attempt: Attempt) -> bool:
    """Whether another attempt has the same log. Clusters that requeue jobs may append to the same file."""
    others = Attempt.objects.filter(job=attempt.job_id, log_path=attempt.log_path).exclude(pk=attempt.pk)
    return others.exists()
