"""Power budgets of parts of a cluster: what is left of each, and on which nodes a job still fits.

The power of a gang is divided evenly among its nodes. For each budget, at most as many nodes are offered as parts of
the job fit in what is left, so a placement may choose any of them. Budgets are applied from the smallest to the
largest, which offers the most nodes if racks lie in leaves and leaves in pods. A node that sleeps needs its idle power
too, and is offered after awake ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduling.engine.cluster import PowerBudget, ResourceRequest
from scheduling.engine.resources import GpuPlacement, NodeSet, members


def watts_per_node(need: ResourceRequest, nodes: int = 0) -> int:
    """The part of the job's power on each of its nodes, rounded up."""
    return -(-need.watts // (nodes or _node_count(need)))


def _node_count(need: ResourceRequest) -> int:
    return need.nodes + bool(need.rest)


class PowerAreas:
    """What is left of the budgets. `left` changes with the jobs; `wake_w` has the idle power of nodes that sleep."""

    def __init__(
        self, budgets: Sequence[tuple[PowerBudget, NodeSet, int]], wake_w: Mapping[int, int] | None = None
    ) -> None:
        """`budgets` are given with their nodes and what is left of them."""
        ordered = sorted(budgets, key=lambda one: one[1].bit_count())
        self.budgets = [budget for budget, _, _ in ordered]
        self.nodes = [nodes for _, nodes, _ in ordered]
        self.left = [left for _, _, left in ordered]
        self._containing: dict[int, list[int]] = {}  # node -> its budgets
        for index, nodes in enumerate(self.nodes):
            for number in members(nodes):
                self._containing.setdefault(number, []).append(index)
        self._wake_w = wake_w or {}
        self._asleep: NodeSet = sum(1 << number for number in self._wake_w)
        self._jobs = dict.fromkeys(self._wake_w, 0)  # jobs that started on nodes that slept

    def copy(self) -> PowerAreas:
        other = PowerAreas((), None)
        other.budgets, other.nodes, other.left = self.budgets, self.nodes, list(self.left)
        other._containing = self._containing
        other._wake_w, other._asleep, other._jobs = self._wake_w, self._asleep, dict(self._jobs)
        return other

    def move(self, places: GpuPlacement, need: ResourceRequest, sign: int) -> None:
        """Take (-1) or release (1) the power of a placement."""
        part = watts_per_node(need, len(places))
        for number, _ in places:
            watts = sign * (part + self._boot_w(number, sign))
            for index in self._containing.get(number, ()):
                self.left[index] += watts

    def _boot_w(self, number: int, sign: int) -> int:
        """The idle power of a node that the first job wakes up and the last one leaves."""
        if number not in self._jobs:
            return 0
        before = self._jobs[number]
        self._jobs[number] = after = before - sign
        if before and after:
            return 0
        self._asleep ^= 1 << number
        return self._wake_w[number]

    def has_room(self, places: GpuPlacement, need: ResourceRequest) -> bool:
        """Whether each budget has enough left for this placement."""
        part, needed = watts_per_node(need, len(places)), dict[int, int]()
        for number, _ in places:
            watts = part + (self._wake_w[number] if self._asleep >> number & 1 else 0)
            for index in self._containing.get(number, ()):
                needed[index] = needed.get(index, 0) + watts
        return all(watts <= self.left[index] for index, watts in needed.items())

    def fitting(self, need: ResourceRequest, nodes: NodeSet) -> NodeSet:
        """Nodes of this set, of which the job may use any."""
        part, count = watts_per_node(need), _node_count(need)
        for area, left in zip(self.nodes, self.left, strict=True):
            if self._may_exceed(nodes & area, left, part, count):
                inside = nodes & area
                kept = self._affordable(inside, left, part) if count > 1 else self._single(inside, left, part)
                nodes = nodes & ~area | kept
        return nodes

    def short_budgets(self, need: ResourceRequest, nodes: NodeSet) -> list[str]:
        """The names of the budgets that keep the job from some of these nodes."""
        part, count = watts_per_node(need), _node_count(need)
        return [
            budget.name
            for budget, area, left in zip(self.budgets, self.nodes, self.left, strict=True)
            if self._may_exceed(nodes & area, left, part, count)
        ]

    def _may_exceed(self, inside: NodeSet, left: int, part: int, count: int) -> bool:
        """Whether some choice of so many of these nodes needs more than is left."""
        return inside != 0 and min(inside.bit_count(), count) * part + self._sum_asleep(inside) > left

    def _sum_asleep(self, nodes: NodeSet) -> int:
        asleep = nodes & self._asleep
        return sum(watts for number, watts in self._wake_w.items() if asleep >> number & 1) if asleep else 0

    def _single(self, inside: NodeSet, left: int, part: int) -> NodeSet:
        """The nodes of the set on which one part fits."""
        asleep = sum(
            1 << number
            for number, watts in self._wake_w.items()
            if inside & self._asleep & 1 << number and part + watts <= left
        )
        return (inside & ~self._asleep | asleep) if part <= left else 0

    def _affordable(self, inside: NodeSet, left: int, part: int) -> NodeSet:
        """As many nodes of the set as there is power for: awake ones first, then those with the lowest numbers."""
        chosen = 0
        for group, sleeps in ((inside & ~self._asleep, False), (inside & self._asleep, True)):
            for number in members(group):
                cost = part + (self._wake_w[number] if sleeps else 0)
                if cost > left:
                    break
                chosen, left = chosen | 1 << number, left - cost
        return chosen
