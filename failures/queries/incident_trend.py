"""How many incidents were unresolved at given times. Read-only."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime

from django.db.models import Q

from failures.models.incident import IncidentQuerySet


def unresolved_counts(incidents: IncidentQuerySet, times: Sequence[datetime]) -> list[int]:
    """Return the number of unresolved ones at each time; the times ascend. One query."""
    since_first = incidents.filter(Q(resolved_at=None) | Q(resolved_at__gt=times[0]), opened_at__lte=times[-1])
    rows = list(since_first.order_by().values_list("opened_at", "resolved_at"))
    opened = sorted(at for at, _ in rows)
    resolved = sorted(at for _, at in rows if at)
    return [bisect_right(opened, moment) - bisect_right(resolved, moment) for moment in times]
