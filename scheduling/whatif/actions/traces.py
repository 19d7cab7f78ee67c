"""All changes to uploaded traces: save, remove, delete after the retention time.

A file is parsed completely before it is saved, so each row is a valid trace. Its content never changes.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction

from acmeweb.common.errors import InvalidField, StateConflict
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.actions.retention import delete_batch
from jobs.models import Team
from scheduling.models import UNFINISHED_STATES, Simulation, UploadedTrace

MAX_TRACES_PER_TEAM = 20  # each may have tens of megabytes
TRACE_RETENTION = timedelta(days=90)  # since the last replay


@transaction.atomic
def save_trace(row: UploadedTrace, *, team: Team, author: Author) -> None:
    """Save a parsed trace. Raises InvalidField if the team has too many."""
    Team.objects.select_for_update().get(pk=team.pk)
    if UploadedTrace.objects.filter(team=team).count() >= MAX_TRACES_PER_TEAM:
        raise InvalidField("trace_file", f"{team} already has {MAX_TRACES_PER_TEAM} traces; remove one first")
    row.team, row.user_id = team, author.user_id
    row.save()
    _log_trace_event(row, "trace.uploaded", author)


@transaction.atomic
def remove(row: UploadedTrace, *, author: Author) -> None:
    """Remove a trace. Results of past replays are kept. Raises StateConflict."""
    if Simulation.objects.filter(trace=row.trace_name, state__in=UNFINISHED_STATES).exists():
        raise StateConflict(f"{row} is used by an unfinished simulation. Cancel the simulation first.")
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


def _log_trace_event(row: UploadedTrace, what: str, author: Author) -> None:
    detail = {"trace": row.pk, "name": row.name, "team": row.team.name, "jobs": row.jobs}
    journal.new_event(what, author, detail=detail).save()
