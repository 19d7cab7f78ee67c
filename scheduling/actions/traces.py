"""All changes to uploaded traces: save, remove, delete after the retention time.

A file is parsed completely before it is saved, so each row is a valid trace. Its content never changes.
"""

from __future__ import annotations

import gzip
import io
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.actions.retention import delete_batch
from jobs.core.parsing import InvalidField
from jobs.models import Team
from jobs.traces.files import write_trace
from jobs.traces.trace import Trace
from scheduling.models import UNFINISHED_STATES, Simulation, UploadedTrace

MAX_TRACES_PER_TEAM = 20  # each may have tens of megabytes
TRACE_RETENTION = timedelta(days=90)  # since the last replay
MAX_QUOTED_ROWS = 5


class TraceInUse(Exception):
    pass


@dataclass(frozen=True, kw_only=True)
class ParsedTrace:
    """A parsed file that is not saved yet: the columns of its row."""

    name: str
    jobs: int
    span_s: float
    skipped_rows: int
    skipped_examples: list[str]
    packed: bytes


def parse_upload(trace: Trace, name: str) -> ParsedTrace:
    """Return the columns to save. It takes seconds for a long trace, so call it outside a transaction. Raises
    InvalidField."""
    if not len(trace):
        raise InvalidField("trace_file", f"{name} contains no job that ran{_first_bad_row(trace)}")
    return ParsedTrace(
        name=name,
        jobs=len(trace),
        span_s=float(trace.submit_s[-1] - trace.submit_s[0]),
        skipped_rows=trace.bad_count,
        skipped_examples=[str(row).replace("\x00", "") for row in trace.bad[:MAX_QUOTED_ROWS]],
        packed=_compress_trace(trace),
    )


@transaction.atomic
def save_trace(upload: ParsedTrace, *, team: Team, author: Author) -> UploadedTrace:
    """Save a parsed trace. Raises InvalidField if the team has too many."""
    Team.objects.select_for_update().get(pk=team.pk)
    if UploadedTrace.objects.filter(team=team).count() >= MAX_TRACES_PER_TEAM:
        raise InvalidField("trace_file", f"{team} already has {MAX_TRACES_PER_TEAM} traces; remove one first")
    row = UploadedTrace.objects.create(team=team, user_id=author.user_id, **vars(upload))
    _log_trace_event(row, "trace.uploaded", author)
    return row


@transaction.atomic
def remove(row: UploadedTrace, *, author: Author) -> None:
    """Remove a trace. Results of past replays are kept. Raises TraceInUse."""
    if Simulation.objects.filter(trace=row.trace_name, state__in=UNFINISHED_STATES).exists():
        raise TraceInUse(f"{row} is used by an unfinished simulation. Cancel the simulation first.")
    _log_trace_event(row, "trace.removed", author)
    row.delete()


TRACE_DELETE_BATCH = 50  # rows have megabytes each


def delete_unused_traces(now: datetime) -> int:
    """Delete traces that were not replayed during the retention time. Return their number."""
    busy = Simulation.objects.filter(state__in=UNFINISHED_STATES, trace__startswith="upload:").values_list(
        "trace", flat=True
    )
    numbers = [int(name.partition(":")[2]) for name in busy]
    return delete_batch(
        UploadedTrace.objects.filter(used_at__lt=now - TRACE_RETENTION).exclude(pk__in=numbers), TRACE_DELETE_BATCH
    )


def _compress_trace(trace: Trace) -> bytes:
    raw = io.BytesIO()
    with gzip.open(raw, "wt", encoding="utf-8", newline="", compresslevel=4) as out:
        write_trace(trace, out)  # type: ignore[arg-type]
    return raw.getvalue()


def _first_bad_row(trace: Trace) -> str:
    return f": {trace.bad[0]}" if trace.bad else ""


def _log_trace_event(row: UploadedTrace, what: str, author: Author) -> None:
    detail = {"trace": row.pk, "name": row.name, "team": row.team.name, "jobs": row.jobs}
    journal.new_event(what, author, detail=detail).save()
