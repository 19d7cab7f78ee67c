"""Fragmentation gradient descent (Weng et al., ATC'23): a job goes where it makes the fewest GPUs unusable.

The fragmentation of a node is the part of its free GPUs that typical jobs cannot use: for each typical request, its
frequency times what is left on the GPUs of the node if the request does not fit there; if it fits, times what is left
on those GPUs that are too small for it. Each placement changes this value. The node with the smallest increase is
chosen. As in the authors' scheduler, an increase becomes one of `RANKS` ranks, and among nodes of equal rank the first
of the list is chosen, so that nodes are filled one after the other.

Difference: the nodes of a gang are first kept close together, like everywhere else, and only then chosen by the
gradient.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace

from jobs.core.gpu_shares import WHOLE_GPU
from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.placement import place_gang
from scheduling.engine.resources import GpuPlacement, NodeResources, NodeSet, members

MAX_TYPICAL_REQUESTS = 128  # rarer requests change the fragmentation little
MAX_CACHED_VALUES = 200_000  # cache entries
RANKS = 100
MAX_EXPONENT = 100.0  # e to the power of more overflows

# What is left on a node: whole GPUs, thousandths on shared GPUs in ascending order, CPUs, memory
NodeState = tuple[int, tuple[int, ...], int, int]
TypicalPart = tuple[int, int, int, int, float]  # whole GPUs, thousandths, CPUs, memory, frequency


class Fragmentation:
    """The number of GPUs on a node that typical jobs cannot use."""

    def __init__(self, requests: Mapping[ResourceRequest, float]) -> None:
        weights: dict[tuple[int, int, int, int], float] = {}
        for need, weight in requests.items():
            part = need.gpus, need.gpu_milli, need.cpus, need.memory_mb
            if need.gpus or need.gpu_milli:
                weights[part] = weights.get(part, 0.0) + weight
        typical = sorted(weights.items(), key=lambda one: (-one[1], one[0]))[:MAX_TYPICAL_REQUESTS]
        total = sum(weight for _, weight in typical)
        # How often a request needs no GPU: to these, everything that is left is lost wherever a job is placed
        self.cpu_only = 1 - sum(weights.values()) / (sum(requests.values()) or 1)
        self.parts: tuple[TypicalPart, ...] = tuple((*part, weight / total) for part, weight in typical)
        self.by_gpus_only = not any(cpus or memory_mb for _, _, cpus, memory_mb, _ in self.parts)
        # Nodes that fit the same typical requests are equal, so CPUs and memory are cached as positions among these
        self._cpu_needs = sorted({cpus for _, _, cpus, _, _ in self.parts})
        self._memory_needs = sorted({memory_mb for _, _, _, memory_mb, _ in self.parts})
        self._known: dict[NodeState, float] = {}

    def of(self, state: NodeState) -> float:
        """The fragmentation of a node with these free resources."""
        whole, shared, cpus, memory_mb = state
        key = whole, shared, bisect_right(self._cpu_needs, cpus), bisect_right(self._memory_needs, memory_mb)
        if (fragmentation := self._known.get(key)) is None:
            if len(self._known) >= MAX_CACHED_VALUES:
                self._known.clear()
            fragmentation = self._known[key] = self._compute(state)
        return fragmentation

    def _compute(self, state: NodeState) -> float:
        whole, shared, cpus, memory_mb = state
        left = whole + sum(shared) / WHOLE_GPU
        lost = 0.0
        for gpus, thousandths, typical_cpus, typical_memory, weight in self.parts:
            fits = whole >= gpus and (whole > 0 or not thousandths or shared[-1:] >= (thousandths,))
            if not fits or typical_cpus > cpus or typical_memory > memory_mb:
                lost += weight * left
            else:
                smallest = thousandths or WHOLE_GPU
                lost += weight * sum(free for free in shared if free < smallest) / WHOLE_GPU
        return lost

    def of_all_nodes(self, resources: NodeResources) -> float:
        """The fragmentation of all usable nodes together."""
        if self.by_gpus_only and not resources.shared:
            return sum(
                self.of((free, (), 0, 0)) * nodes.bit_count() for free, nodes in enumerate(resources.by_free) if nodes
            )
        return sum(self.of(node_state(resources, number)) for number in members(resources.usable))


def node_state(resources: NodeResources, number: int) -> NodeState:
    left = resources.shared.get(number, ())
    shared = tuple(sorted(free for free in left if 0 < free < WHOLE_GPU)) if left else ()
    return resources.free[number], shared, resources.cpus[number], resources.memory_mb[number]


def _state_after(state: NodeState, need: ResourceRequest, left: int) -> NodeState:
    """What is left with a part of the request on the node. `left`: on the shared GPU that it would use, before."""
    whole, shared, cpus, memory_mb = state
    if need.gpu_milli:
        others = list(shared)
        if left == WHOLE_GPU:
            whole -= 1
        else:
            others.remove(left)
        if left > need.gpu_milli:
            others.append(left - need.gpu_milli)
        shared = tuple(sorted(others))
    return whole - need.gpus, shared, cpus - need.cpus, memory_mb - need.memory_mb


class GradientPlacement:
    """Chooses the nodes whose fragmentation increases least."""

    def __init__(self, requests: Mapping[ResourceRequest, float]) -> None:
        self.fragmentation = Fragmentation(requests)

    def __call__(self, resources: NodeResources, need: ResourceRequest, among: NodeSet) -> GpuPlacement | None:
        if need.nodes > 1 or need.rest:
            return place_gang(resources, need, among, self._least_increase_nodes)
        if need.gpu_milli:
            return self._place_share(resources, need, among)
        if not self._counts_other_resources(resources, need):
            return self._best_by_free_gpus(resources, need, among)
        chosen = self._least_increase_nodes(resources, resources.fitting_nodes(need, among), need, 1)
        return ((chosen[0], need.gpus),) if chosen else None

    def _increase(self, state: NodeState, need: ResourceRequest, left: int = 0) -> float:
        """The change in a node's fragmentation if a part of the request is placed there."""
        rise = self.fragmentation.of(_state_after(state, need, left)) - self.fragmentation.of(state)
        taken = need.gpus + need.gpu_milli / WHOLE_GPU
        return rise * (1 - self.fragmentation.cpu_only) - taken * self.fragmentation.cpu_only

    def _rank(self, state: NodeState, need: ResourceRequest, left: int = 0) -> int:
        """Lower is better. Rounded like the scores of the authors' scheduler, so small differences do not count."""
        return -int(RANKS / (1 + math.exp(min(self._increase(state, need, left), MAX_EXPONENT))))

    def _place_share(self, resources: NodeResources, need: ResourceRequest, among: NodeSet) -> GpuPlacement | None:
        best: tuple[int, int, int] | None = None
        for number in members(resources.fitting_nodes(need, among)):
            state = node_state(resources, number)
            for left, position in resources.shared_places(number, need):
                rank = self._rank(state, need, left)
                if best is None or rank < best[0]:
                    best = rank, number, position
        return None if best is None else ((best[1], best[2]),)

    def _counts_other_resources(self, resources: NodeResources, need: ResourceRequest) -> bool:
        return bool(need.cpus or need.memory_mb or resources.shared) or not self.fragmentation.by_gpus_only

    def _best_by_free_gpus(
        self, resources: NodeResources, need: ResourceRequest, among: NodeSet
    ) -> GpuPlacement | None:
        """The best node if only GPUs and power count. Nodes with equally many free GPUs are equal then."""
        best: tuple[float, int, NodeSet] | None = None
        for free in range(need.gpus, resources.most + 1):
            if nodes := resources.with_cpu_memory(need, resources.by_free[free] & among):
                first = (nodes & -nodes).bit_length() - 1
                rise = self._increase((free, (), 0, 0), need)
                if best is None or rise < best[0]:
                    best = rise, free, first
        return None if best is None else ((best[2], need.gpus),)

    def _least_increase_nodes(
        self, resources: NodeResources, nodes: NodeSet, need: ResourceRequest, count: int
    ) -> list[int]:
        part = replace(need, nodes=1, rest=0)
        order = sorted((self._rank(node_state(resources, number), part), number) for number in members(nodes))
        return [number for _, number in order[:count]]
