"""All changes to the energy of hours, to the peaks of attempts and what is learned from them, and to prices.

Callers that learn peaks hold the lock of the cluster's `EnergyClock`, so each attempt is learned once. Importing a file
of prices again gives the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from django.db import connection, transaction

from jobs.models import Cluster, EnergyPrice
from scheduling.models import AttemptPeak, LearnedPeaks
from scheduling.power.rules.energy import EnergyKey, EnergySums
from scheduling.power.rules.predictions import PeakHistory, peak_scopes
from scheduling.power.rules.price_file import HourPrice

LEARN_BATCH = 2_000
PRICE_BATCH = 2_000
ADD_SQL = """
INSERT INTO jobs_energyhour AS h (cluster_id, start, attempt_id, counter_j, power_j, estimate_j, host_j, gpu_s)
SELECT %s, to_timestamp(start), nullif(attempt, 0), c, p, e, n, g
FROM unnest(%s::bigint[], %s::bigint[], %s::float[], %s::float[], %s::float[], %s::float[], %s::float[])
  AS new (start, attempt, c, p, e, n, g)
ON CONFLICT (cluster_id, start, attempt_id) DO UPDATE SET counter_j = h.counter_j + EXCLUDED.counter_j,
  power_j = h.power_j + EXCLUDED.power_j, estimate_j = h.estimate_j + EXCLUDED.estimate_j,
  host_j = h.host_j + EXCLUDED.host_j, gpu_s = h.gpu_s + EXCLUDED.gpu_s
"""
# Attempts that were deleted meanwhile are left out. In the order of ids, so that two writers wait and do not deadlock
RAISE_SQL = """
INSERT INTO scheduling_attemptpeak AS p (attempt_id, gpu_w, is_learned)
SELECT a.id, new.w, false FROM unnest(%s::bigint[], %s::float[]) AS new (id, w) JOIN jobs_attempt a ON a.id = new.id
ORDER BY a.id
ON CONFLICT (attempt_id) DO UPDATE SET gpu_w = EXCLUDED.gpu_w WHERE p.gpu_w < EXCLUDED.gpu_w
"""


# Start of the hour, attempt (0: none), joules by counter, power and estimate, those of the host, and GPU-seconds
EnergyColumns = list[list[float]]


def energy_columns(energy: dict[EnergyKey, EnergySums]) -> EnergyColumns:
    rows = [
        (hour, attempt or 0, one.counter_j, one.power_j, one.estimate_j, one.host_j, one.gpu_s)
        for (hour, attempt), one in sorted(energy.items(), key=lambda entry: (entry[0][0], entry[0][1] or 0))
    ]
    return [list(column) for column in zip(*rows, strict=True)] or [[]] * 7


def add_energy(cluster: Cluster, columns: EnergyColumns) -> None:
    """Add to the rows of these hours and attempts, in their order, so that two writers wait and do not deadlock."""
    with connection.cursor() as cursor:
        cursor.execute(ADD_SQL, [cluster.pk, *columns])


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


def import_prices(cluster: Cluster, hours: Sequence[HourPrice]) -> int:
    """Store these hours, and replace what was stored for them, in one transaction. Return their number."""
    rows = [
        EnergyPrice(cluster=cluster, start=hour.start, kwh_price=hour.kwh_price, co2_g_per_kwh=hour.co2_g_per_kwh)
        for hour in hours
    ]
    with transaction.atomic():
        EnergyPrice.objects.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["cluster", "start"],
            update_fields=["kwh_price", "co2_g_per_kwh"],
            batch_size=PRICE_BATCH,
        )
    return len(rows)
