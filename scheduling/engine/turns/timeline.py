"""The contract of `ExactTimeline` and `GpuOnlyTimeline`: the free resources over the time of a plan.

`ReservationPlan` takes the second if only GPUs can be short, because it is much faster with many nodes. Where both can
be used they answer the same, so the plan is the same. `tests/scheduling/engine/test_timelines.py` checks both against
the contract.
"""

from __future__ import annotations

from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.resources import GpuPlacement, NodeResources, NodeSet


class ResourceTimeline:
    """Steps 0, 1, 2, … of a plan, and what is free in each. Within a step nothing changes.

    A timeline is made with the resources at the start of each step, of which it keeps no reference, and with a list of
    requests. Requests are identified by their index in this list, which the plan may extend later. A node fits a
    request in a step if it is usable then and has what the request needs on one node free: GPUs or a part of a GPU,
    CPUs and memory. `nodes` and `rest` of the request do not matter here. Ranges of steps are half-open: from `first`
    to before `last`.
    """

    __slots__ = ()

    def resources_at(self, step: int) -> NodeResources:
        """The resources of a step, for placements only, which may not change them. Valid until the next call."""
        raise NotImplementedError

    def usable_nodes(self, step: int) -> NodeSet:
        """The nodes that accept jobs in this step."""
        raise NotImplementedError

    def fitting_nodes(self, step: int, request: int) -> NodeSet:
        """The nodes that fit the request in this step."""
        raise NotImplementedError

    def nodes_fitting_throughout(
        self, first: int, last: int, request: int, min_nodes: int, among: NodeSet
    ) -> tuple[NodeSet, int]:
        """The nodes of `among` that fit the request in all steps of a range that is not empty, and `last`.

        If they become fewer than `min_nodes`, those that fit up to and including the first step with too few nodes, and
        this step.
        """
        raise NotImplementedError

    def next_start(self, first: int, narrow: int, request: int, min_nodes: int, among: NodeSet) -> int:
        """The next step at which a start is worth trying, after `nodes_fitting_throughout` has found too few nodes in
        step `narrow` for a start in step `first`.

        It is later than `first`. No start before it has enough nodes that fit until `narrow`, or in the step of the
        start if that is later. A start in it may still fail.
        """
        raise NotImplementedError

    def take(self, first: int, last: int, share: PlannedShare) -> None:
        """Take the share from these steps, in all of which its nodes fit it."""
        raise NotImplementedError

    def split_step(self, at: int) -> None:
        """Insert a step at this index, equal to the one before it."""
        raise NotImplementedError

    def drop_steps(self, count: int) -> None:
        """Remove this many steps from the start, but not all."""
        raise NotImplementedError

    def equals(self, step: int, resources: NodeResources, released: list[PlannedShare]) -> bool:
        """Whether the same nodes are usable with equally many free GPUs as in `resources`, after these shares are
        released in the step.
        """
        raise NotImplementedError


class PlannedShare:
    """The resources a job takes: its placement, and the same as node sets by number of GPUs per node. `sets` means
    nothing for a part of a GPU, which only `ExactTimeline` takes.
    """

    __slots__ = ("need", "places", "sets")

    def __init__(self, places: GpuPlacement, need: ResourceRequest) -> None:
        self.places = places
        self.need = need
        sets: dict[int, NodeSet] = {}
        for node, gpus in places:
            sets[gpus] = sets.get(gpus, 0) | 1 << node
        self.sets = list(sets.items())
