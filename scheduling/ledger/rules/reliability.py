"""ETTR, goodput and mean time to failure, from the sums of the ledger. Pure.

goodput  productive GPU time as a fraction of the time held (a job, team, kind) or of the capacity (a cluster, a day)
ettr     productive time as a fraction of the wall-clock time of the runs, from the first promised start to the last
         end. Waits between attempts count, because a training that waits for a restart makes no progress
mttf     exposure / failures. The interval is the exact one of a Poisson count (Garwood): its limits are the rates at
         which so few, or so many, failures have the probability (1 - confidence) / 2. Without failures there is only
         a lower limit
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from scheduling.ledger.rules.buckets import HELD_BUCKETS, Bucket, share_us

LOST_BUCKETS = (Bucket.LOST_WORK, Bucket.RECOVERY, Bucket.HUNG, Bucket.SLOW)
CLOSED_BUCKETS = (Bucket.DRAINED, Bucket.DOWN)
MAX_EXACT_COUNT = 100


@dataclass(frozen=True, kw_only=True)
class JobLifetime:
    """A job from its first promised start to its last end, with its GPUs."""

    job: int
    gpus: int
    gpu_milli: int = 0  # thousandths of a GPU, instead of whole ones
    start: int
    end: int

    def gpu_us(self, start: int, end: int) -> int:
        """Its GPU-microseconds in a period within its life. Those of two halves add up to those of the whole."""
        return self.gpus * (end - start) + share_us(start, end, 0, self.gpu_milli)


@dataclass(frozen=True, kw_only=True)
class Mttf:
    """In the unit of the exposure. None: without failures there is no upper limit and no estimate."""

    failures: int
    exposure: float
    mean: float | None
    low: float
    high: float | None


def held_gpu_us(sums: Mapping[Bucket, int]) -> int:
    """GPU-microseconds in which GPUs were held by attempts."""
    return sum(size for bucket, size in sums.items() if bucket in HELD_BUCKETS)


def goodput(sums: Mapping[Bucket, int], whole: int) -> float | None:
    """The productive fraction of `whole`; None if that is 0."""
    return sums.get(Bucket.PRODUCTIVE, 0) / whole if whole else None


def ettr(sums: Mapping[Bucket, int], runs: Iterable[JobLifetime], start: int, end: int) -> float | None:
    """The ETTR of the runs that the sums belong to, within a window; None if they did not run in it."""
    wall = wall_gpu_us(runs, start, end)
    return sums.get(Bucket.PRODUCTIVE, 0) / wall if wall else None


def wall_gpu_us(runs: Iterable[JobLifetime], start: int, end: int) -> int:
    """GPU-microseconds of the runs within a window, with their waits between attempts."""
    within = ((run, max(run.start, start), min(run.end, end)) for run in runs)
    return sum(run.gpu_us(low, high) for run, low, high in within if low < high)


def mttf(failures: int, exposure: float, confidence: float = 0.9) -> Mttf:
    """The mean time to failure with its confidence interval."""
    tail = (1 - confidence) / 2
    most = _bisect_mean(lambda mean: poisson_cdf(failures, mean) > tail, failures)
    least = _bisect_mean(lambda mean: poisson_cdf(failures - 1, mean) > 1 - tail, failures) if failures else 0.0
    return Mttf(
        failures=failures,
        exposure=exposure,
        mean=exposure / failures if failures else None,
        low=exposure / most,
        high=exposure / least if least else None,
    )


def poisson_cdf(count: int, mean: float) -> float:
    """P(N <= count) for a Poisson variable. Above `MAX_EXACT_COUNT` by the approximation of Wilson and Hilferty (error
    1e-4).
    """
    if count < 0:
        return 0.0
    if mean <= 0:
        return 1.0
    if count > MAX_EXACT_COUNT:
        shape = count + 1
        z = 3 * math.sqrt(shape) * ((mean / shape) ** (1 / 3) - 1 + 1 / (9 * shape))
        return 0.5 * math.erfc(z / math.sqrt(2))
    terms = (math.exp(n * math.log(mean) - mean - math.lgamma(n + 1)) for n in range(count + 1))
    return min(1.0, math.fsum(terms))


def _bisect_mean(too_low: Callable[[float], bool], count: int) -> float:
    """The mean at which a falling probability crosses the bound, by bisection."""
    low, high = 0.0, count + 10 * math.sqrt(count + 1) + 10
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if too_low(middle) else (low, middle)
    return (low + high) / 2
