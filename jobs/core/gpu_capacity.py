"""Where the GPUs of a cluster are, in four parts that always sum to the whole. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class NodeLoad:
    """A node: its GPUs, how many of them are held, whether it answers and whether new work may start on it; and how
    many nodes are like that."""

    nodes: int = 1
    gpus: int
    held: int
    answers: bool
    takes_work: bool


@dataclass(frozen=True, kw_only=True)
class CapacitySegment:
    """A piece of a bar: `start` and `share` in percent of the whole."""

    name: str
    tone: str
    gpus: int
    start: float
    share: float


@dataclass(frozen=True, kw_only=True)
class Capacity:
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
    def parts(self) -> list[CapacitySegment]:
        """Each part begins where the one before it ends, so rounding cannot leave a gap or an overlap."""
        sizes = [
            ("allocated", "running", self.allocated),
            ("free", "good", self.free),
            ("drained", "drain", self.drained),
            ("down", "bad", self.down),
        ]
        parts, begin = [], 0
        for name, tone, gpus in sizes:
            whole = self.total or 1
            parts.append(
                CapacitySegment(
                    name=name,
                    tone=tone,
                    gpus=gpus,
                    start=round(100 * begin / whole, 3),
                    share=round(100 * (begin + gpus) / whole, 3) - round(100 * begin / whole, 3),
                )
            )
            begin += gpus
        return parts


def sum_capacity(loads: Iterable[NodeLoad]) -> Capacity:
    """A node that does not answer is down with all it has; of a drained one, what still works counts as allocated."""
    allocated = free = drained = down = 0
    for load in loads:
        gpus, held = load.nodes * load.gpus, load.nodes * min(load.held, load.gpus)
        if not load.answers:
            down += gpus
            continue
        allocated += held
        if load.takes_work:
            free += gpus - held
        else:
            drained += gpus - held
    return Capacity(allocated=allocated, free=free, drained=drained, down=down)
