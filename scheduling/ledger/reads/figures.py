"""Goodput, ETTR and GPU-hours of the last day over all clusters, as the ledger loop has stored them. Needs no ledger.

`scheduling.ledger.loops.figures` stores the figures every five minutes; `/metrics` exports the same ones by cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from acmeweb.common import metrics_store
from scheduling.ledger.rules.buckets import Bucket
from scheduling.ledger.rules.last_day import HourSums, RatioTrend, total_sums
from scheduling.ledger.rules.parts import US_PER_HOUR

STORED_AS = "account"  # the name of these figures in the metrics store


@dataclass(frozen=True, kw_only=True)
class LastDay:
    """The last day up to `until`, the oldest time at which a cluster's figures were computed."""

    until: datetime
    goodput: RatioTrend
    ettr: RatioTrend
    gpu_us: Counter[Bucket]


def last_day(clusters: Iterable[str]) -> LastDay | None:
    """Return the figures of the clusters together; None if there are none, as in the first minutes of an instance."""
    stored = metrics_store.read_figures(STORED_AS, clusters).values()
    figures = [one for one in stored if "day" in one]  # during an upgrade an older worker stores fewer figures
    if not figures:
        return None
    day = total_sums(one["day"] for one in figures)
    is_comparable = all(one["day_before"] for one in figures)  # zeros of one cluster would make yesterday look worse
    before = total_sums(one["day_before"] for one in figures) if is_comparable else HourSums()
    hours = [total_sums(of_hour) for of_hour in zip(*(one["hours"] for one in figures), strict=False)]
    return LastDay(
        until=datetime.fromtimestamp(min(one["at"] for one in figures), UTC),
        goodput=RatioTrend(last_day=day.goodput, day_before=before.goodput, hours=[one.goodput for one in hours]),
        ettr=RatioTrend(last_day=day.ettr, day_before=before.ettr, hours=[one.ettr for one in hours]),
        gpu_us=_gpu_us(figures),
    )


def _gpu_us(figures: Iterable[dict[str, Any]]) -> Counter[Bucket]:
    sums: Counter[Bucket] = Counter()
    for one in figures:
        for bucket, hours in one["gpu_hours"].items():
            sums[Bucket(bucket)] += round(hours * US_PER_HOUR)
    return sums
