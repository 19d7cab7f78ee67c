"""Lays out attempts as bars on a time axis from the submission of a job to its end, or to now. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class TimelineEntry:
    """A period and the tone of its bar. `end` is None while the period lasts."""

    name: str
    tone: str
    begin: datetime
    end: datetime | None


@dataclass(frozen=True, kw_only=True)
class TimelineBar:
    """Position and width of a bar in percent of the total width."""

    name: str
    tone: str
    start: float
    share: float


MIN_WIDTH_PERCENT = 0.4  # keeps a bar of one second visible on an axis of a month


def timeline_bars(entries: Iterable[TimelineEntry], begin: datetime, end: datetime) -> list[TimelineBar]:
    # At least one second, because begin and end may be equal
    total = max((end - begin).total_seconds(), 1.0)

    def percent_at(moment: datetime) -> float:
        # Clamped: clocks of clusters may differ from ours
        return min(100.0, max(0.0, 100 * (moment - begin).total_seconds() / total))

    bars = []
    for entry in entries:
        start, stop = percent_at(entry.begin), percent_at(entry.end or end)
        share = max(stop - start, MIN_WIDTH_PERCENT)
        # A widened bar at the end must not exceed the axis
        start = min(start, 100 - share)
        bars.append(TimelineBar(name=entry.name, tone=entry.tone, start=round(start, 3), share=round(share, 3)))
    return bars
