"""Account: what the last day of each cluster came to, for those who want to read it often.

Who is eligible   every cluster.
What a turn does  divides the day (`accounting.account`) and leaves its figures where `/metrics` finds them; the
                  record is only read. It is nine statements a cluster, which no scrape should wait for.
Failure story     Figures that are not worked out again are gone after a while, and a gap is drawn. Twice at once, both
                  write the same. A cluster whose day cannot be divided is logged, and the others go on.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded

from acmeweb.common import metrics_store
from jobs.models import Cluster
from scheduling.ledger import reliability
from scheduling.ledger.buckets import Bucket
from scheduling.queries import ledger_facts
from scheduling.queries.ledger_facts import ClusterLedger, JobRecovery

log = logging.getLogger(__name__)

ACCOUNT_WINDOW = timedelta(days=1)
METRIC_TTL_S = 1800


def update_ledger_metrics_once(now: datetime) -> int:
    """How many clusters have new figures."""
    done = 0
    for cluster in Cluster.objects.order_by("pk"):
        try:
            found = ledger_facts.cluster_ledger(cluster, now - ACCOUNT_WINDOW, now)
        except SoftTimeLimitExceeded:
            raise
        except Exception:
            log.exception("the last day of cluster %s could not be divided", cluster)
            continue
        metrics_store.store_figures("account", cluster.name, ledger_metrics(found, now), METRIC_TTL_S)
        done += 1
    return done


def ledger_metrics(found: ClusterLedger, now: datetime) -> dict[str, Any]:
    """Ratios are left out where there is nothing to divide by."""
    sums: Counter[Bucket] = Counter()
    for piece in found.pieces:
        sums[piece.bucket] += piece.gpu_us
    runs = [run for of_team in found.runs.values() for run in of_team]
    ratios = {
        "goodput": reliability.goodput(sums, found.capacity_us),
        "ettr": reliability.ettr(
            sums, runs, ledger_facts.unix_microseconds(now - ACCOUNT_WINDOW), ledger_facts.unix_microseconds(now)
        ),
    }
    return {
        "at": now.timestamp(),
        "ratios": {name: ratio for name, ratio in ratios.items() if ratio is not None},
        "gpu_hours": {str(bucket): part / ledger_facts.US_PER_HOUR for bucket, part in sums.items()},
        **_recovery_metrics(found.comebacks),
    }


def _recovery_metrics(comebacks: Sequence[JobRecovery]) -> dict[str, Any]:
    counted = Counter(one.cause for one in comebacks)
    took = [one.took.total_seconds() for one in comebacks]
    return {"recoveries": dict(counted), "recovery_s": median(took) if took else None}
