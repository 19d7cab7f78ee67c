"""HiveD (OSDI'20): a virtual cluster always finds its guaranteed nodes, close together.

Cells are nodes and leaf switches. A guarantee of n nodes consists of as many whole leaves as fit into n, and single
nodes for the remainder. A cell is bound to a physical one at its first use and unbound when it becomes empty. Small
cells are taken from leaves that are already broken up, the most broken ones first, and a whole leaf is split only if
enough whole leaves remain for all guarantees (buddy allocation). So a quota never finds free nodes that are scattered.

Jobs without a guarantee use what no guarantee needs, like HiveD's opportunistic jobs. They wait where HiveD would
preempt them, because preemption is up to policies. GPUs of a node are not aligned: behind an NVSwitch all are equal. A
guarantee holds as long as the usable nodes can hold all guarantees together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.placement import consolidate
from scheduling.engine.resources import GpuPlacement, NodeResources, NodeSet, members


class CellPlacement:
    """`guarantees`: virtual cluster -> number of nodes."""

    def __init__(self, guarantees: Mapping[str, int]) -> None:
        self.guarantees = dict(guarantees)

    def __call__(self, resources: NodeResources, need: ResourceRequest, among: NodeSet) -> GpuPlacement | None:
        cells = _CellBindings(resources, self.guarantees)
        choices = cells.of(need.pool) if need.pool in self.guarantees else cells.opportunistic_choices()
        for nodes in choices:
            if (places := consolidate(resources, need, nodes & among)) is not None:
                return places
        return None


class _CellBindings:
    """The cells bound to each virtual cluster, derived from where jobs run."""

    def __init__(self, resources: NodeResources, guarantees: Mapping[str, int]) -> None:
        self._leaves = resources.leaves if len(resources.leaves) > 1 else ()
        self._size = min((leaf.bit_count() for leaf in self._leaves), default=0)
        self._resources, self._guarantees = resources, guarantees
        held = 0
        for pool in guarantees:
            held |= resources.bound.get(pool, 0)
        self._held = held
        self._empty = _empty_nodes(resources) & ~held
        self._own: dict[str, NodeSet] = {}  # nodes that it may use without binding more cells
        self._leaves_due: dict[str, int] = {}
        self._nodes_due: dict[str, int] = {}
        for pool, promised in guarantees.items():
            self._count_due_cells(pool, promised)
        for nodes in self._own.values():
            self._empty &= ~nodes

    def _count_due_cells(self, pool: str, promised: int) -> None:
        """Find the cells bound to this virtual cluster, and how many it may still bind."""
        whole, single = divmod(promised, self._size) if self._size else (0, promised)
        held = self._resources.bound.get(pool, 0)
        alone = [
            leaf for leaf in self._leaves if leaf & held and not leaf & ~held & ~self._empty & self._resources.usable
        ]
        bound = sorted(alone, key=lambda leaf: -(leaf & held).bit_count())[:whole]
        inside = sum(bound)
        self._own[pool] = inside | held
        self._leaves_due[pool] = whole - len(bound)
        self._nodes_due[pool] = max(0, single - (held & ~inside).bit_count())

    def of(self, pool: str) -> Iterator[NodeSet]:
        """Node sets to try in order: its own cells, then with more and more unbound ones, the fewest and smallest
        first.
        """
        own = self._own[pool]
        yield own
        nodes = 0
        for number, node in enumerate(self._loose_nodes()):
            if number == self._nodes_due[pool]:
                break
            nodes |= 1 << node
        if nodes:
            yield own | nodes
        leaves = 0
        for leaf in self._empty_leaves()[: self._leaves_due[pool]]:
            leaves |= leaf
            yield own | leaves
        if leaves and nodes:
            yield own | leaves | nodes & ~leaves

    def opportunistic_choices(self) -> Iterator[NodeSet]:
        """Node sets for jobs without a guarantee: nodes in use by such jobs, then empty ones that no guarantee
        needs.
        """
        owned = self._held
        for nodes in self._own.values():
            owned |= nodes
        used = self._resources.usable & ~owned & ~self._empty
        yield used
        leaves_due = sum(self._leaves_due.values())
        spare = self._empty.bit_count() - leaves_due * self._size - sum(self._nodes_due.values())
        for number, node in enumerate(self._loose_nodes()):
            if number >= spare:
                break
            used |= 1 << node
        yield used

    def _empty_leaves(self) -> list[NodeSet]:
        return [leaf for leaf in self._leaves if not leaf & ~self._empty]

    def _loose_nodes(self) -> Iterator[int]:
        """Empty nodes outside the whole leaves needed for guarantees; those of the most broken leaves first."""
        whole = self._empty_leaves()
        reserved = sum(whole[: sum(self._leaves_due.values())])
        pieces = [self._empty & leaf & ~reserved for leaf in self._leaves] or [self._empty]
        for nodes in sorted(pieces, key=int.bit_count):
            yield from members(nodes)


def _empty_nodes(resources: NodeResources) -> NodeSet:
    """Usable nodes whose GPUs are all free."""
    with_free = 0
    for nodes in resources.by_free[1:]:
        with_free |= nodes
    if all(node.gpus == resources.most for node in resources.nodes):
        return resources.by_free[resources.most]
    return sum(1 << number for number in members(with_free) if resources.free[number] == resources.nodes[number].gpus)
