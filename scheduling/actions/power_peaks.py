"""All changes to the peaks of attempts and to what is learned from them.

Callers hold the lock of the cluster's `EnergyClock`, so each attempt is learned once.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from django.db import connection

from jobs.models import Cluster
from scheduling.models import AttemptPeak, LearnedPeaks
from scheduling.power.power_predictions import PeakHistory, peak_scopes

LEARN_BATCH = 2_000
# Attempts that were deleted meanwhile are left out. In the order of ids, so that two writers wait and do not deadlock
RAISE_SQL = """
INSERT INTO scheduling_attemptpeak AS p (attempt_id, gpu_w, is_learned)
SELECT a.id, new.w, false FROM unnest(%s::bigint[], %s::float[]) AS new (id, w) JOIN jobs_attempt a ON a.id = new.id
ORDER BY a.id
ON CONFLICT (attempt_id) DO UPDATE SET gpu_w = EXCLUDED.gpu_w WHERE p.gpu_w < EXCLUDED.gpu_w
"""


def raise_peaks(peaks: Mapping[int, float]) -> None:
    """Store the peaks of these attempts that are higher than the stored ones."""
    if peaks:
        with connection.cursor() as cursor:
            cursor.execute(RAISE_SQL, [list(peaks), list(peaks.values())])


def learn_peaks(cluster: Cluster, until: datetime) -> int:
    """Add the peaks of attempts that had ended by then to those of similar jobs. Return their number."""
    ended = AttemptPeak.objects.filter(is_learned=False, attempt__job__cluster=cluster, attempt__ended_at__lte=until)
    columns = ("pk", "gpu_w", "attempt__job__user", "attempt__job__name", "attempt__job__kind")
    rows = list(ended.order_by("pk").values_list(*columns)[:LEARN_BATCH])
    if not rows:
        return 0
    scopes = {pk: peak_scopes(str(user), name, kind) for pk, _, user, name, kind in rows}
    known = LearnedPeaks.objects.counts(cluster, (scope for both in scopes.values() for scope in both))
    history = PeakHistory(known)
    for pk, watts, *_ in rows:
        history.add(scopes[pk], watts)
    learned = [LearnedPeaks(cluster=cluster, scope=scope, counts=counts) for scope, counts in history.counts().items()]
    LearnedPeaks.objects.bulk_create(
        learned, update_conflicts=True, unique_fields=["cluster", "scope"], update_fields=["counts"], batch_size=1000
    )
    AttemptPeak.objects.filter(pk__in=list(scopes)).update(is_learned=True)
    return len(rows)
