"""Every GPU of a cluster as numbers for the map: short lists, because ten thousand of them travel at once. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FREE, OTHERS, FOREIGN = -1, -2, -3  # who holds a GPU, where it is no job that the reader may know
UNKNOWN = -1  # no reading


@dataclass(frozen=True, kw_only=True)
class Spot:
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
class Known:
    """A job that the reader may know."""

    public_id: str
    name: str
    team: str


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Telemetry of a node, GPU by GPU."""

    busy: Sequence[float | None] = ()  # percent
    hot: Sequence[float | None] = ()  # degrees
    xid: Sequence[float | None] = ()  # the last code that the driver has shown


NOTHING = Reading()


def drawn(
    spots: Iterable[Spot],
    holders: Iterable[tuple[int, int, int]],
    known: Mapping[int, Known],
    readings: Mapping[int, Reading],
) -> dict[str, Any]:
    """`holders` are node, GPU, job; `known` are those of them that the reader may know. The GPUs of all nodes stand one
    after the other, in the order of the nodes."""
    numbers = {pk: number for number, pk in enumerate(known)}
    held: dict[int, dict[int, int]] = defaultdict(dict)
    for node, gpu, job in holders:
        held[node][gpu] = numbers.get(job, OTHERS)
    nodes: list[list[Any]] = []
    who: list[int] = []
    busy: list[int] = []
    hot: list[int] = []
    xids: list[tuple[int, int]] = []  # of few, so only of those
    for spot in sorted(spots, key=lambda one: (one.leaf, one.rack, one.name)):
        nodes.append([spot.name, spot.rack, spot.leaf, spot.gpus, spot.word, spot.tone, int(spot.takes_work)])
        reading, first = readings.get(spot.id, NOTHING), len(who)
        xids += [(first + gpu, code) for gpu, code in enumerate(_read(reading.xid, spot.gpus)) if code > 0]
        who += _holders(spot, held[spot.id])
        busy += _read(reading.busy, spot.gpus)
        hot += _read(reading.hot, spot.gpus)
    jobs = [[one.public_id, one.name, one.team] for one in known.values()]
    return {"nodes": nodes, "jobs": jobs, "who": who, "busy": busy, "hot": hot, "xid": xids}


def _holders(spot: Spot, held: Mapping[int, int]) -> list[int]:
    if not spot.foreign:
        return [held.get(gpu, FREE) for gpu in range(spot.gpus)]
    return [held.get(gpu, FOREIGN if gpu in spot.foreign else FREE) for gpu in range(spot.gpus)]


def _read(values: Sequence[float | None], gpus: int) -> list[int]:
    """One for each GPU; telemetry may know fewer of them, or more."""
    known = [UNKNOWN if value is None or not math.isfinite(value) else round(value) for value in values[:gpus]]
    return known + [UNKNOWN] * (gpus - len(known))


@dataclass(frozen=True, kw_only=True)
class Rack:
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


def racks(spots: Iterable[Spot], held: Mapping[int, int]) -> list[Rack]:
    groups: dict[tuple[str, str], list[Spot]] = {}
    for spot in spots:
        groups.setdefault((spot.leaf, spot.rack), []).append(spot)
    return [_rack(leaf, rack, inside, held) for (leaf, rack), inside in sorted(groups.items())]


def _rack(leaf: str, rack: str, inside: Sequence[Spot], held: Mapping[int, int]) -> Rack:
    taken = {spot.id: held.get(spot.id, 0) + len(spot.foreign) for spot in inside}
    return Rack(
        leaf=leaf,
        rack=rack,
        nodes=len(inside),
        gpus=sum(spot.gpus for spot in inside),
        held=sum(taken.values()),
        closed=sum(max(0, spot.gpus - taken[spot.id]) for spot in inside if not spot.takes_work),
    )
