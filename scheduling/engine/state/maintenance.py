"""The maintenances of an engine: which nodes they close, and where jobs may start because of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

from scheduling.engine.job import RequestGroup
from scheduling.engine.resources import NodeResources, NodeSet, members
from scheduling.engine.windows import MaintenancePeriod, blocked_nodes


class MaintenanceSchedule:
    """Maintenances that are ahead or in progress.

    `RequestGroup.eligible_nodes` is a cache: until `_next_change`, it equals `eligible_nodes(group, now)` for every
    group. New maintenances and new groups call `recheck`, so that the next `update_groups` computes it again.
    """

    __slots__ = ("_all_nodes", "_next_change", "periods")

    def __init__(self, nodes: int) -> None:
        self._all_nodes: NodeSet = (1 << nodes) - 1
        self.periods: tuple[MaintenancePeriod, ...] = ()
        self._next_change = math.inf

    def replace_periods(self, periods: tuple[MaintenancePeriod, ...]) -> None:
        self.periods = periods
        self.recheck()

    def recheck(self) -> None:
        """Let the next `update_groups` compute all eligible nodes."""
        self._next_change = -math.inf

    def is_due(self, now: float) -> bool:
        """Whether a maintenance has ended or a group's eligible nodes may have changed since the last update."""
        return bool(self.periods) and now >= self._next_change

    def update_groups(self, groups: Collection[RequestGroup], now: float) -> bool:
        """Drop maintenances that are over and update where each group may start. Whether that changed anywhere."""
        self.periods = tuple(period for period in self.periods if now < period.end)
        changed = False
        for group in groups:
            eligible = self.eligible_nodes(group, now)
            if eligible != group.eligible_nodes:
                group.eligible_nodes = eligible
                changed = True
        run_times = {group.need.runs_s for group in groups}
        times = (at for period in self.periods for runs_s in run_times for at in period.change_times(runs_s, now))
        self._next_change = min(times, default=math.inf)
        return changed

    def eligible_nodes(self, group: RequestGroup, at: float) -> NodeSet:
        """The nodes on which the group may start at that time, regardless of what is free on them."""
        matching = group.matching_nodes
        if group.barred_nodes:
            matching &= self._all_nodes & ~group.barred_nodes
        if not self.periods:
            return matching
        return matching & self._all_nodes & ~blocked_nodes(self.periods, group.need.runs_s, at)

    def nodes_closed_at(self, at: float) -> NodeSet:
        """The nodes that maintenances keep closed at that time."""
        nodes = 0
        for period in self.periods:
            if at < period.end:
                nodes |= period.closed_nodes
        return nodes

    def nodes_reopened_by(self, at: float) -> NodeSet:
        """The nodes that maintenances close now but not at that time."""
        return self.nodes_closed_at(-math.inf) & ~self.nodes_closed_at(at)

    def reopen_nodes(self, resources: NodeResources, at: float) -> None:
        """In a copy of the resources at a future time: open nodes whose maintenance is over by then."""
        for number in members(self.nodes_reopened_by(at)):
            resources.open(number)

    def end_times(self) -> Iterator[float]:
        return (period.end for period in self.periods)
