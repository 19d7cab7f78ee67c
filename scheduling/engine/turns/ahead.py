"""Free resources over the time of a plan: `GpuOnlyTimeline` if only GPUs can be short, `ExactTimeline` otherwise.

Both implement `ResourceTimeline` and give the same plans. The first is much faster with many nodes.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.resources import GpuPlacement, NodeResources, NodeSet, members

STEPS_PER_BLOCK = 8  # steps of the timeline


class ResourceTimeline:
    """The free resources of a plan, one step per period. Requests are identified by their index in `requests`."""

    __slots__ = ()

    def whole(self, at: int) -> NodeResources:
        """The resources of a step in the form that placements need; valid until the next call."""
        raise NotImplementedError

    def usable(self, at: int) -> NodeSet:
        """The nodes that accept jobs in this step."""
        raise NotImplementedError

    def fitting_nodes_at(self, at: int, request: int) -> NodeSet:
        """The nodes that fit the request in this step."""
        raise NotImplementedError

    def nodes_fitting_throughout(
        self, first: int, last: int, request: int, wide: int, among: NodeSet
    ) -> tuple[NodeSet, int]:
        """The nodes of `among` that fit the request in all steps from `first` to before `last`, and `last`.

        If they become fewer than `wide`, the nodes up to that point and the first step with too few.
        """
        raise NotImplementedError

    def after(self, first: int, narrow: int, request: int, wide: int, among: NodeSet) -> int:
        """The next step to try. A start in `first` finds too few nodes in `narrow`, and so does any start before the
        result.
        """
        raise NotImplementedError

    def take(self, first: int, last: int, share: PlannedShare) -> None:
        """Take the share from these steps."""
        raise NotImplementedError

    def split_step(self, at: int) -> None:
        """Insert a step at this index, equal to the one before it."""
        raise NotImplementedError

    def forget(self, past: int) -> None:
        """Remove this many steps from the start."""
        raise NotImplementedError

    def becomes(self, at: int, resources: NodeResources, back: list[PlannedShare]) -> bool:
        """Whether the step equals these resources after the shares in `back` are returned."""
        raise NotImplementedError


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
                    if free < request.gpus or cpus < request.cpus or memory_mb < request.memory_mb:
                        fitting[number] = nodes ^ bit

    def copy(self) -> TimelineStep:
        return TimelineStep(self.resources.copy(), self._requests, list(self._fitting))


class ExactTimeline(ResourceTimeline):
    """One copy of the resources per step: GPUs, CPUs and memory."""

    __slots__ = ("_rooms",)

    def __init__(self, rooms: list[NodeResources], requests: list[ResourceRequest]) -> None:
        self._rooms = [TimelineStep(resources, requests, []) for resources in rooms]

    def whole(self, at: int) -> NodeResources:
        return self._rooms[at].resources

    def usable(self, at: int) -> NodeSet:
        return self._rooms[at].resources.usable

    def fitting_nodes_at(self, at: int, request: int) -> NodeSet:
        return self._rooms[at].fitting_nodes(request)

    def nodes_fitting_throughout(
        self, first: int, last: int, request: int, wide: int, among: NodeSet
    ) -> tuple[NodeSet, int]:
        for at in range(first, last):
            among &= self._rooms[at].fitting_nodes(request)
            if among.bit_count() < wide:
                return among, at
        return among, last

    def after(self, first: int, narrow: int, request: int, wide: int, among: NodeSet) -> int:
        return first + 1 if self._rooms[narrow].fitting_nodes(request).bit_count() >= wide else narrow + 1

    def take(self, first: int, last: int, share: PlannedShare) -> None:
        for at in range(first, last):
            self._rooms[at].take(share)

    def split_step(self, at: int) -> None:
        self._rooms.insert(at, self._rooms[at - 1].copy())

    def forget(self, past: int) -> None:
        del self._rooms[:past]

    def becomes(self, at: int, resources: NodeResources, back: list[PlannedShare]) -> bool:
        step_room = self._rooms[at].resources.copy()
        for share in back:
            step_room.give(share.places, share.need)
        return step_room.free == resources.free and step_room.usable == resources.usable


class NodeSetHistory:
    """A set of nodes per step, stored as differences between steps.

    A change over many steps therefore updates only its first and last step. Steps are grouped in blocks. For each block
    `heads` has the set in its first step, and `moved` the nodes that change within it, possibly with more.
    """

    __slots__ = ("changes", "heads", "moved")

    def __init__(self, sets: list[NodeSet], blocks: list[int]) -> None:
        # The first element is unused
        self.changes: list[NodeSet] = [0, *(now ^ before for before, now in pairwise(sets))]
        self.heads: list[NodeSet] = [sets[begins] for begins in blocks[:-1]]
        self.moved: list[NodeSet] = [self._changed_nodes(begins, ends) for begins, ends in pairwise(blocks)]

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
        self.moved[block] |= nodes
        if blocks[block] == first:
            self.heads[block] ^= nodes
        while blocks[block + 1] < last:
            block += 1
            self.heads[block] ^= nodes
        if last < len(self.changes):
            self.changes[last] ^= nodes
            self.moved[block + (blocks[block + 1] == last)] |= nodes

    def split_block(self, block: int, begins: int, middle: int, ends: int) -> None:
        """Split a block in two."""
        self.heads.insert(block + 1, self.of(middle, block, begins))
        self.moved[block : block + 1] = [self._changed_nodes(begins, middle), self._changed_nodes(middle, ends)]

    def forget(self, past: int, block: int, begins: int) -> None:
        """Remove the first `past` steps. The next step is in this block."""
        self.heads[block] = self.of(past, block, begins)
        if block:
            del self.heads[:block], self.moved[:block]
        del self.changes[:past]


class GpuOnlyTimeline(ResourceTimeline):
    """Steps in which only GPUs can be short: for each number of GPUs, the nodes that have that many free or more.

    A job that takes whole nodes removes them from one set, `_open`, instead of from the sets for all numbers.
    """

    __slots__ = ("_blocks", "_most", "_open", "_requests", "_resources", "_rows", "_usable")

    def __init__(self, like: NodeResources, requests: list[ResourceRequest], rooms: list[list[NodeSet]]) -> None:
        self._requests = requests
        self._most = like.most
        self._usable = rooms[0][0]  # the same in all steps
        self._blocks = [
            *range(0, len(rooms), STEPS_PER_BLOCK),
            len(rooms),
        ]  # first step of each block, and the end of the last
        # By number of GPUs; element 0 is the set of nodes that no job has taken whole
        self._rows = [NodeSetHistory([sets[gpus] for sets in rooms], self._blocks) for gpus in range(like.most + 1)]
        self._open = self._rows[0]
        self._resources = like.with_free_sets(rooms[0])

    def _block_of(self, at: int) -> int:
        """The block of this step."""
        return bisect_right(self._blocks, at) - 1

    def whole(self, at: int) -> NodeResources:
        self._resources.set_free_sets(self._free_sets(at))
        return self._resources

    def usable(self, at: int) -> NodeSet:
        return self._usable

    def fitting_nodes_at(self, at: int, request: int) -> NodeSet:
        gpus = self._requests[request].gpus
        if not gpus:
            return self._usable
        if gpus > self._most:
            return 0
        block = self._block_of(at)
        begins = self._blocks[block]
        return self._rows[gpus].of(at, block, begins) & self._open.of(at, block, begins)

    def nodes_fitting_throughout(
        self, first: int, last: int, request: int, wide: int, among: NodeSet
    ) -> tuple[NodeSet, int]:
        among &= self.fitting_nodes_at(first, request)
        if among.bit_count() < wide:
            return among, first
        gpus, blocks = self._requests[request].gpus, self._blocks
        if not 0 < gpus <= self._most:
            return among, last
        row, opened = self._rows[gpus], self._open
        changes, closings = row.changes, opened.changes
        at = first + 1
        block = self._block_of(first)
        while at < last:
            if at == blocks[block + 1]:
                block += 1
            ends = min(blocks[block + 1], last)
            if among & row.moved[block] or among & opened.moved[block]:
                while at < ends:
                    # A node in the set whose bit changes leaves the set
                    if lost := among & (changes[at] | closings[at]):
                        among ^= lost
                        if among.bit_count() < wide:
                            return among, at
                    at += 1
            at = ends
        return among, last

    def after(self, first: int, narrow: int, request: int, wide: int, among: NodeSet) -> int:
        gpus = self._requests[request].gpus
        if not 0 < gpus <= self._most:
            return len(self._open.changes)
        if narrow == first:
            return self._next_wide_step(first, gpus, wide, among)
        changes, closings = self._rows[gpus].changes, self._open.changes
        among &= self.fitting_nodes_at(narrow, request)
        if among.bit_count() < wide:
            return narrow + 1
        for at in range(narrow, first + 1, -1):
            if lost := among & (changes[at] | closings[at]):
                among ^= lost
                if among.bit_count() < wide:
                    return at
        return first + 1

    def _next_wide_step(self, narrow: int, gpus: int, wide: int, among: NodeSet) -> int:
        """The next step in which enough nodes fit the request."""
        changes, closings = self._rows[gpus].changes, self._open.changes
        block = self._block_of(narrow)
        begins = self._blocks[block]
        fitting = self._rows[gpus].of(narrow, block, begins)
        opened = self._open.of(narrow, block, begins)
        for at in range(narrow + 1, len(changes)):
            change, closing = changes[at], closings[at]
            if change or closing:
                fitting ^= change
                opened ^= closing
                if (fitting & opened & among).bit_count() >= wide:
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
            for row in self._rows[had - gpus + 1 : had + 1]:
                row.remove_nodes(at, same, node, self._blocks, block)
            at, block, had = same, same_block, then

    def _free_gpus_at(self, at: int, block: int, node: NodeSet) -> int:
        begins = self._blocks[block]
        had = self._most
        while not self._rows[had].of(at, block, begins) & node:
            had -= 1
        return had

    def _unchanged_until(self, first: int, last: int, block: int, had: int, node: NodeSet) -> tuple[int, int]:
        """The step until which the node has exactly `had` free GPUs, and its block."""
        less, more, blocks = self._rows[had], self._rows[min(had + 1, self._most)], self._blocks
        at = first + 1
        while at < last:
            if at == blocks[block + 1]:
                block += 1
            ends = min(blocks[block + 1], last)
            if less.moved[block] & node or more.moved[block] & node:
                while at < ends:
                    if less.changes[at] & node or more.changes[at] & node:
                        return at, block
                    at += 1
            at = ends
        return last, block

    def _free_gpus_from(self, at: int, had: int, node: NodeSet) -> int:
        """The free GPUs of the node from this step on, if it had `had` before."""
        if not self._rows[had].changes[at] & node:
            while had < self._most and self._rows[had + 1].changes[at] & node:
                had += 1
            return had
        while had and self._rows[had].changes[at] & node:
            had -= 1
        return had

    def split_step(self, at: int) -> None:
        for row in self._rows:
            row.changes.insert(at, 0)
        blocks = self._blocks
        block = self._block_of(at - 1)
        for following in range(block + 1, len(blocks)):
            blocks[following] += 1
        begins, ends = blocks[block], blocks[block + 1]
        if ends - begins > 2 * STEPS_PER_BLOCK:
            blocks.insert(block + 1, begins + STEPS_PER_BLOCK)
            for row in self._rows:
                row.split_block(block, begins, begins + STEPS_PER_BLOCK, ends)

    def forget(self, past: int) -> None:
        block = self._block_of(past)
        for row in self._rows:
            row.forget(past, block, self._blocks[block])
        self._blocks = [0, *(begins - past for begins in self._blocks[block + 1 :])]

    def becomes(self, at: int, resources: NodeResources, back: list[PlannedShare]) -> bool:
        free_sets = self._free_sets(at)
        for share in back:
            for gpus, nodes in share.sets:
                for free in range(len(free_sets) - 1, 0, -1):
                    free_sets[free] |= nodes & free_sets[max(0, free - gpus)]
        return free_sets == resources.nodes_with_at_least()

    def _free_sets(self, at: int) -> list[NodeSet]:
        block = self._block_of(at)
        begins = self._blocks[block]
        opened = self._open.of(at, block, begins)
        return [self._usable, *(row.of(at, block, begins) & opened for row in self._rows[1:])]


class PlannedShare:
    """The resources a job takes: its placement, and the same as node sets by number of GPUs per node."""

    __slots__ = ("need", "places", "sets")

    def __init__(self, places: GpuPlacement, need: ResourceRequest) -> None:
        self.places = places
        self.need = need
        sets: dict[int, NodeSet] = {}
        for node, gpus in places:
            sets[gpus] = sets.get(gpus, 0) | 1 << node
        self.sets = list(sets.items())
