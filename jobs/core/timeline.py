"""An attempt as a bar on the time from a job's submission until its end, or now. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class TimelineEntry:
    """A stretch of time and the tone it is drawn in; no end means that it still goes on."""

    name: str
    tone: str
    begin: datetime
    end: datetime | None


@dataclass(frozen=True, kw_only=True)
class TimelineBar:
    """In percent of the whole width."""

    name: str
    tone: str
    start: float
    share: float


MIN_WIDTH_PERCENT = 0.4  # percent: a second within a month must still be seen


def timeline_bars(pieces: Iterable[TimelineEntry], begin: datetime, end: datetime) -> list[TimelineBar]:
    whole = max((end - begin).total_seconds(), 1.0)

    def percent_at(moment: datetime) -> float:
        return min(100.0, max(0.0, 100 * (moment - begin).total_seconds() / whole))

    drawn = []
    for piece in pieces:
        start, stop = percent_at(piece.begin), percent_at(piece.end or end)
        share = max(stop - start, MIN_WIDTH_PERCENT)
        start = min(start, 100 - share)
        drawn.append(TimelineBar(name=piece.name, tone=piece.tone, start=round(start, 3), share=round(share, 3)))
    return drawn
