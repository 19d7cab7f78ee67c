"""The only code that changes the traces that people bring: kept, used, removed, forgotten.

A file is read in full before anything is kept, so a row is always a trace; what it holds never changes after that.
"""

from __future__ import annotations

import gzip
import io
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from jobs import journal
from jobs.journal import Author
from jobs.models import Team
from jobs.readers import BadSpec
from jobs.retention import delete_batch
from jobs.traces.files import write
from jobs.traces.trace import Trace
from scheduling.models import UNFINISHED, Simulation, UploadedTrace

MOST_TRACES = 20  # of a team: each may be tens of megabytes
KEPT = timedelta(days=90)  # after it was last used
QUOTED = 5


class InUse(Exception):
    pass


@dataclass(frozen=True, kw_only=True)
class Brought:
    """A file that was read and is not kept yet: the columns of its row."""

    name: str
    jobs: int
    span_s: float
    bad: int
    quoted: list[str]
    packed: bytes


def pack(trace: Trace, name: str) -> Brought:
    """Takes seconds for a long one, so no transaction is open meanwhile. Raises BadSpec."""
    if not len(trace):
        raise BadSpec("trace_file", f"{name} holds no job that ran{_first_bad(trace)}")
    return Brought(
        name=name,
        jobs=len(trace),
        span_s=float(trace.submit_s[-1] - trace.submit_s[0]),
        bad=trace.bad_count,
        quoted=[str(row).replace("\x00", "") for row in trace.bad[:QUOTED]],
        packed=_packed(trace),
    )


@transaction.atomic
def keep(brought: Brought, *, team: Team, author: Author) -> UploadedTrace:
    """Raises BadSpec."""
    Team.objects.select_for_update().get(pk=team.pk)
    if UploadedTrace.objects.filter(team=team).count() >= MOST_TRACES:
        raise BadSpec("trace_file", f"{team} has {MOST_TRACES} traces already; remove one")
    made = UploadedTrace.objects.create(team=team, user_id=author.user_id, **vars(brought))
    _tell(made, "trace.uploaded", author)
    return made


@transaction.atomic
def remove(row: UploadedTrace, *, author: Author) -> None:
    """Results of past replays stay. Raises InUse."""
    if Simulation.objects.filter(trace=row.called, state__in=UNFINISHED).exists():
        raise InUse(f"{row} is being replayed; cancel that first.")
    _tell(row, "trace.removed", author)
    row.delete()


MOST_FORGOTTEN = 50  # at once: each holds megabytes


def forget_once(now: datetime) -> int:
    """Those that nobody has replayed for long."""
    busy = Simulation.objects.filter(state__in=UNFINISHED, trace__startswith="upload:").values_list("trace", flat=True)
    numbers = [int(name.partition(":")[2]) for name in busy]
    return delete_batch(UploadedTrace.objects.filter(used_at__lt=now - KEPT).exclude(pk__in=numbers), MOST_FORGOTTEN)


def _packed(trace: Trace) -> bytes:
    raw = io.BytesIO()
    with gzip.open(raw, "wt", encoding="utf-8", newline="", compresslevel=4) as out:
        write(trace, out)  # type: ignore[arg-type]
    return raw.getvalue()


def _first_bad(trace: Trace) -> str:
    return f": {trace.bad[0]}" if trace.bad else ""


def _tell(row: UploadedTrace, what: str, author: Author) -> None:
    detail = {"trace": row.pk, "name": row.name, "team": row.team.name, "jobs": row.jobs}
    journal.event(what, author, detail=detail).save()
