"""Ledger metrics: compute the last day of each cluster, for `/metrics` and the home page.

Eligible rows     All clusters.
What a turn does  Computes the ledger of the last day and of the day before (`ledger_facts.cluster_ledger`) and stores
                  the figures. The database is only read. This takes nine statements per ledger, too slow for a scrape
                  or a page.
Failure story     Figures that are not updated expire, which leaves a gap in the charts. Two concurrent runs write the
                  same figures. An error in one cluster is logged, and the other clusters are processed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded

from acmeweb.common import metrics_store
from jobs.models import Cluster
from scheduling.ledger import last_day, reliability
from scheduling.ledger.buckets import Bucket
from scheduling.queries import ledger_facts, ledger_figures
from scheduling.queries.ledger_facts import ClusterLedger, JobRecovery

log = logging.getLogger(__name__)

ACCOUNT_WINDOW = timedelta(days=1)
METRIC_TTL_S = 1800


StoreFunction = Callable[[str, str, Mapping[str, Any], int], None]


def update_ledger_metrics_once(now: datetime, store: StoreFunction = metrics_store.store_figures) -> int:
    """Update the figures. Return the number of clusters updated."""
    updated = 0
    for cluster in Cluster.objects.order_by("pk"):
        try:
            ledger = ledger_facts.cluster_ledger(cluster, now - ACCOUNT_WINDOW, now, _day_hours(now))
            figures = ledger_metrics(ledger, now) | day_trends(ledger, now)
            try:
                figures["day_before"] = _day_before(cluster, now)
            finally:  # the figures of the last day are useful without a comparison
                store(ledger_figures.STORED_AS, cluster.name, figures, METRIC_TTL_S)
        except SoftTimeLimitExceeded:
            raise
        except Exception:
            log.exception("the ledger of the last day of cluster %s could not be computed", cluster)
            continue
        updated += 1
    return updated


def ledger_metrics(ledger: ClusterLedger, now: datetime) -> dict[str, Any]:
    """Return the figures of a ledger. Undefined ratios are omitted."""
    sums: Counter[Bucket] = Counter()
    for entry in ledger.entries:
        sums[entry.bucket] += entry.gpu_us
    ratios = {
        "goodput": reliability.goodput(sums, ledger.capacity_us),
        "ettr": reliability.ettr(
            sums,
            ledger.all_runs,
            ledger_facts.unix_microseconds(now - ACCOUNT_WINDOW),
            ledger_facts.unix_microseconds(now),
        ),
    }
    return {
        "at": now.timestamp(),
        "ratios": {name: ratio for name, ratio in ratios.items() if ratio is not None},
        "gpu_hours": {str(bucket): part / ledger_facts.US_PER_HOUR for bucket, part in sums.items()},
        **_recovery_metrics(ledger.comebacks),
    }


def day_trends(ledger: ClusterLedger, now: datetime) -> dict[str, Any]:
    """Return what goodput and ETTR of several clusters together are computed from: sums of the day and of each of its
    hours. Those of the day before are added later."""
    start, end = ledger_facts.unix_microseconds(now - ACCOUNT_WINDOW), ledger_facts.unix_microseconds(now)
    return {
        "day": last_day.period_sums(ledger.entries, ledger.all_runs, start, end),
        "hours": last_day.window_sums(ledger.entries, ledger.all_runs, ledger.edges),
        "day_before": None,
    }


def _day_hours(now: datetime) -> list[int]:
    start = ledger_facts.unix_microseconds(now - ACCOUNT_WINDOW)
    return last_day.hour_edges(start, ledger_facts.unix_microseconds(now))


def _day_before(cluster: Cluster, now: datetime) -> last_day.HourSums:
    since, until = now - 2 * ACCOUNT_WINDOW, now - ACCOUNT_WINDOW
    ledger = ledger_facts.cluster_ledger(cluster, since, until)
    start, end = ledger_facts.unix_microseconds(since), ledger_facts.unix_microseconds(until)
    return last_day.period_sums(ledger.entries, ledger.all_runs, start, end)


def _recovery_metrics(comebacks: Sequence[JobRecovery]) -> dict[str, Any]:
    causes = Counter(recovery.cause for recovery in comebacks)
    took = [recovery.took.total_seconds() for recovery in comebacks]
    return {"recoveries": dict(causes), "recovery_s": median(took) if took else None}
