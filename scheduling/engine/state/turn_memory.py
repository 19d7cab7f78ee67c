"""What turns keep from one event to the next: what has changed since the last turn, and the reservations."""

from __future__ import annotations

from typing import Any

from scheduling.engine.job import EngineJob, RequestGroup
from scheduling.engine.resources import GpuPlacement, NodeResources

EARLY_END_WEIGHT = 64


class ChangesSinceTurn:
    """A cache that keeps a turn from trying jobs that cannot start: what happened since the last turn.

    A job that waited at the end of the last turn can start only if its group is in `groups_with_arrivals`, or if
    something other than an arrival happened and the job needs at most `largest_opening` GPUs on a node. To record more
    than happened (`record_any_change`) costs time and changes no decision.
    """

    __slots__ = ("_per_node", "blocked_job", "ends", "groups_with_arrivals", "largest_opening", "only_arrivals")

    def __init__(self, resources: NodeResources, *, per_node: bool) -> None:
        """`per_node`: whether a job that fits on none of the nodes with released GPUs cannot fit because of them."""
        self._per_node = per_node
        self.only_arrivals = False  # whether nothing but arrivals happened
        self.largest_opening = resources.most  # most free GPUs on any node that had GPUs released
        self.groups_with_arrivals: dict[RequestGroup, None] = {}  # an ordered set; empty for rules with one queue
        self.blocked_job: EngineJob | None = None  # a job that the last turn wanted to start and could not place
        self.ends: list[EngineJob] = []  # jobs that ended; only for rules with reservations

    def record_release(self, places: GpuPlacement, resources: NodeResources) -> None:
        """GPUs were released at these places of `resources`."""
        self.only_arrivals = False
        if not self._per_node:
            self.largest_opening = resources.most
            return
        free = resources.free
        for node, _ in places:
            if free[node] > self.largest_opening:
                self.largest_opening = free[node]

    def record_any_change(self, resources: NodeResources) -> None:
        """Something happened after which any job may fit."""
        self.only_arrivals, self.largest_opening = False, resources.most

    def clear(self) -> None:
        """A turn has ended. `blocked_job` is up to the turns."""
        self.only_arrivals, self.largest_opening = True, 0
        if self.groups_with_arrivals:
            self.groups_with_arrivals.clear()
        if self.ends:
            self.ends.clear()

    def may_fit(self, group: RequestGroup) -> bool:
        """Whether a job of this group that did not fit in the last turn may fit now."""
        return not self.only_arrivals and group.min_node_gpus <= self.largest_opening


class StandingReservation:
    """The reservation that turns keep until it is used or no longer valid: for one job, or a plan for all of them.

    This is state and not a cache: a reservation that is computed again is never later, but it may be earlier, on other
    nodes, and let other jobs pass.
    """

    __slots__ = ("_early_ends", "current")

    def __init__(self) -> None:
        self.current: Any = None  # a `HeadReservation` of `turns/easy` or a `ReservationPlan` of `turns/plan`
        self._early_ends = 0

    def drop(self) -> None:
        """Nodes were opened or closed, or no job waits: the next turn that needs a reservation computes it."""
        self.current = None

    def record_early_end(self, running: int) -> None:
        """A job ended early, so the reserved job might start earlier than reserved.

        The reservation stays valid. It is computed again after a number of early ends that grows with the number of
        running jobs, as its cost does, so the amortized cost stays low.
        """
        self._early_ends += EARLY_END_WEIGHT
        if self._early_ends >= running:
            self._early_ends, self.current = 0, None
