"""An attempt as a bar on the time from a job's submission until its end, or now. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A stretch of time and the tone it is drawn in; no end means that it still goes on."""

    name: str
    tone: str
    begin: datetime
    end: datetime | None


@dataclass(frozen=True, kw_only=True)
class Span:
    """In percent of the whole width."""

    name: str
    tone: str
    start: float
    share: float


THINNEST = 0.4  # percent: a second within a month must still be seen


def spans(pieces: Iterable[Piece], begin: datetime, end: datetime) -> list[Span]:
    whole = max((end - begin).total_seconds(), 1.0)

    def at(moment: datetime) -> float:
        return min(100.0, max(0.0, 100 * (moment - begin).total_seconds() / whole))

    drawn = []
    for piece in pieces:
        start, stop = at(piece.begin), at(piece.end or end)
        share = max(stop - start, THINNEST)
        start = min(start, 100 - share)
        drawn.append(Span(name=piece.name, tone=piece.tone, start=round(start, 3), share=round(share, 3)))
    return drawn
