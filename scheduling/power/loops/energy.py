"""Energy: add the samples of telemetry up, by the hour and by the attempt that held the GPU.

Eligible rows     One cluster with a telemetry address: its raw samples after the time up to which they are counted.
What a turn does  Reads the samples of up to ten minutes at a time, the last sample of each node before them, and the
                  allocations; adds the energy between neighboring samples to `EnergyHour`; raises the peaks of attempts
                  and learns those of ended ones for predictions; and moves the time forward, in one transaction.
                  Continues until it is a minute behind, or its time is over. `delete_old_energy` deletes rows after the
                  retention time.
Failure story     Killed at any time: the transaction is rolled back, and the next turn repeats it. Two turns at once:
                  the second one waits for the lock of the first, reads the new time and continues there. Late: raw
                  samples are kept for two days. Missing samples: a counter covers them, see `rules.energy`. Samples
                  that are written more than a minute late, and allocations that become known later, are not counted
                  again: their energy is in no attempt.
Cost              About 20 ms of CPU time per node of 8 GPUs and hour; nothing is added to the turns of clusters.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import Q

from jobs.actions.retention import delete_all
from jobs.core.gpu_shares import WHOLE_GPU, profile_milli
from jobs.core.telemetry_math import interval_start
from jobs.models import (
    ENERGY_RETENTION,
    SAMPLE_RETENTION,
    Allocation,
    Attempt,
    Cluster,
    EnergyClock,
    EnergyHour,
    EnergyPrice,
    Node,
    Resolution,
    Sample,
)
from scheduling.power.actions import energy as energy_actions
from scheduling.power.rules.energy import EnergyKey, EnergySums, GpuHold, PowerSample, add_node
from scheduling.power.rules.predictions import attempt_peaks

SETTLE_TIME = timedelta(minutes=1)  # samples and allocations may be written so late
STEP = timedelta(minutes=10)
SLICE_PROFILE = "attempt__job__mig_profile"
LONGEST_GAP = timedelta(days=1)  # that a counter may cover
TURN_BUDGET_S = 20.0
SAMPLES_SQL = """
SELECT node_id, extract(epoch FROM at)::float, gpu_energy_mj, gpu_power_w, gpu_util, node_power_w FROM (
  SELECT s.* FROM unnest(%(nodes)s::bigint[]) AS n (id) CROSS JOIN LATERAL (
    SELECT * FROM jobs_sample WHERE node_id = n.id AND resolution = %(raw)s AND at <= %(since)s AND at > %(oldest)s
    ORDER BY at DESC LIMIT 1) AS s
  UNION ALL
  SELECT * FROM jobs_sample WHERE node_id = ANY(%(nodes)s) AND resolution = %(raw)s
    AND at > %(since)s AND at <= %(until)s
) AS found ORDER BY node_id, at
"""


def clusters_with_telemetry() -> set[int]:
    return set(Cluster.objects.exclude(metrics_address="").values_list("pk", flat=True))


def count_energy_once(
    cluster: Cluster,
    now: datetime,
    budget_s: float = TURN_BUDGET_S,
    monotonic: Callable[[], float] = time.monotonic,
) -> int:
    """Count the samples of one cluster. Return the number of steps."""
    began, steps = monotonic(), 0
    until = interval_start(now - SETTLE_TIME, Resolution.RAW)
    while monotonic() - began < budget_s and _count_step(cluster, until):
        steps += 1
    return steps


def _count_step(cluster: Cluster, until: datetime) -> bool:
    """Count the next samples up to this time. Return whether there were any to count."""
    first = until - SAMPLE_RETENTION[Resolution.RAW] + LONGEST_GAP
    if not EnergyClock.objects.filter(cluster=cluster).exists():
        EnergyClock.objects.get_or_create(cluster=cluster, defaults={"counted_until": max(first, _first_sample(until))})
    with transaction.atomic():
        clock = EnergyClock.objects.select_for_update().get(cluster=cluster)
        since = max(clock.counted_until, first)
        if since >= until:
            return False
        clock.counted_until = min(until, since + STEP)
        energy, peaks = _energy_and_peaks(cluster, since, clock.counted_until)
        energy_actions.add_energy(cluster, energy_actions.energy_columns(energy))
        energy_actions.raise_peaks(peaks)
        energy_actions.learn_peaks(cluster, clock.counted_until)
        clock.save(update_fields=["counted_until"])
    return True


def _first_sample(until: datetime) -> datetime:
    """Return the time of the oldest raw sample of all clusters."""
    raw = Sample.objects.filter(resolution=Resolution.RAW).order_by("at")
    return raw.values_list("at", flat=True).first() or until


def _energy_and_peaks(
    cluster: Cluster, since: datetime, until: datetime
) -> tuple[dict[EnergyKey, EnergySums], dict[int, float]]:
    """Return the energy between the samples that arrived in this time and those before them, and the highest power per
    GPU by attempt."""
    nodes = {node.pk: node for node in Node.objects.filter(cluster=cluster, gpus__gt=0)}
    by_node = {pk: rows for pk, rows in _samples(list(nodes), since, until).items() if len(rows) > 1}
    sums: dict[EnergyKey, EnergySums] = defaultdict(EnergySums)
    if not by_node:
        return sums, {}
    earliest = datetime.fromtimestamp(min(rows[0].at_s for rows in by_node.values()), UTC)
    holds = _holds(list(by_node), earliest, until)
    for pk, rows in by_node.items():
        node = nodes[pk]
        add_node(sums, rows, holds.get(pk, ()), node.gpu_model, node.gpus, node.device_parts)
    return sums, attempt_peaks((rows, holds.get(pk, ())) for pk, rows in by_node.items())


def _samples(nodes: Sequence[int], since: datetime, until: datetime) -> dict[int, list[PowerSample]]:
    params = {"nodes": nodes, "raw": int(Resolution.RAW), "since": since, "until": until, "oldest": since - LONGEST_GAP}
    by_node: dict[int, list[PowerSample]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(SAMPLES_SQL, params)
        for node, at_s, energy, power, util, node_power in cursor.fetchall():
            by_node[node].append(
                PowerSample(at_s=at_s, energy_mj=energy, power_w=power, util_percent=util, node_power_w=node_power)
            )
    return by_node


def _holds(nodes: Sequence[int], since: datetime, until: datetime) -> dict[int, list[GpuHold]]:
    """Return the allocations in this time by node. An attempt whose GPU indices are unknown has one row per node."""
    live = Attempt.objects.filter(Q(ended_at=None) | Q(ended_at__gt=since), promised_at__lt=until)
    rows: Any = Allocation.objects.filter(
        Q(released_at=None) | Q(released_at__gt=since), attempt__in=live, node__in=nodes, held_at__lt=until
    ).order_by()
    columns = ("node", "attempt", "gpu", "share", "held_at", "released_at", "attempt__job__gpus_per_node")
    holds: dict[int, list[GpuHold]] = defaultdict(list)
    for node, attempt, gpu, milli, held, released, requested, profile in rows.values_list(*columns, SLICE_PROFILE):
        if gpu is not None or requested:
            start_s, end_s = held.timestamp(), (released or until).timestamp()
            gpus = 1 if gpu is not None else requested
            holds[node].append(
                GpuHold(
                    attempt=attempt,
                    gpu=gpu,
                    start_s=start_s,
                    end_s=end_s,
                    gpus=gpus,
                    share=milli / WHOLE_GPU,
                    part=profile_milli(profile) / WHOLE_GPU if profile else 1.0,
                )
            )
    return holds


def delete_old_energy(now: datetime) -> int:
    return sum(delete_all(rows.objects.filter(start__lt=now - ENERGY_RETENTION)) for rows in (EnergyHour, EnergyPrice))
