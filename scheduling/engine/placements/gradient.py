"""Fragmentation gradient descent (Weng et al., ATC'23): a job goes where it makes the fewest GPUs useless.

The fragmentation of a node is what a typical job cannot use of it: for each wish that is usual, how usual it is times
the free GPUs if the node does not hold one share of it. A placement raises or lowers that; the node where it rises
least is taken, of equal ones the fullest. Differences: a GPU is whole here, so a node can or cannot serve a wish;
and the nodes of a gang are first kept close together, as everywhere else, and then chosen by the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.placement import place_gang
from scheduling.engine.room import GpuPlacement, NodeResources, NodeSet, members

MAX_TYPICAL_REQUESTS = 32  # wishes that are looked at; rarer ones say little about a node
MAX_CACHED_INCREASES = 100_000  # answers that are kept


class Fragmentation:
    """How much of a node typical jobs cannot use, in GPUs."""

    def __init__(self, wishes: Mapping[ResourceRequest, float]) -> None:
        weights: dict[tuple[int, int, int], float] = {}
        for need, weight in wishes.items():
            share = need.gpus, need.cpus, need.memory_mb
            if need.gpus:
                weights[share] = weights.get(share, 0.0) + weight
        usual = sorted(weights.items(), key=lambda one: (-one[1], one[0]))[:MAX_TYPICAL_REQUESTS]
        whole = sum(weight for _, weight in usual)
        self.shares = tuple((*share, weight / whole) for share, weight in usual)
        self.by_gpus_only = not any(cpus or memory_mb for _, cpus, memory_mb, _ in self.shares)
        self._by_gpus: dict[int, float] = {}  # of a node with so many free, where only GPUs count

    def of(self, free: int, cpus: int, memory_mb: int) -> float:
        lost = sum(
            weight
            for asked, its_cpus, its_memory, weight in self.shares
            if asked > free or its_cpus > cpus or its_memory > memory_mb
        )
        return free * lost

    def _of_free_gpus(self, free: int) -> float:
        if (known := self._by_gpus.get(free)) is None:
            known = self._by_gpus[free] = self.of(free, 0, 0)
        return known

    def of_all_nodes(self, room: NodeResources) -> float:
        if self.by_gpus_only:
            return sum(self._of_free_gpus(free) * nodes.bit_count() for free, nodes in enumerate(room.by_free) if nodes)
        return sum(self.of(room.free[n], room.cpus[n], room.memory_mb[n]) for n in members(room.usable))


class GradientPlacement:
    def __init__(self, wishes: Mapping[ResourceRequest, float]) -> None:
        self.fragmentation = Fragmentation(wishes)
        self._known: dict[tuple[int, int, int, int, int, int], float] = {}

    def __call__(self, room: NodeResources, need: ResourceRequest, among: NodeSet) -> GpuPlacement | None:
        if need.nodes > 1 or need.rest:
            return place_gang(room, need, among, self._least_increase_nodes)
        if not self._counts_cpu_memory(need):
            return self._best_by_free_gpus(room, need, among)
        chosen = self._least_increase_nodes(room, room.fitting_nodes(need, among), need, 1)
        return ((chosen[0], need.gpus),) if chosen else None

    def fragmentation_increase(self, room: NodeResources, number: int, need: ResourceRequest) -> float:
        """By how much the fragmentation of the node changes if a share goes there."""
        state = room.free[number], room.cpus[number], room.memory_mb[number]
        key = (*state, need.gpus, need.cpus, need.memory_mb)
        if (known := self._known.get(key)) is None:
            if len(self._known) > MAX_CACHED_INCREASES:
                self._known.clear()
            free, cpus, memory_mb = state
            after = self.fragmentation.of(free - need.gpus, cpus - need.cpus, memory_mb - need.memory_mb)
            known = self._known[key] = after - self.fragmentation.of(free, cpus, memory_mb)
        return known

    def _counts_cpu_memory(self, need: ResourceRequest) -> bool:
        return bool(need.cpus or need.memory_mb) or not self.fragmentation.by_gpus_only

    def _best_by_free_gpus(self, room: NodeResources, need: ResourceRequest, among: NodeSet) -> GpuPlacement | None:
        """Where only GPUs count, nodes with equally many free are alike."""
        best: tuple[float, int, NodeSet] | None = None
        for free in range(need.gpus, room.most + 1):
            if nodes := room.by_free[free] & among:
                first = (nodes & -nodes).bit_length() - 1
                rise = self.fragmentation_increase(room, first, need)
                if best is None or rise < best[0]:
                    best = rise, free, first
        return None if best is None else ((best[2], need.gpus),)

    def _least_increase_nodes(
        self, room: NodeResources, nodes: NodeSet, need: ResourceRequest, count: int
    ) -> list[int]:
        share = replace(need, nodes=1, rest=0)
        order = sorted(
            (self.fragmentation_increase(room, number, share), room.free[number], number) for number in members(nodes)
        )
        return [number for *_, number in order[:count]]
