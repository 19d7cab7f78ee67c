"""Times in which clocks of a job's GPUs were capped, so its steps took longer although nothing is wrong."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from django.db.models import F, Q

from jobs.models import NodeClock

Interval = tuple[datetime, datetime]


def capped_times(attempts: Collection[int], now: datetime) -> dict[int, list[Interval]]:
    """The times in which any node of an attempt was capped, in order and without overlaps. A cap that lasts ends now,
    and one whose command was not confirmed counts, because the clocks are unknown then."""
    rows = NodeClock.objects.filter(node__allocations__attempt__in=attempts).filter(
        Q(ended_at=None) | Q(ended_at__gt=F("node__allocations__held_at")),
        Q(node__allocations__released_at=None) | Q(began_at__lt=F("node__allocations__released_at")),
    )
    columns = rows.order_by("node__allocations__attempt", "began_at", "ended_at").values_list(
        "node__allocations__attempt", "began_at", "ended_at"
    )
    times: dict[int, list[Interval]] = {}
    for attempt, began, ended in columns.distinct():
        _add(times.setdefault(attempt, []), began, ended or max(began, now))
    return times


def _add(intervals: list[Interval], began: datetime, ended: datetime) -> None:
    """Add an interval that begins no earlier than the last one."""
    if intervals and began <= intervals[-1][1]:
        intervals[-1] = (intervals[-1][0], max(intervals[-1][1], ended))
    else:
        intervals.append((began, ended))
