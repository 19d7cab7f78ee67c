"""The stacks on the page of their incident. They come from the log of a job, so its team alone may see them."""

from __future__ import annotations

from failures.models import Incident, StackDump
from jobs.models.permissions import Caller

MAX_DUMPS = 10
MAX_SHOWN_CHARS = 64 << 10  # characters per dump; the rest is in the log


def incident_stacks(incident: Incident, caller: Caller) -> list[StackDump]:
    """The stack dumps of jobs that the caller may see, newest first."""
    visible = incident.stack_dumps.filter(attempt__job__in=caller.jobs().values("pk"))
    dumps = list(visible.select_related("attempt__job").order_by("-pk")[:MAX_DUMPS])
    for dump in dumps:
        dump.shown = dump.text[:MAX_SHOWN_CHARS]
        dump.is_cut = dump.size > len(dump.shown.encode())
    return dumps
