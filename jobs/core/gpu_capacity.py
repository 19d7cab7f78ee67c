"""Splits the GPUs of a cluster into allocated, free, drained and down. The four parts always sum to the total. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class NodeLoad:
    """`nodes` equal nodes: GPUs per node, GPUs held per node, and whether they respond and accept jobs."""

    nodes: int = 1
    gpus: int
    held: int
    answers: bool
    is_schedulable: bool


@dataclass(frozen=True, kw_only=True)
class CapacitySegment:
    """A segment of a bar. `start` and `share` are percentages of the total."""

    name: str
    tone: str
    gpus: int
    start: float
    share: float


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """GPU counts of one cluster."""

    allocated: int = 0
    free: int = 0
    drained: int = 0
    down: int = 0

    @property
    def total(self) -> int:
        return self.allocated + self.free + self.drained + self.down

    @property
    def used_percent(self) -> int:
        return round(100 * self.allocated / self.total) if self.total else 0

    @property
    def label(self) -> str:
        """The bar for screen readers."""
        return ", ".join(f"{part.gpus} GPUs {part.name}" for part in self.parts)

    @property
    def parts(self) -> list[CapacitySegment]:
        """The segments of the bar. Each starts where the previous one ends, so rounding leaves no gap and no
        overlap."""
        sizes = [
            ("allocated", "running", self.allocated),
            ("free", "good", self.free),
            ("drained", "drain", self.drained),
            ("down", "bad", self.down),
        ]
        parts, offset = [], 0
        for name, tone, gpus in sizes:
            total = self.total or 1
            parts.append(
                CapacitySegment(
                    name=name,
                    tone=tone,
                    gpus=gpus,
                    start=round(100 * offset / total, 3),
                    share=round(100 * (offset + gpus) / total, 3) - round(100 * offset / total, 3),
                )
            )
            offset += gpus
        return parts


def sum_capacity(loads: Iterable[NodeLoad]) -> Capacity:
    """Return the capacity of all loads together. All GPUs of a node that does not respond are down. On a drained node,
    GPUs that are still held count as allocated."""
    allocated = free = drained = down = 0
    for load in loads:
        # min(): allocations may exceed the reported GPUs while a node is being reconfigured
        gpus, in_use = load.nodes * load.gpus, load.nodes * min(load.held, load.gpus)
        if not load.answers:
            down += gpus
            continue
        allocated += in_use
        if load.is_schedulable:
            free += gpus - in_use
        else:
            drained += gpus - in_use
    return Capacity(allocated=allocated, free=free, drained=drained, down=down)


def total_capacity(capacities: Iterable[Capacity]) -> Capacity:
    """Return the capacity of several clusters together."""
    parts = list(capacities)
    return Capacity(
        allocated=sum(one.allocated for one in parts),
        free=sum(one.free for one in parts),
        drained=sum(one.drained for one in parts),
        down=sum(one.down for one in parts),
    )
