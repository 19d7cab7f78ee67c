"""Sample: take the GPUs' telemetry, roll it up, and forget it in time.

Who is eligible   clusters with a metrics address; nodes the record knows.
What a turn does  `sample_once` writes one row a node; `sweep_once` folds finished intervals into coarser rows and
                  deletes what is older than its keeping, batch by batch, as far as it comes.
Failure story     A row that is there already (two workers, a repeated turn) is left as it is. A rollup that was cut off
                  is made again: it looks for intervals without a row, not for a mark of its own. Missing telemetry
                  leaves a gap, never a zero.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import groupby

from jobs import clock
from jobs.measures import FOLDS, fold, interval
from jobs.models import KEPT, PROGRESS_KEPT, Cluster, Node, Progress, Resolution, Sample
from jobs.retention import delete_all
from scheduling import circuit_breaker
from scheduling.backends.base import Unreachable
from scheduling.backends.telemetry import GpuReading, Reading
from scheduling.circuit_breaker import LATE_S, PROBE_S, Admission
from scheduling.models import Endpoint

log = logging.getLogger(__name__)

READ_S = 5.0
COARSER: dict[int, int] = {Resolution.RAW: Resolution.FIVE_MINUTES, Resolution.FIVE_MINUTES: Resolution.HOUR}
LOOK_BACK: dict[int, timedelta] = {Resolution.RAW: timedelta(hours=1), Resolution.FIVE_MINUTES: timedelta(hours=6)}


Read = Callable[..., Reading]


def measure_once(cluster: Cluster, read: Read, monotonic: Callable[[], float] = time.monotonic) -> int:
    """Ask its exporter, unless that did not answer in time of late. Return how many nodes were measured."""
    admission = circuit_breaker.admission(cluster, Endpoint.TELEMETRY)
    if admission == Admission.WAIT:
        return 0
    began = monotonic()
    try:
        reading = read(cluster.metrics_address, timeout_s=PROBE_S if admission == Admission.TRY else READ_S)
    except Unreachable as error:
        log.warning("no telemetry of cluster %s: %s", cluster, error)
        if monotonic() - began > LATE_S:
            circuit_breaker.note_timeout(cluster, Endpoint.TELEMETRY, str(error))
        return 0
    if admission == Admission.TRY:
        circuit_breaker.note_answer(cluster, Endpoint.TELEMETRY)
    return sample_once(cluster, reading, clock.now())


def sample_once(cluster: Cluster, reading: Reading, now: datetime) -> int:
    """Write one sample a node. Return how many nodes were measured."""
    by_node: dict[str, list[GpuReading]] = defaultdict(list)
    for gpu in reading.gpus:
        by_node[gpu.node].append(gpu)
    nodes = {node.name: node for node in Node.objects.filter(cluster=cluster, name__in=by_node)}
    at = interval(now, Resolution.RAW)
    rows = [
        sample_of(nodes[name], gpus, reading.nics_down.get(name, ()), at)
        for name, gpus in by_node.items()
        if name in nodes
    ]
    Sample.objects.bulk_create(rows, ignore_conflicts=True, batch_size=1000)
    _name_gpus(nodes, by_node)
    return len(rows)


def sample_of(node: Node, gpus: list[GpuReading], nics_down: Sequence[str], at: datetime) -> Sample:
    by_index = {gpu.gpu: gpu for gpu in gpus}
    positions = [by_index.get(index) for index in range(max(by_index) + 1)]
    return Sample(
        node=node,
        resolution=Resolution.RAW,
        at=at,
        gpu_util=[gpu and gpu.util_percent for gpu in positions],
        gpu_memory_mib=[gpu and gpu.memory_used_mib for gpu in positions],
        gpu_temperature_c=[gpu and gpu.temperature_c for gpu in positions],
        gpu_power_w=[gpu and gpu.power_w for gpu in positions],
        xid=[gpu and gpu.last_xid for gpu in positions],
        counted=_counted(positions, nics_down),
    )


def _counted(positions: Sequence[GpuReading | None], nics_down: Sequence[str]) -> dict[str, object]:
    """What is 0 everywhere is left out; where nothing is counted that is said, for it is no 0."""
    if not any(gpu and gpu.counted for gpu in positions):
        found: dict[str, object] = {"unmeasured": True}
    else:
        names = sorted({name for gpu in positions if gpu for name, value in gpu.counted.items() if value})
        found = {name: [gpu.counted.get(name) if gpu else None for gpu in positions] for name in names}
    return found | ({"nics_down": list(nics_down)} if nics_down else {})


def _name_gpus(nodes: dict[str, Node], by_node: dict[str, list[GpuReading]]) -> None:
    """UUID and PCI address, for repair tickets; they change only when a card is swapped."""
    changed = []
    for name, node in nodes.items():
        gpus = sorted(by_node[name], key=lambda gpu: gpu.gpu)
        uuids, pci = [gpu.uuid[:64] for gpu in gpus], [gpu.pci_bus_id[:20] for gpu in gpus]
        if (node.gpu_uuids, node.gpu_pci) != (uuids, pci):
            node.gpu_uuids, node.gpu_pci = uuids, pci
            changed.append(node)
    Node.objects.bulk_update(changed, ["gpu_uuids", "gpu_pci"], batch_size=500)


def sweep_once(now: datetime) -> int:
    """Roll up and forget. Return how many coarser rows were written."""
    written = 0
    for fine, coarse in COARSER.items():
        written += _roll_up(fine, coarse, now)
    for resolution, kept in KEPT.items():
        delete_all(Sample.objects.filter(resolution=resolution, at__lt=now - kept))
    delete_all(Progress.objects.filter(at__lt=now - PROGRESS_KEPT))
    return written


def _roll_up(fine: int, coarse: int, now: datetime) -> int:
    """Every interval that is over and has no coarser row yet."""
    until = interval(now, coarse)
    since = interval(now - LOOK_BACK[fine], coarse)
    done = set(Sample.objects.filter(resolution=coarse, at__gte=since, at__lt=until).values_list("node_id", "at"))
    rows = Sample.objects.filter(resolution=fine, at__gte=since, at__lt=until).order_by("node_id", "at")
    groups = groupby(rows.iterator(2000), key=lambda row: (row.node_id, interval(row.at, coarse)))
    folded = [_folded(key, list(group), coarse) for key, group in groups if key not in done]
    Sample.objects.bulk_create(folded, ignore_conflicts=True, batch_size=1000)
    return len(folded)


def _folded(key: tuple[int, datetime], rows: list[Sample], coarse: int) -> Sample:
    columns = {name: fold(name, [getattr(row, name) for row in rows]) for name in FOLDS}
    return Sample(node_id=key[0], at=key[1], resolution=coarse, **columns)
