"""Builds the data of the GPU map. Short lists of numbers, because ten thousand GPUs are sent in one response. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.core.gpu_shares import WHOLE_GPU

FREE_GPU, HIDDEN_JOB, FOREIGN_JOB = -1, -2, -3  # entries of `who` that are not the index of a visible job
UNKNOWN_VALUE = -1  # no reading


@dataclass(frozen=True, kw_only=True)
class MapNode:
    """The properties of a node that the map shows."""

    id: int
    name: str
    rack: str
    leaf: str
    gpus: int
    word: str
    tone: str
    is_schedulable: bool
    foreign: Sequence[int] = ()
    slices: Mapping[int, str] = field(default_factory=dict)  # index → profile of GPUs that are MIG slices


@dataclass(frozen=True, kw_only=True)
class VisibleJob:
    """A job that the reader may see."""

    public_id: str
    name: str
    team: str
    user: str


@dataclass(frozen=True, kw_only=True)
class GpuReadings:
    """Telemetry of one node, one value per GPU."""

    busy: Sequence[float | None] = ()  # percent
    hot: Sequence[float | None] = ()  # degrees
    xid: Sequence[float | None] = ()  # the last code that the driver reported


NO_READINGS = GpuReadings()


def gpu_map_payload(
    spots: Iterable[MapNode],
    holders: Iterable[tuple[int, int, int, int]],
    known: Mapping[int, VisibleJob],
    readings: Mapping[int, GpuReadings],
) -> dict[str, Any]:
    """Return the JSON of the map.

    `holders` are (node, GPU, job, thousandths); `known` are the jobs among them that the reader may see. The lists
    `who`, `busy` and `hot` have one entry per GPU, node after node in the order of `nodes`. `shares` has the jobs of
    GPUs that are shared, as [GPU, [job, thousandths], …]; `who` has one of them, if possible a visible one. `slices`
    has the GPUs that are MIG slices, by profile.
    """
    # Jobs are sent once and referenced by their index, which is shorter than repeating their names
    numbers = {pk: number for number, pk in enumerate(known)}
    held: dict[int, dict[int, int]] = defaultdict(dict)
    shares: dict[int, dict[int, list[list[int]]]] = defaultdict(dict)
    for node, gpu, job, milli in holders:
        number = numbers.get(job, HIDDEN_JOB)
        held[node][gpu] = max(number, held[node].get(gpu, HIDDEN_JOB))
        if milli < WHOLE_GPU:
            shares[node].setdefault(gpu, []).append([number, milli])
    nodes: list[list[Any]] = []
    owners: list[int] = []
    busy: list[int] = []
    hot: list[int] = []
    shared: list[list[Any]] = []
    slices: dict[str, list[int]] = defaultdict(list)
    xids: list[tuple[int, int]] = []  # (GPU, code) pairs, because few GPUs have a code
    # Sorted by topology, so that neighbors in the network are neighbors on the map
    for spot in sorted(spots, key=lambda spot: (spot.leaf, spot.rack, spot.name)):
        nodes.append([spot.name, spot.rack, spot.leaf, spot.gpus, spot.word, spot.tone, int(spot.is_schedulable)])
        reading, first = readings.get(spot.id, NO_READINGS), len(owners)
        for gpu, profile in spot.slices.items():
            slices[profile].append(first + gpu)
        xids += [(first + gpu, code) for gpu, code in enumerate(_padded_values(reading.xid, spot.gpus)) if code > 0]
        owners += _holder_of_each_gpu(spot, held[spot.id])
        shared += [[first + gpu, *sorted(on, reverse=True)] for gpu, on in sorted(shares[spot.id].items())]
        busy += _padded_values(reading.busy, spot.gpus)
        hot += _padded_values(reading.hot, spot.gpus)
    jobs = [[job.public_id, job.name, job.team, job.user] for job in known.values()]
    cells = {"who": owners, "busy": busy, "hot": hot, "xid": xids, "shares": shared, "slices": slices}
    return {"nodes": nodes, "jobs": jobs, **cells}


def _holder_of_each_gpu(spot: MapNode, held: Mapping[int, int]) -> list[int]:
    # The common case first: few nodes run foreign jobs
    if not spot.foreign:
        return [held.get(gpu, FREE_GPU) for gpu in range(spot.gpus)]
    return [held.get(gpu, FOREIGN_JOB if gpu in spot.foreign else FREE_GPU) for gpu in range(spot.gpus)]


def _padded_values(values: Sequence[float | None], gpus: int) -> list[int]:
    """Return one value per GPU. Telemetry may report fewer or more GPUs than the node has."""
    readings = [UNKNOWN_VALUE if value is None or not math.isfinite(value) else round(value) for value in values[:gpus]]
    return readings + [UNKNOWN_VALUE] * (gpus - len(readings))


@dataclass(frozen=True, kw_only=True)
class RackSummary:
    """One row of the table that shows the same data by rack."""

    leaf: str
    rack: str
    nodes: int
    gpus: int
    held: int
    closed: int  # free GPUs on nodes that do not accept jobs

    @property
    def free(self) -> int:
        return self.gpus - self.held - self.closed


def rack_summaries(spots: Iterable[MapNode], held: Mapping[int, int]) -> list[RackSummary]:
    groups: dict[tuple[str, str], list[MapNode]] = {}
    for spot in spots:
        groups.setdefault((spot.leaf, spot.rack), []).append(spot)
    return [_rack_summary(leaf, rack, inside, held) for (leaf, rack), inside in sorted(groups.items())]


def _rack_summary(leaf: str, rack: str, inside: Sequence[MapNode], held: Mapping[int, int]) -> RackSummary:
    taken = {spot.id: held.get(spot.id, 0) + len(spot.foreign) for spot in inside}
    return RackSummary(
        leaf=leaf,
        rack=rack,
        nodes=len(inside),
        gpus=sum(spot.gpus for spot in inside),
        held=sum(taken.values()),
        # max(): foreign jobs may be listed on GPUs that an allocation of Acme also holds
        closed=sum(max(0, spot.gpus - taken[spot.id]) for spot in inside if not spot.is_schedulable),
    )
