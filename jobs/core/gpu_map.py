"""Every GPU of a cluster as numbers for the map: short lists, because ten thousand of them travel at once. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FREE_GPU, HIDDEN_JOB, FOREIGN_JOB = -1, -2, -3  # who holds a GPU, where it is no job that the reader may know
UNKNOWN_VALUE = -1  # no reading


@dataclass(frozen=True, kw_only=True)
class MapNode:
    """A node as the map needs it."""

    id: int
    name: str
    rack: str
    leaf: str
    gpus: int
    word: str
    tone: str
    takes_work: bool
    foreign: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class VisibleJob:
    """A job that the reader may know."""

    public_id: str
    name: str
    team: str


@dataclass(frozen=True, kw_only=True)
class GpuReadings:
    """Telemetry of a node, GPU by GPU."""

    busy: Sequence[float | None] = ()  # percent
    hot: Sequence[float | None] = ()  # degrees
    xid: Sequence[float | None] = ()  # the last code that the driver has shown


NO_READINGS = GpuReadings()


def gpu_map_payload(
    spots: Iterable[MapNode],
    holders: Iterable[tuple[int, int, int]],
    known: Mapping[int, VisibleJob],
    readings: Mapping[int, GpuReadings],
) -> dict[str, Any]:
    """`holders` are node, GPU, job; `known` are those of them that the reader may know. The GPUs of all nodes stand one
    after the other, in the order of the nodes."""
    numbers = {pk: number for number, pk in enumerate(known)}
    held: dict[int, dict[int, int]] = defaultdict(dict)
    for node, gpu, job in holders:
        held[node][gpu] = numbers.get(job, HIDDEN_JOB)
    nodes: list[list[Any]] = []
    who: list[int] = []
    busy: list[int] = []
    hot: list[int] = []
    xids: list[tuple[int, int]] = []  # of few, so only of those
    for spot in sorted(spots, key=lambda one: (one.leaf, one.rack, one.name)):
        nodes.append([spot.name, spot.rack, spot.leaf, spot.gpus, spot.word, spot.tone, int(spot.takes_work)])
        reading, first = readings.get(spot.id, NO_READINGS), len(who)
        xids += [(first + gpu, code) for gpu, code in enumerate(_padded_values(reading.xid, spot.gpus)) if code > 0]
        who += _holder_of_each_gpu(spot, held[spot.id])
        busy += _padded_values(reading.busy, spot.gpus)
        hot += _padded_values(reading.hot, spot.gpus)
    jobs = [[one.public_id, one.name, one.team] for one in known.values()]
    return {"nodes": nodes, "jobs": jobs, "who": who, "busy": busy, "hot": hot, "xid": xids}


def _holder_of_each_gpu(spot: MapNode, held: Mapping[int, int]) -> list[int]:
    if not spot.foreign:
        return [held.get(gpu, FREE_GPU) for gpu in range(spot.gpus)]
    return [held.get(gpu, FOREIGN_JOB if gpu in spot.foreign else FREE_GPU) for gpu in range(spot.gpus)]


def _padded_values(values: Sequence[float | None], gpus: int) -> list[int]:
    """One for each GPU; telemetry may know fewer of them, or more."""
    known = [UNKNOWN_VALUE if value is None or not math.isfinite(value) else round(value) for value in values[:gpus]]
    return known + [UNKNOWN_VALUE] * (gpus - len(known))


@dataclass(frozen=True, kw_only=True)
class RackSummary:
    """The same as a row of a table."""

    leaf: str
    rack: str
    nodes: int
    gpus: int
    held: int
    closed: int  # GPUs on nodes that take no work and that nobody holds

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
        closed=sum(max(0, spot.gpus - taken[spot.id]) for spot in inside if not spot.takes_work),
    )
