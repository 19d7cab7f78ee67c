"""The only code that changes the traces that people bring: kept, used, removed, forgotten.

A file is read in full before anything is kept, so a row is always a trace; what it holds never changes after that.
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

MAX_TRACES_PER_TEAM = 20  # of a team: each may be tens of megabytes
TRACE_RETENTION = timedelta(days=90)  # after it was last used
MAX_QUOTED_ROWS = 5


class TraceInUse(Exception):
    pass


@dataclass(frozen=True, kw_only=True)
class ParsedTrace:
    """A file that was read and is not kept yet: the columns of its row."""

    name: str
    jobs: int
    span_s: float
    bad: int
    quoted: list[str]
    packed: bytes


def parse_upload(trace: Trace, name: str) -> ParsedTrace:
    """Takes seconds for a long one, so no transaction is open meanwhile. Raises BadSpec."""
    if not len(trace):
        raise InvalidField("trace_file", f"{name} holds no job that ran{_first_bad_row(trace)}")
    return ParsedTrace(
        name=name,
        jobs=len(trace),
        span_s=float(trace.submit_s[-1] - trace.submit_s[0]),
        bad=trace.bad_count,
        quoted=[str(row).replace("\x00", "") for row in trace.bad[:MAX_QUOTED_ROWS]],
        packed=_compress_trace(trace),
    )


@transaction.atomic
def save_trace(brought: ParsedTrace, *, team: Team, author: Author) -> UploadedTrace:
    """Raises BadSpec."""
    Team.objects.select_for_update().get(pk=team.pk)
    if UploadedTrace.objects.filter(team=team).count() >= MAX_TRACES_PER_TEAM:
        raise InvalidField("trace_file", f"{team} has {MAX_TRACES_PER_TEAM} traces already; remove one")
    made = UploadedTrace.objects.create(team=team, user_id=author.user_id, **vars(brought))
    _log_trace_event(made, "trace.uploaded", author)
    return made


@transaction.atomic
def remove(row: UploadedTrace, *, author: Author) -> None:
    """Results of past replays stay. Raises InUse."""
    if Simulation.objects.filter(trace=row.called, state__in=UNFINISHED_STATES).exists():
        raise TraceInUse(f"{row} is being replayed; cancel that first.")
    _log_trace_event(row, "trace.removed", author)
    row.delete()


TRACE_DELETE_BATCH = 50  # at once: each holds megabytes


def delete_unused_traces(now: datetime) -> int:
    """Those that nobody has replayed for long."""
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
