"""The rooms ahead of a plan: `Outlines` where only GPUs can be short, `Stretches` elsewhere.

Both answer the same questions (`Future`), and give the same plans.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.room import GpuPlacement, NodeResources, NodeSet, members

STEPS_PER_BLOCK = 8  # rooms


class ResourceTimeline:
    """The rooms of a plan, by time. A wish is a number in `wishes`, which whoever plans adds to."""

    __slots__ = ()

    def whole(self, at: int) -> NodeResources:
        """As placements look at it; good until the next one is asked for."""
        raise NotImplementedError

    def usable(self, at: int) -> NodeSet:
        raise NotImplementedError

    def fitting_nodes_at(self, at: int, wish: int) -> NodeSet:
        """The nodes that fit this wish then."""
        raise NotImplementedError

    def nodes_fitting_throughout(
        self, first: int, last: int, wish: int, wide: int, among: NodeSet
    ) -> tuple[NodeSet, int]:
        """Those that fit it in all of these rooms, and `last`; or, where they are fewer than `wide`, the first room in
        which they are."""
        raise NotImplementedError

    def after(self, first: int, narrow: int, wish: int, wide: int, among: NodeSet) -> int:
        """Where to look next: who begins in `first` finds too few in `narrow`, and so does everybody who begins before
        this room."""
        raise NotImplementedError

    def take(self, first: int, last: int, share: PlannedShare) -> None:
        """From each of these rooms."""
        raise NotImplementedError

    def split_step(self, at: int) -> None:
        """There is one more, in which for now everything is as in the one before."""
        raise NotImplementedError

    def forget(self, past: int) -> None:
        """The first so many."""
        raise NotImplementedError

    def becomes(self, at: int, room: NodeResources, back: list[PlannedShare]) -> bool:
        """Whether it is that room once these have given back what they took."""
        raise NotImplementedError


class TimelineStep:
    """The room from one time of the plan to the next, and the nodes that fit what was asked for before.

    What is taken can only narrow them, and only on the nodes that are taken: so nobody looks at all nodes again."""

    __slots__ = ("_fitting", "_wishes", "room")

    def __init__(self, room: NodeResources, wishes: list[ResourceRequest], fitting: list[NodeSet]) -> None:
        self.room = room
        self._wishes = wishes
        self._fitting = fitting  # as far as anybody asked

    def fitting_nodes(self, wish: int) -> NodeSet:
        known = self._fitting
        while len(known) <= wish:
            known.append(self.room.fitting_nodes(self._wishes[len(known)]))
        return known[wish]

    def take(self, share: PlannedShare) -> None:
        room, known = self.room, self._fitting
        room.take(share.places, share.need)
        for node, _ in share.places:
            free, cpus, memory_mb = room.free[node], room.cpus[node], room.memory_mb[node]
            bit = 1 << node
            for number, nodes in enumerate(known):
                if nodes & bit:
                    wish = self._wishes[number]
                    if free < wish.gpus or cpus < wish.cpus or memory_mb < wish.memory_mb:
                        known[number] = nodes ^ bit

    def copy(self) -> TimelineStep:
        return TimelineStep(self.room.copy(), self._wishes, list(self._fitting))


class ExactTimeline(ResourceTimeline):
    __slots__ = ("_rooms",)

    def __init__(self, rooms: list[NodeResources], wishes: list[ResourceRequest]) -> None:
        self._rooms = [TimelineStep(room, wishes, []) for room in rooms]

    def whole(self, at: int) -> NodeResources:
        return self._rooms[at].room

    def usable(self, at: int) -> NodeSet:
        return self._rooms[at].room.usable

    def fitting(self, at: int, wish: int) -> NodeSet:
        return self._rooms[at].fitting_nodes(wish)

    def narrowed(self, first: int, last: int, wish: int, wide: int, among: NodeSet) -> tuple[NodeSet, int]:
        for at in range(first, last):
            among &= self._rooms[at].fitting_nodes(wish)
            if among.bit_count() < wide:
                return among, at
        return among, last

    def after(self, first: int, narrow: int, wish: int, wide: int, among: NodeSet) -> int:
        return first + 1 if self._rooms[narrow].fitting_nodes(wish).bit_count() >= wide else narrow + 1

    def take(self, first: int, last: int, share: PlannedShare) -> None:
        for at in range(first, last):
            self._rooms[at].take(share)

    def split(self, at: int) -> None:
        self._rooms.insert(at, self._rooms[at - 1].copy())

    def forget(self, past: int) -> None:
        del self._rooms[:past]

    def becomes(self, at: int, room: NodeResources, back: list[PlannedShare]) -> bool:
        mine = self._rooms[at].room.copy()
        for share in back:
            mine.give(share.places, share.need)
        return mine.free == room.free and mine.usable == room.usable


class NodeSetHistory:
    """One set of nodes by room, kept as what changes from each room to the next: so who takes some of it for a while
    changes two rooms, however many lie between.

    Rooms stand in blocks; of each, the set in its first room is kept, and which nodes come or go in it
    (perhaps more)."""

    __slots__ = ("changes", "heads", "moved")

    def __init__(self, sets: list[NodeSet], blocks: list[int]) -> None:
        # The first one means nothing
        self.changes: list[NodeSet] = [0, *(now ^ before for before, now in pairwise(sets))]
        self.heads: list[NodeSet] = [sets[begins] for begins in blocks[:-1]]
        self.moved: list[NodeSet] = [self._changed_nodes(begins, ends) for begins, ends in pairwise(blocks)]

    def _changed_nodes(self, begins: int, ends: int) -> NodeSet:
        nodes = 0
        for change in self.changes[begins:ends]:
            nodes |= change
        return nodes

    def of(self, at: int, block: int, begins: int) -> NodeSet:
        """The set in this room, which is in a block that begins there."""
        nodes = self.heads[block]
        for change in self.changes[begins + 1 : at + 1]:
            if change:
                nodes ^= change
        return nodes

    def remove_nodes(self, first: int, last: int, nodes: NodeSet, blocks: list[int], block: int) -> None:
        """From each of these rooms, in all of which they are; the first one is in that block."""
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
        """Two blocks of one."""
        self.heads.insert(block + 1, self.of(middle, block, begins))
        self.moved[block : block + 1] = [self._changed_nodes(begins, middle), self._changed_nodes(middle, ends)]

    def forget(self, past: int, block: int, begins: int) -> None:
        """The first so many rooms; the next one is in that block."""
        self.heads[block] = self.of(past, block, begins)
        if block:
            del self.heads[:block], self.moved[:block]
        del self.changes[:past]


class GpuOnlyTimeline(ResourceTimeline):
    """Rooms in which only GPUs can be short: for each number of GPUs, the nodes that have as many free or more.

    Who takes whole nodes closes them, which is one set for all numbers."""

    __slots__ = ("_blocks", "_most", "_open", "_room", "_rows", "_usable", "_wishes")

    def __init__(self, like: NodeResources, wishes: list[ResourceRequest], rooms: list[list[NodeSet]]) -> None:
        self._wishes = wishes
        self._most = like.most
        self._usable = rooms[0][0]  # the same in all rooms
        self._blocks = [
            *range(0, len(rooms), STEPS_PER_BLOCK),
            len(rooms),
        ]  # where they begin, and where the last one ends
        # By number of GPUs; the first one is for those that nobody has whole
        self._rows = [NodeSetHistory([sets[gpus] for sets in rooms], self._blocks) for gpus in range(like.most + 1)]
        self._open = self._rows[0]
        self._room = like.with_free_sets(rooms[0])

    def _block_of(self, at: int) -> int:
        """Where this room is."""
        return bisect_right(self._blocks, at) - 1

    def whole(self, at: int) -> NodeResources:
        self._room.set_free_sets(self._free_sets(at))
        return self._room

    def usable(self, at: int) -> NodeSet:
        return self._usable

    def fitting(self, at: int, wish: int) -> NodeSet:
        gpus = self._wishes[wish].gpus
        if not gpus:
            return self._usable
        if gpus > self._most:
            return 0
        block = self._block_of(at)
        begins = self._blocks[block]
        return self._rows[gpus].of(at, block, begins) & self._open.of(at, block, begins)

    def narrowed(self, first: int, last: int, wish: int, wide: int, among: NodeSet) -> tuple[NodeSet, int]:
        among &= self.fitting(first, wish)
        if among.bit_count() < wide:
            return among, first
        gpus, blocks = self._wishes[wish].gpus, self._blocks
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
                    # Who is there and changes goes
                    if lost := among & (changes[at] | closings[at]):
                        among ^= lost
                        if among.bit_count() < wide:
                            return among, at
                    at += 1
            at = ends
        return among, last

    def after(self, first: int, narrow: int, wish: int, wide: int, among: NodeSet) -> int:
        gpus = self._wishes[wish].gpus
        if not 0 < gpus <= self._most:
            return len(self._open.changes)
        if narrow == first:
            return self._next_wide_step(first, gpus, wide, among)
        changes, closings = self._rows[gpus].changes, self._open.changes
        among &= self.fitting(narrow, wish)
        if among.bit_count() < wide:
            return narrow + 1
        for at in range(narrow, first + 1, -1):
            if lost := among & (changes[at] | closings[at]):
                among ^= lost
                if among.bit_count() < wide:
                    return at
        return first + 1

    def _next_wide_step(self, narrow: int, gpus: int, wide: int, among: NodeSet) -> int:
        """The next room in which enough fit it."""
        changes, closings = self._rows[gpus].changes, self._open.changes
        block = self._block_of(narrow)
        begins = self._blocks[block]
        there = self._rows[gpus].of(narrow, block, begins)
        opened = self._open.of(narrow, block, begins)
        for at in range(narrow + 1, len(changes)):
            change, closing = changes[at], closings[at]
            if change or closing:
                there ^= change
                opened ^= closing
                if (there & opened & among).bit_count() >= wide:
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
        """Until when the node has just so many, and the block of that."""
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
        """From this room on, after so many."""
        if not self._rows[had].changes[at] & node:
            while had < self._most and self._rows[had + 1].changes[at] & node:
                had += 1
            return had
        while had and self._rows[had].changes[at] & node:
            had -= 1
        return had

    def split(self, at: int) -> None:
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

    def becomes(self, at: int, room: NodeResources, back: list[PlannedShare]) -> bool:
        mine = self._free_sets(at)
        for share in back:
            for gpus, nodes in share.sets:
                for free in range(len(mine) - 1, 0, -1):
                    mine[free] |= nodes & mine[max(0, free - gpus)]
        return mine == room.nodes_with_at_least()

    def _free_sets(self, at: int) -> list[NodeSet]:
        block = self._block_of(at)
        begins = self._blocks[block]
        opened = self._open.of(at, block, begins)
        return [self._usable, *(row.of(at, block, begins) & opened for row in self._rows[1:])]


class PlannedShare:
    """What a job takes of a room: its places, and the same as sets of nodes by how many GPUs it has on each."""

    __slots__ = ("need", "places", "sets")

    def __init__(self, places: GpuPlacement, need: ResourceRequest) -> None:
        self.places = places
        self.need = need
        sets: dict[int, NodeSet] = {}
        for node, gpus in places:
            sets[gpus] = sets.get(gpus, 0) | 1 << node
        self.sets = list(sets.items())
