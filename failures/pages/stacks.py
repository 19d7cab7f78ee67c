"""Stacks on the page of their incident: what they say, and the stacks themselves, which are words of a job's log."""

from __future__ import annotations

from failures.models import Incident, StackDump
from jobs.models.permissions import Caller

MAX_DUMPS = 10
MAX_SHOWN_CHARS = 64 << 10  # characters of one; the rest is in the log


def incident_stacks(incident: Incident, caller: Caller) -> list[StackDump]:
    """The newest first; of jobs that the viewer may see."""
    mine = incident.stack_dumps.filter(attempt__job__in=caller.jobs().values("pk"))
    found = list(mine.select_related("attempt__job").order_by("-pk")[:MAX_DUMPS])
    for one in found:
        one.shown = one.text[:MAX_SHOWN_CHARS]
        one.is_cut = one.size > len(one.shown.encode())
    return found
