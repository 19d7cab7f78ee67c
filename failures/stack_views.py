"""Stacks on the page of their incident: what they say, and the stacks themselves, which are words of a job's log."""

from __future__ import annotations

from failures.models import Incident, StackDump
from jobs.rights import Caller

MOST = 10
SHOWN = 64 << 10  # characters of one; the rest is in the log


def of_incident(incident: Incident, caller: Caller) -> list[StackDump]:
    """The newest first; of jobs that the viewer may see."""
    mine = incident.stack_dumps.filter(attempt__job__in=caller.jobs().values("pk"))
    found = list(mine.select_related("attempt__job").order_by("-pk")[:MOST])
    for one in found:
        one.shown = one.text[:SHOWN]
        one.is_cut = one.size > len(one.shown.encode())
    return found
