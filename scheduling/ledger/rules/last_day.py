"""Goodput and ETTR of a day and of each of its hours, from GPU-hours that can be added up over clusters. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduling.ledger.rules.buckets import Bucket
from scheduling.ledger.rules.parts import US_PER_HOUR, LedgerPart


class HourSums(NamedTuple):
    """GPU-hours of a period: the parts of both ratios."""

    productive: float = 0.0
    capacity: float = 0.0
    wall: float = 0.0  # of the jobs that ran, with their waits between attempts

    @property
    def goodput(self) -> float | None:
        return self.productive / self.capacity if self.capacity else None

    @property
    def ettr(self) -> float | None:
        return self.productive / self.wall if self.wall else None


@dataclass(frozen=True, kw_only=True)
class RatioTrend:
    """A ratio of the last day, of the day before, and of each hour of the last day, oldest first."""

    last_day: float | None
    day_before: float | None
    hours: Sequence[float | None]


def part_sums(part: LedgerPart) -> HourSums:
    return HourSums(
        productive=part.bucket_us[Bucket.PRODUCTIVE] / US_PER_HOUR,
        capacity=part.bucket_us.total() / US_PER_HOUR,
        wall=part.wall_us / US_PER_HOUR,
    )


def total_sums(parts: Iterable[Sequence[float]]) -> HourSums:
    """Return the sums over clusters."""
    columns = list(zip(*parts, strict=True))
    return HourSums(*map(sum, columns)) if columns else HourSums()
