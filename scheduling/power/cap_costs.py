"""What power caps cost a job: the times in which GPUs of it were capped, and how much slower it was. Pure.

A job waits for its slowest node, so it has the speed of the lowest clock. Speeds are those of `clock_curves`, not
measured: the steps of a job may be slower for other reasons at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple


class NodeCap(NamedTuple):
    """A cap of one node of the job. `speed` is 1 at the highest clock."""

    began: datetime
    ended: datetime
    speed: float


@dataclass(frozen=True, kw_only=True)
class CapTime:
    """A time in which some node of the job was capped without a break."""

    began: datetime
    ended: datetime | None  # None: it lasts
    lost_share: float  # of the speed, on average

    def text(self, now: datetime) -> str:
        """Such as "Capped from 14:02 to 14:11 UTC, cost about 3% of the speed"."""
        begin = _time_text(self.began, now)
        span = f"from {begin} to {_time_text(self.ended, now)} UTC" if self.ended else f"since {begin} UTC"
        percent = 100 * self.lost_share
        cost = f"about {percent:.0f}%" if percent >= 1 else "less than 1%"
        return f"Capped {span}, cost {cost} of the speed"


def cap_times(caps: Iterable[NodeCap], now: datetime) -> list[CapTime]:
    """The times in order. Caps of several nodes may overlap; those that last end now."""
    rows = sorted({cap for cap in caps if cap.ended > cap.began})
    edges = sorted({edge for cap in rows for edge in (cap.began, cap.ended)})
    pieces = [NodeCap(low, high, _lowest_speed(rows, low)) for low, high in pairwise(edges)]
    times: list[list[NodeCap]] = []
    for piece in (one for one in pieces if one.speed < 1):
        if times and times[-1][-1].ended == piece.began:
            times[-1].append(piece)
        else:
            times.append([piece])
    return [_cap_time(one, now) for one in times]


def _lowest_speed(rows: Sequence[NodeCap], at: datetime) -> float:
    return min((cap.speed for cap in rows if cap.began <= at < cap.ended), default=1.0)


def _cap_time(pieces: Sequence[NodeCap], now: datetime) -> CapTime:
    seconds = [(piece.ended - piece.began).total_seconds() for piece in pieces]
    lost_s = sum(length * (1 - piece.speed) for length, piece in zip(seconds, pieces, strict=True))
    ended = pieces[-1].ended if pieces[-1].ended < now else None
    return CapTime(began=pieces[0].began, ended=ended, lost_share=lost_s / sum(seconds))


def _time_text(at: datetime, now: datetime) -> str:
    utc = at.astimezone(UTC)
    return f"{utc:%H:%M}" if utc.date() == now.astimezone(UTC).date() else f"{utc:%Y-%m-%d %H:%M}"
