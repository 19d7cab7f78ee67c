"""A timeline of node sets, for plans in which only GPUs can be short."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.resources import NodeResources, NodeSet, members
from scheduling.engine.turns.timeline import PlannedShare, ResourceTimeline

STEPS_PER_BLOCK = 8


class GpuOnlyTimeline(ResourceTimeline):
    """For each number of GPUs, the nodes that have that many free or more, step by step.

    CPUs and memory must never be short where GPUs are free, all steps must have the same usable nodes, and the
    placement may look only at numbers of free GPUs.

    A job that takes whole nodes removes them from one set, `_open`, instead of from the sets for all numbers.
    """

    __slots__ = ("_blocks", "_most", "_open", "_requests", "_resources", "_usable", "_with_free")

    def __init__(self, steps: Iterable[NodeResources], requests: list[ResourceRequest]) -> None:
        later_steps = iter(steps)
        first = next(later_steps)
        free_sets = [first.nodes_with_at_least()]
        self._resources = first.with_free_sets(free_sets[0])
        free_sets += [resources.nodes_with_at_least() for resources in later_steps]
        self._requests = requests
        self._most = first.most
        self._usable = free_sets[0][0]
        # The first step of each block, and the end of the last block
        self._blocks = [*range(0, len(free_sets), STEPS_PER_BLOCK), len(free_sets)]
        # By number of GPUs; element 0 is the set of nodes that no job has taken whole
        self._with_free = [
            NodeSetHistory([sets[gpus] for sets in free_sets], self._blocks) for gpus in range(self._most + 1)
        ]
        self._open = self._with_free[0]

    def _block_of(self, at: int) -> int:
        """The block of this step."""
        return bisect_right(self._blocks, at) - 1

    def resources_at(self, at: int) -> NodeResources:
        self._resources.set_free_sets(self._free_sets(at))
        return self._resources

    def usable_nodes(self, at: int) -> NodeSet:
        return self._usable

    def fitting_nodes(self, at: int, request: int) -> NodeSet:
        gpus = self._requests[request].gpus
        if not gpus:
            return self._usable
        if gpus > self._most:
            return 0
        block = self._block_of(at)
        begins = self._blocks[block]
        return self._with_free[gpus].of(at, block, begins) & self._open.of(at, block, begins)

    def nodes_fitting_throughout(
        self, first: int, last: int, request: int, min_nodes: int, among: NodeSet
    ) -> tuple[NodeSet, int]:
        among &= self.fitting_nodes(first, request)
        if among.bit_count() < min_nodes:
            return among, first
        gpus, blocks = self._requests[request].gpus, self._blocks
        if not 0 < gpus <= self._most:
            return among, last
        row, opened = self._with_free[gpus], self._open
        changes, closings = row.changes, opened.changes
        at = first + 1
        block = self._block_of(first)
        while at < last:
            if at == blocks[block + 1]:
                block += 1
            ends = min(blocks[block + 1], last)
            if among & row.changing_nodes[block] or among & opened.changing_nodes[block]:
                while at < ends:
                    # A node in the set whose bit changes leaves the set
                    if lost := among & (changes[at] | closings[at]):
                        among ^= lost
                        if among.bit_count() < min_nodes:
                            return among, at
                    at += 1
            at = ends
        return among, last

    def next_start(self, first: int, narrow: int, request: int, min_nodes: int, among: NodeSet) -> int:
        gpus = self._requests[request].gpus
        if not 0 < gpus <= self._most:
            return len(self._open.changes)
        if narrow == first:
            return self._next_wide_step(first, gpus, min_nodes, among)
        changes, closings = self._with_free[gpus].changes, self._open.changes
        among &= self.fitting_nodes(narrow, request)
        if among.bit_count() < min_nodes:
            return narrow + 1
        for at in range(narrow, first + 1, -1):
            if lost := among & (changes[at] | closings[at]):
                among ^= lost
                if among.bit_count() < min_nodes:
                    return at
        return first + 1

    def _next_wide_step(self, narrow: int, gpus: int, min_nodes: int, among: NodeSet) -> int:
        """The next step in which enough nodes fit the request."""
        changes, closings = self._with_free[gpus].changes, self._open.changes
        block = self._block_of(narrow)
        begins = self._blocks[block]
        fitting = self._with_free[gpus].of(narrow, block, begins)
        opened = self._open.of(narrow, block, begins)
        for at in range(narrow + 1, len(changes)):
            change, closing = changes[at], closings[at]
            if change or closing:
                fitting ^= change
                opened ^= closing
                if (fitting & opened & among).bit_count() >= min_nodes:
                    return at
        return len(changes)

    def take(self, first: int, last: int, share: PlannedShare) -> None:
        for gpus, nodes in share.sets:
            if gpus >= self._most > 0:
                self._open.remove_nodes(first, last, nodes, self._blocks, self._block_of(first))
            elif gpus:
                for node in members(nodes):
                    self._reserve_on_node(first, last, gpus, 1 << node)

    def _reserve_on_node(self, first: int, last: int, gpus: int, node: NodeSet) -> None:
        """Take GPUs of one node in these steps, one run of steps with equally many free GPUs at a time."""
        block = self._block_of(first)
        had = self._free_gpus_at(first, block, node)
        at = first
        while at < last:
            same, same_block = self._unchanged_until(at, last, block, had, node)
            then = self._free_gpus_from(same, had, node) if same < last else 0
            for row in self._with_free[had - gpus + 1 : had + 1]:
                row.remove_nodes(at, same, node, self._blocks, block)
            at, block, had = same, same_block, then

    def _free_gpus_at(self, at: int, block: int, node: NodeSet) -> int:
        begins = self._blocks[block]
        had = self._most
        while not self._with_free[had].of(at, block, begins) & node:
            had -= 1
        return had

    def _unchanged_until(self, first: int, last: int, block: int, had: int, node: NodeSet) -> tuple[int, int]:
        """The step until which the node has exactly `had` free GPUs, and its block."""
        less, more, blocks = self._with_free[had], self._with_free[min(had + 1, self._most)], self._blocks
        at = first + 1
        while at < last:
            if at == blocks[block + 1]:
                block += 1
            ends = min(blocks[block + 1], last)
            if less.changing_nodes[block] & node or more.changing_nodes[block] & node:
                while at < ends:
                    if less.changes[at] & node or more.changes[at] & node:
                        return at, block
                    at += 1
            at = ends
        return last, block

    def _free_gpus_from(self, at: int, had: int, node: NodeSet) -> int:
        """The free GPUs of the node from this step on, if it had `had` before."""
        if not self._with_free[had].changes[at] & node:
            while had < self._most and self._with_free[had + 1].changes[at] & node:
                had += 1
            return had
        while had and self._with_free[had].changes[at] & node:
            had -= 1
        return had

    def split_step(self, at: int) -> None:
        for row in self._with_free:
            row.changes.insert(at, 0)
        blocks = self._blocks
        block = self._block_of(at - 1)
        for following in range(block + 1, len(blocks)):
            blocks[following] += 1
        begins, ends = blocks[block], blocks[block + 1]
        if ends - begins > 2 * STEPS_PER_BLOCK:
            blocks.insert(block + 1, begins + STEPS_PER_BLOCK)
            for row in self._with_free:
                row.split_block(block, begins, begins + STEPS_PER_BLOCK, ends)

    def drop_steps(self, count: int) -> None:
        block = self._block_of(count)
        for row in self._with_free:
            row.drop_steps(count, block, self._blocks[block])
        self._blocks = [0, *(begins - count for begins in self._blocks[block + 1 :])]

    def equals(self, at: int, resources: NodeResources, released: list[PlannedShare]) -> bool:
        free_sets = self._free_sets(at)
        for share in released:
            for gpus, nodes in share.sets:
                for free in range(len(free_sets) - 1, 0, -1):
                    free_sets[free] |= nodes & free_sets[max(0, free - gpus)]
        return free_sets == resources.nodes_with_at_least()

    def _free_sets(self, at: int) -> list[NodeSet]:
        block = self._block_of(at)
        begins = self._blocks[block]
        opened = self._open.of(at, block, begins)
        return [self._usable, *(row.of(at, block, begins) & opened for row in self._with_free[1:])]


class NodeSetHistory:
    """A set of nodes per step, stored as differences between steps.

    A change over many steps therefore updates only its first and last step. Steps are grouped in blocks. For each block
    `heads` has the set in its first step, and `changing_nodes` the nodes that change within it, possibly with more.
    """

    __slots__ = ("changes", "changing_nodes", "heads")

    def __init__(self, sets: list[NodeSet], blocks: list[int]) -> None:
        # The first element is unused
        self.changes: list[NodeSet] = [0, *(now ^ before for before, now in pairwise(sets))]
        self.heads: list[NodeSet] = [sets[begins] for begins in blocks[:-1]]
        self.changing_nodes: list[NodeSet] = [self._changed_nodes(begins, ends) for begins, ends in pairwise(blocks)]

    def _changed_nodes(self, begins: int, ends: int) -> NodeSet:
        nodes = 0
        for change in self.changes[begins:ends]:
            nodes |= change
        return nodes

    def of(self, at: int, block: int, begins: int) -> NodeSet:
        """The set in step `at`, which is in this block. `begins` is the first step of the block."""
        nodes = self.heads[block]
        for change in self.changes[begins + 1 : at + 1]:
            if change:
                nodes ^= change
        return nodes

    def remove_nodes(self, first: int, last: int, nodes: NodeSet, blocks: list[int], block: int) -> None:
        """Remove nodes from these steps, in all of which they are present. The first step is in this block."""
        self.changes[first] ^= nodes
        self.changing_nodes[block] |= nodes
        if blocks[block] == first:
            self.heads[block] ^= nodes
        while blocks[block + 1] < last:
            block += 1
            self.heads[block] ^= nodes
        if last < len(self.changes):
            self.changes[last] ^= nodes
            self.changing_nodes[block + (blocks[block + 1] == last)] |= nodes

    def split_block(self, block: int, begins: int, middle: int, ends: int) -> None:
        """Split a block in two."""
        self.heads.insert(block + 1, self.of(middle, block, begins))
        self.changing_nodes[block : block + 1] = [
            self._changed_nodes(begins, middle),
            self._changed_nodes(middle, ends),
        ]

    def drop_steps(self, count: int, block: int, begins: int) -> None:
        """Remove the first `count` steps. The next step is in this block."""
        self.heads[block] = self.of(count, block, begins)
        if block:
            del self.heads[:block], self.changing_nodes[:block]
        del self.changes[:count]
