"""A timeline with one copy of the resources per step: GPUs, CPUs and memory."""

from __future__ import annotations

from collections.abc import Iterable

from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.resources import NodeResources, NodeSet, members
from scheduling.engine.turns.timeline import PlannedShare, ResourceTimeline


class ExactTimeline(ResourceTimeline):
    """Works for all requests and placements, and if nodes are closed or opened between steps."""

    __slots__ = ("_steps",)

    def __init__(self, steps: Iterable[NodeResources], requests: list[ResourceRequest]) -> None:
        self._steps = [TimelineStep(resources.copy(), requests, []) for resources in steps]

    def resources_at(self, step: int) -> NodeResources:
        return self._steps[step].resources

    def usable_nodes(self, step: int) -> NodeSet:
        return self._steps[step].resources.usable

    def fitting_nodes(self, step: int, request: int) -> NodeSet:
        return self._steps[step].fitting_nodes(request)

    def nodes_fitting_throughout(
        self, first: int, last: int, request: int, min_nodes: int, among: NodeSet
    ) -> tuple[NodeSet, int]:
        for step in range(first, last):
            among &= self._steps[step].fitting_nodes(request)
            if among.bit_count() < min_nodes:
                return among, step
        return among, last

    def next_start(self, first: int, narrow: int, request: int, min_nodes: int, among: NodeSet) -> int:
        return first + 1 if self._steps[narrow].fitting_nodes(request).bit_count() >= min_nodes else narrow + 1

    def take(self, first: int, last: int, share: PlannedShare) -> None:
        for step in range(first, last):
            self._steps[step].take(share)

    def split_step(self, at: int) -> None:
        self._steps.insert(at, self._steps[at - 1].copy())

    def drop_steps(self, count: int) -> None:
        del self._steps[:count]

    def equals(self, step: int, resources: NodeResources, released: list[PlannedShare]) -> bool:
        own = self._steps[step].resources.copy()
        for share in released:
            own.give(share.places, share.need)
        return own.free == resources.free and own.usable == resources.usable and own.has_same_shares(resources)

    def resources_throughout(self, first: int, last: int, among: NodeSet) -> NodeResources:
        """What shares find free on these nodes in all steps of the range. Each position is the same GPU in all steps,
        so the least that is left at it lasts throughout."""
        lasting = self._steps[first].resources.copy()
        steps = [step.resources for step in self._steps[first:last]]
        for number in members(among):
            count = max(len(resources.shared.get(number, ())) for resources in steps)
            if count:
                lasting.shared[number] = [
                    min(resources.free_milli_on_gpu(number, position) for resources in steps)
                    for position in range(count)
                ]
            lasting.free[number] = min(resources.free[number] for resources in steps)
        return lasting

    def share_lasts(self, first: int, last: int, share: PlannedShare) -> bool:
        """Whether what this share of a GPU takes is free in all steps of the range."""
        return all(step.resources.has_free(share.places, share.need) for step in self._steps[first:last])


class TimelineStep:
    """The resources in one step, with the nodes that fit each request looked up so far.

    Taking a share can only shrink these sets, and only on its own nodes, so no lookup is repeated for all nodes.
    """

    __slots__ = ("_fitting", "_requests", "resources")

    def __init__(self, resources: NodeResources, requests: list[ResourceRequest], fitting: list[NodeSet]) -> None:
        self.resources = resources
        self._requests = requests
        self._fitting = fitting  # by request index; filled on demand

    def fitting_nodes(self, request: int) -> NodeSet:
        """The nodes that fit the request, cached."""
        fitting = self._fitting
        while len(fitting) <= request:
            fitting.append(self.resources.fitting_nodes(self._requests[len(fitting)]))
        return fitting[request]

    def take(self, share: PlannedShare) -> None:
        resources, fitting = self.resources, self._fitting
        resources.take(share.places, share.need)
        for node, _ in share.places:
            free, cpus, memory_mb = resources.free[node], resources.cpus[node], resources.memory_mb[node]
            bit = 1 << node
            for number, nodes in enumerate(fitting):
                if nodes & bit:
                    request = self._requests[number]
                    fits = free >= request.gpus and cpus >= request.cpus and memory_mb >= request.memory_mb
                    if not fits or (request.gpu_milli and not resources.shared_places(node, request)):
                        fitting[number] = nodes ^ bit
        if share.need.watts:
            self._drop_beyond_power()

    def _drop_beyond_power(self) -> None:
        """No node fits a request for which too little power is left. Budgets of parts of the cluster are looked up
        again."""
        if self.resources.areas:
            self._fitting.clear()
        for number, request in enumerate(self._requests[: len(self._fitting)]):
            if request.watts > self.resources.watts_left:
                self._fitting[number] = 0

    def copy(self) -> TimelineStep:
        return TimelineStep(self.resources.copy(), self._requests, list(self._fitting))
