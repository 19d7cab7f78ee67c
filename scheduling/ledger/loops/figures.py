"""Ledger metrics: the figures of the last day of each cluster, for `/metrics` and the home page.

Eligible rows     All clusters.
What a turn does  Reads the ledger of the last day and of the day before, which are stored by the hour
                  (`scheduling.ledger.loops.periods`), computes the rest from rows, and stores the figures. The
                  database is only read. If more is not stored yet than a page would compute, as after an upgrade, a
                  later turn stores the figures: the other loop computes the same hours at that time.
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

from acmeweb.common import metrics_store
from jobs.models import Cluster
from scheduling.ledger.reads import energy as ledger_energy
from scheduling.ledger.reads import figures as ledger_figures
from scheduling.ledger.reads.periods import ClusterLedger, cluster_ledger
from scheduling.ledger.rules import last_day, reliability
from scheduling.ledger.rules.parts import US_PER_HOUR, JobRecovery, totals_by_step
from scheduling.power.reads import energy
from scheduling.power.rules.energy import J_PER_KWH
from scheduling.power.rules.energy_use import total_use

log = logging.getLogger(__name__)

ACCOUNT_WINDOW = timedelta(days=1)
METRIC_TTL_S = 1800


StoreFunction = Callable[[str, str, Mapping[str, Any], int], None]


def update_ledger_metrics_once(now: datetime, store: StoreFunction = metrics_store.store_figures) -> int:
    """Update the figures. Return the number of clusters updated."""
    updated = 0
    for cluster in Cluster.objects.order_by("pk"):
        try:
            updated += _update_metrics(cluster, now, store)
        except Exception:
            log.exception("the ledger of the last day of cluster %s could not be computed", cluster)
    return updated


def _update_metrics(cluster: Cluster, now: datetime, store: StoreFunction) -> bool:
    ledger = hourly_ledger(cluster, now)
    if ledger.left_out:
        return False
    figures = ledger_metrics(ledger, now) | day_trends(ledger) | energy_metrics(cluster, ledger, now)
    try:
        before = hourly_ledger(cluster, now - ACCOUNT_WINDOW)
        figures["day_before"] = None if before.left_out else last_day.part_sums(before.total)
    finally:  # the figures of the last day are useful without a comparison
        store(ledger_figures.STORED_AS, cluster.name, figures, METRIC_TTL_S)
    return True


def hourly_ledger(cluster: Cluster, until: datetime) -> ClusterLedger:
    """Return the ledger of a day by clock hours. The first and the last one are parts of an hour."""
    return cluster_ledger(cluster, until - ACCOUNT_WINDOW, until, longest_us=US_PER_HOUR)


def ledger_metrics(ledger: ClusterLedger, now: datetime) -> dict[str, Any]:
    """Return the figures of a ledger. Undefined ratios are omitted."""
    total = ledger.total
    ratios = {
        "goodput": reliability.goodput(total.bucket_us, total.capacity_us),
        "ettr": reliability.goodput(total.bucket_us, total.wall_us),
    }
    return {
        "at": now.timestamp(),
        "ratios": {name: ratio for name, ratio in ratios.items() if ratio is not None},
        "gpu_hours": {str(bucket): part / US_PER_HOUR for bucket, part in total.bucket_us.items()},
        **_recovery_metrics(total.recoveries),
    }


def energy_metrics(cluster: Cluster, ledger: ClusterLedger, now: datetime) -> dict[str, Any]:
    """Return the energy of the last day, and what was lost of it by cause. Empty without energy."""
    rows = energy.energy_rows([cluster], now - ACCOUNT_WINDOW, now)
    if not (use := total_use(row.use for row in rows)):
        return {}
    joules = {"counter": use.counter_j, "power": use.power_j, "estimate": use.estimate_j, "host": use.host_j}
    lost = ledger_energy.lost_energy([ledger], rows)
    return {
        "kwh": {basis: value / J_PER_KWH for basis, value in joules.items()},
        "kwh_lost": {cause: part.kwh for cause, part in lost.items()},
        "energy_cost": use.cost,
        "co2_kg": use.co2_kg,
    }


def day_trends(ledger: ClusterLedger) -> dict[str, Any]:
    """Return what goodput and ETTR of several clusters together are computed from: sums of the day and of each of its
    hours. Those of the day before are added later."""
    return {
        "day": last_day.part_sums(ledger.total),
        "hours": [last_day.part_sums(hour) for hour in totals_by_step(ledger.parts, US_PER_HOUR).values()],
        "day_before": None,
    }


def _recovery_metrics(recoveries: Sequence[JobRecovery]) -> dict[str, Any]:
    causes = Counter(recovery.cause for recovery in recoveries)
    took = [recovery.took_us / 1_000_000 for recovery in recoveries]
    return {"recoveries": dict(causes), "recovery_s": median(took) if took else None}
