"""Telemetry: record the samples of the GPUs, roll them up, and delete old ones.

Eligible rows     Clusters with a telemetry address; nodes in the database.
What a turn does  `read_telemetry_once` writes one row per node. `roll_up_and_expire_once` aggregates finished intervals
                  into coarser rows and deletes rows after their retention time, in batches.
Failure story     An existing row (two workers, a repeated turn) is not changed. An interrupted rollup is repeated: it
                  processes intervals without a row. Missing telemetry leaves a gap, never a zero.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby

from jobs.actions.retention import delete_all
from jobs.core.telemetry_math import AGGREGATIONS, aggregate_per_gpu, interval_start
from jobs.models import (
    PROGRESS_RETENTION,
    SAMPLE_RETENTION,
    Allocation,
    Cluster,
    Node,
    Progress,
    Resolution,
    Sample,
    clock,
)
from scheduling.backends.kubernetes.pod_objects import attempt_name
from scheduling.backends.telemetry import ExporterPage, GpuReading, device_readings
from scheduling.clusters.telemetry_page import ReadTelemetry, telemetry_page

COARSER_RESOLUTION: dict[int, int] = {Resolution.RAW: Resolution.FIVE_MINUTES, Resolution.FIVE_MINUTES: Resolution.HOUR}
ROLLUP_LOOK_BACK: dict[int, timedelta] = {
    Resolution.RAW: timedelta(hours=1),
    Resolution.FIVE_MINUTES: timedelta(hours=6),
}


def read_telemetry_once(
    cluster: Cluster, read: ReadTelemetry[ExporterPage], monotonic: Callable[[], float] = time.monotonic
) -> int:
    """Read the exporter, unless its circuit is open. Return the number of nodes with samples."""
    page = telemetry_page(cluster, read, monotonic)
    return 0 if page is None else write_samples_once(cluster, page, clock.now())


def write_samples_once(cluster: Cluster, reading: ExporterPage, now: datetime) -> int:
    """Write one sample per node. Return the number of nodes."""
    by_node: dict[str, list[GpuReading]] = defaultdict(list)
    for gpu in reading.gpus:
        by_node[gpu.node].append(gpu)
    nodes = {node.name: node for node in Node.objects.filter(cluster=cluster, name__in=by_node)}
    at = interval_start(now, Resolution.RAW)
    held = _held_slices([node for node in nodes.values() if node.mig_slices])
    devices = {name: _device_readings(node, by_node[name], held.get(node.pk, {})) for name, node in nodes.items()}
    rows = [
        node_sample(nodes[name], gpus, reading.nics_down.get(name, ()), at, reading.node_power_w.get(name))
        for name, gpus in devices.items()
    ]
    Sample.objects.bulk_create(rows, ignore_conflicts=True, batch_size=1000)
    _update_gpu_ids(nodes, devices)
    return len(rows)


def _held_slices(nodes: Sequence[Node]) -> dict[int, dict[str, int]]:
    """Return the devices that attempts hold on these nodes, by node and name of the attempt's object."""
    held: dict[int, dict[str, int]] = defaultdict(dict)
    if nodes:
        rows = Allocation.objects.live().filter(node__in=nodes, gpu__isnull=False).exclude(attempt__job__mig_profile="")
        for node, key, gpu in rows.order_by().values_list("node", "attempt__key", "gpu"):
            held[node][attempt_name(key)] = gpu
    return held


def _device_readings(node: Node, gpus: Sequence[GpuReading], held: Mapping[str, int]) -> list[GpuReading | None]:
    """Return the readings by GPU index; of a node with MIG slices, by device."""
    if node.mig_slices:
        return device_readings(node.gpus, node.mig_slices, gpus, held)
    by_index = {gpu.gpu: gpu for gpu in gpus}
    return [by_index.get(index) for index in range(max(by_index) + 1)]


def node_sample(
    node: Node,
    positions: Sequence[GpuReading | None],
    nics_down: Sequence[str],
    at: datetime,
    power_w: float | None = None,
) -> Sample:
    return Sample(
        node=node,
        resolution=Resolution.RAW,
        at=at,
        gpu_util=[gpu and gpu.util_percent for gpu in positions],
        gpu_memory_mib=[gpu and gpu.memory_used_mib for gpu in positions],
        gpu_temperature_c=[gpu and gpu.temperature_c for gpu in positions],
        gpu_power_w=[gpu and gpu.power_w for gpu in positions],
        xid=[gpu and gpu.last_xid for gpu in positions],
        gpu_energy_mj=[gpu and gpu.energy_mj for gpu in positions],
        node_power_w=power_w,
        counted=_counter_columns(positions, nics_down),
    )


def _counter_columns(positions: Sequence[GpuReading | None], nics_down: Sequence[str]) -> dict[str, object]:
    """Return the counters that are not 0 on all GPUs. `unmeasured` marks nodes without counters, which differ from
    nodes whose counters are all 0."""
    if not any(gpu and gpu.counted for gpu in positions):
        columns: dict[str, object] = {"unmeasured": True}
    else:
        names = sorted({name for gpu in positions if gpu for name, value in gpu.counted.items() if value})
        columns = {name: [gpu.counted.get(name) if gpu else None for gpu in positions] for name in names}
    return columns | ({"nics_down": list(nics_down)} if nics_down else {})


def _update_gpu_ids(nodes: dict[str, Node], devices: dict[str, list[GpuReading | None]]) -> None:
    """Update UUIDs and PCI addresses, which repair tickets need and which only change when a card is replaced, and the
    pods that hold the GPUs."""
    changed = []
    for name, node in nodes.items():
        gpus = [gpu for gpu in devices[name] if gpu or node.mig_slices]
        uuids = [gpu.uuid[:64] if gpu else "" for gpu in gpus]
        pci = [gpu.pci_bus_id[:20] if gpu else "" for gpu in gpus]
        pods = {str(index): gpu.pod for index, gpu in enumerate(devices[name]) if gpu and gpu.pod}
        if (node.gpu_uuids, node.gpu_pci, node.gpu_pods) != (uuids, pci, pods):
            node.gpu_uuids, node.gpu_pci, node.gpu_pods = uuids, pci, pods
            changed.append(node)
    Node.objects.bulk_update(changed, ["gpu_uuids", "gpu_pci", "gpu_pods"], batch_size=500)


def roll_up_and_expire_once(now: datetime) -> int:
    """Roll up and delete old samples. Return the number of coarser rows written."""
    written = 0
    for fine, coarse in COARSER_RESOLUTION.items():
        written += _roll_up_samples(fine, coarse, now)
    for resolution, retention in SAMPLE_RETENTION.items():
        delete_all(Sample.objects.filter(resolution=resolution, at__lt=now - retention))
    delete_all(Progress.objects.filter(at__lt=now - PROGRESS_RETENTION))
    return written


def _roll_up_samples(fine: int, coarse: int, now: datetime) -> int:
    """Write a coarser row for each finished interval without one. Return their number."""
    until = interval_start(now, coarse)
    since = interval_start(now - ROLLUP_LOOK_BACK[fine], coarse)
    done = set(Sample.objects.filter(resolution=coarse, at__gte=since, at__lt=until).values_list("node_id", "at"))
    rows = Sample.objects.filter(resolution=fine, at__gte=since, at__lt=until).order_by("node_id", "at")
    groups = groupby(rows.iterator(2000), key=lambda row: (row.node_id, interval_start(row.at, coarse)))
    folded = [_rolled_up_sample(key, list(group), coarse) for key, group in groups if key not in done]
    Sample.objects.bulk_create(folded, ignore_conflicts=True, batch_size=1000)
    return len(folded)


def _rolled_up_sample(key: tuple[int, datetime], rows: list[Sample], coarse: int) -> Sample:
    columns = {name: aggregate_per_gpu(name, [getattr(row, name) for row in rows]) for name in AGGREGATIONS}
    return Sample(node_id=key[0], at=key[1], resolution=coarse, **columns)
