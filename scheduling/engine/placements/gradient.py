"""Fragmentation gradient descent (Weng et al., ATC'23): a job goes where it makes the fewest GPUs unusable.

The fragmentation of a node is the part of its free GPUs that typical jobs cannot use: for each typical request, its
frequency times the free GPUs if the node does not fit a share of it. Each placement changes this value; the node with
the smallest increase is chosen, the fullest one if several are equal. Differences: GPUs are not shared, so a node fits
a request or it does not; and the nodes of a gang are first kept close together, like everywhere else, and only then
chosen by the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.placement import place_gang
from scheduling.engine.resources import GpuPlacement, NodeResources, NodeSet, members

MAX_TYPICAL_REQUESTS = 32  # rarer requests change the fragmentation little
MAX_CACHED_INCREASES = 100_000  # cache entries


class Fragmentation:
    """The number of GPUs on a node that typical jobs cannot use."""

    def __init__(self, requests: Mapping[ResourceRequest, float]) -> None:
        weights: dict[tuple[int, int, int], float] = {}
        for need, weight in requests.items():
            share = need.gpus, need.cpus, need.memory_mb
            if need.gpus:
                weights[share] = weights.get(share, 0.0) + weight
        typical = sorted(weights.items(), key=lambda one: (-one[1], one[0]))[:MAX_TYPICAL_REQUESTS]
        total = sum(weight for _, weight in typical)
        self.shares = tuple((*share, weight / total) for share, weight in typical)
        self.by_gpus_only = not any(cpus or memory_mb for _, cpus, memory_mb, _ in self.shares)
        self._by_gpus: dict[int, float] = {}  # cache by number of free GPUs, if only GPUs count

    def of(self, free: int, cpus: int, memory_mb: int) -> float:
        """The fragmentation of a node with these free resources."""
        lost = sum(
            weight
            for gpus, typical_cpus, typical_memory, weight in self.shares
            if gpus > free or typical_cpus > cpus or typical_memory > memory_mb
        )
        return free * lost

    def _of_free_gpus(self, free: int) -> float:
        if (fragmentation := self._by_gpus.get(free)) is None:
            fragmentation = self._by_gpus[free] = self.of(free, 0, 0)
        return fragmentation

    def of_all_nodes(self, resources: NodeResources) -> float:
        """The fragmentation of all usable nodes together."""
        if self.by_gpus_only:
            return sum(
                self._of_free_gpus(free) * nodes.bit_count() for free, nodes in enumerate(resources.by_free) if nodes
            )
        return sum(
            self.of(resources.free[n], resources.cpus[n], resources.memory_mb[n]) for n in members(resources.usable)
        )


class GradientPlacement:
    """Chooses the nodes whose fragmentation increases least."""

    def __init__(self, requests: Mapping[ResourceRequest, float]) -> None:
        self.fragmentation = Fragmentation(requests)
        self._known: dict[tuple[int, int, int, int, int, int], float] = {}

    def __call__(self, resources: NodeResources, need: ResourceRequest, among: NodeSet) -> GpuPlacement | None:
        if need.nodes > 1 or need.rest:
            return place_gang(resources, need, among, self._least_increase_nodes)
        if not self._counts_cpu_memory(need):
            return self._best_by_free_gpus(resources, need, among)
        chosen = self._least_increase_nodes(resources, resources.fitting_nodes(need, among), need, 1)
        return ((chosen[0], need.gpus),) if chosen else None

    def fragmentation_increase(self, resources: NodeResources, number: int, need: ResourceRequest) -> float:
        """The change in the node's fragmentation if a share is placed there."""
        state = resources.free[number], resources.cpus[number], resources.memory_mb[number]
        key = (*state, need.gpus, need.cpus, need.memory_mb)
        if (increase := self._known.get(key)) is None:
            if len(self._known) > MAX_CACHED_INCREASES:
                self._known.clear()
            free, cpus, memory_mb = state
            after = self.fragmentation.of(free - need.gpus, cpus - need.cpus, memory_mb - need.memory_mb)
            increase = self._known[key] = after - self.fragmentation.of(free, cpus, memory_mb)
        return increase

    def _counts_cpu_memory(self, need: ResourceRequest) -> bool:
        return bool(need.cpus or need.memory_mb) or not self.fragmentation.by_gpus_only

    def _best_by_free_gpus(
        self, resources: NodeResources, need: ResourceRequest, among: NodeSet
    ) -> GpuPlacement | None:
        """The best node if only GPUs count. Nodes with equally many free GPUs are equal then."""
        best: tuple[float, int, NodeSet] | None = None
        for free in range(need.gpus, resources.most + 1):
            if nodes := resources.by_free[free] & among:
                first = (nodes & -nodes).bit_length() - 1
                rise = self.fragmentation_increase(resources, first, need)
                if best is None or rise < best[0]:
                    best = rise, free, first
        return None if best is None else ((best[2], need.gpus),)

    def _least_increase_nodes(
        self, resources: NodeResources, nodes: NodeSet, need: ResourceRequest, count: int
    ) -> list[int]:
        share = replace(need, nodes=1, rest=0)
        order = sorted(
            (self.fragmentation_increase(resources, number, share), resources.free[number], number)
            for number in members(nodes)
        )
        return [number for *_, number in order[:count]]
