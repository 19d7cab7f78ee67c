"""Goodput and ETTR of a day and of each of its hours, from GPU-hours that can be added up over clusters. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from scheduling.ledger import reliability
from scheduling.ledger.buckets import Bucket, LedgerEntry, split_entries
from scheduling.ledger.reliability import JobLifetime

US_PER_HOUR = 3_600_000_000


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


def period_sums(entries: Iterable[LedgerEntry], runs: Iterable[JobLifetime], start: int, end: int) -> HourSums:
    return _hour_sums(_gpu_us_by_bucket(entries), runs, start, end)


def hourly_sums(entries: Iterable[LedgerEntry], runs: Sequence[JobLifetime], start: int, end: int) -> list[HourSums]:
    """Return the sums of each hour from `start` to `end`."""
    bounds = [*range(start, end, US_PER_HOUR), end]
    pieces: list[list[LedgerEntry]] = [[] for _ in bounds[1:]]
    for piece in split_entries(entries, bounds):
        pieces[(piece.start - start) // US_PER_HOUR].append(piece)
    return [
        _hour_sums(_gpu_us_by_bucket(of_hour), runs, low, high)
        for of_hour, (low, high) in zip(pieces, pairwise(bounds), strict=True)
    ]


def _gpu_us_by_bucket(entries: Iterable[LedgerEntry]) -> Counter[Bucket]:
    sums: Counter[Bucket] = Counter()
    for entry in entries:
        sums[entry.bucket] += entry.gpu_us
    return sums


def _hour_sums(sums: Counter[Bucket], runs: Iterable[JobLifetime], start: int, end: int) -> HourSums:
    return HourSums(
        productive=sums[Bucket.PRODUCTIVE] / US_PER_HOUR,
        capacity=sums.total() / US_PER_HOUR,
        wall=reliability.wall_gpu_us(runs, start, end) / US_PER_HOUR,
    )


def total_sums(parts: Iterable[Sequence[float]]) -> HourSums:
    """Return the sums over clusters."""
    columns = list(zip(*parts, strict=True))
    return HourSums(*map(sum, columns)) if columns else HourSums()
