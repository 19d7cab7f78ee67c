"""Goodput and ETTR of a day and of each of its hours, from GPU-hours that can be added up over clusters. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from scheduling.ledger import reliability
from scheduling.ledger.buckets import Bucket, LedgerEntry, sum_by_key
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


def hour_edges(start: int, end: int) -> list[int]:
    """Return the edges of the windows that `window_sums` expects: one per hour."""
    return [*range(start, end, US_PER_HOUR), end]


def window_sums(entries: Iterable[LedgerEntry], runs: Sequence[JobLifetime], edges: Sequence[int]) -> list[HourSums]:
    """Return the sums of each window of a ledger."""
    by_window = sum_by_key(entries, lambda entry: entry.window)
    return [
        _hour_sums(by_window.get(window, Counter()), runs, low, high)
        for window, (low, high) in enumerate(pairwise(edges))
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
