"""The rooms ahead of a plan: `Outlines` where only GPUs can be short, `Stretches` elsewhere.

Both answer the same questions (`Future`), and give the same plans.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from scheduling.engine.cluster import Need
from scheduling.engine.room import EVERYWHERE, Nodes, Places, Room

BLOCK = 16  # rooms that are summed up together


class Future:
    """The rooms of a plan, by time. A wish is a number in `wishes`, which whoever plans adds to."""

    __slots__ = ()

    def whole(self, at: int) -> Room:
        """As placements look at it; good until the next one is asked for."""
        raise NotImplementedError

    def usable(self, at: int) -> Nodes:
        raise NotImplementedError

    def fitting(self, at: int, wish: int) -> Nodes:
        """The nodes that fit this wish then."""
        raise NotImplementedError

    def narrowed(self, first: int, last: int, wish: int, wide: int, among: Nodes) -> tuple[Nodes, int]:
        """Those that fit it in all of these rooms, and `last`; or, where they are fewer than `wide`, the first room in
        which they are."""
        raise NotImplementedError

    def after(self, first: int, narrow: int, wish: int, wide: int, among: Nodes) -> int:
        """Where to look next: who begins in `first` finds too few in `narrow`, and so does everybody who begins before
        this room."""
        raise NotImplementedError

    def take(self, first: int, last: int, share: Share) -> None:
        """From each of these rooms."""
        raise NotImplementedError

    def split(self, at: int) -> None:
        """There is one more, in which for now everything is as in the one before."""
        raise NotImplementedError

    def forget(self, past: int) -> None:
        """The first so many."""
        raise NotImplementedError

    def becomes(self, at: int, room: Room, back: list[Share]) -> bool:
        """Whether it is that room once these have given back what they took."""
        raise NotImplementedError


class Stretch:
    """The room from one time of the plan to the next, and the nodes that fit what was asked for before.

    What is taken can only narrow them, and only on the nodes that are taken: so nobody looks at all nodes again."""

    __slots__ = ("_fitting", "_wishes", "room")

    def __init__(self, room: Room, wishes: list[Need], fitting: list[Nodes]) -> None:
        self.room = room
        self._wishes = wishes
        self._fitting = fitting  # as far as anybody asked

    def fitting(self, wish: int) -> Nodes:
        known = self._fitting
        while len(known) <= wish:
            known.append(self.room.fitting(self._wishes[len(known)]))
        return known[wish]

    def take(self, share: Share) -> None:
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

    def copy(self) -> Stretch:
        return Stretch(self.room.copy(), self._wishes, list(self._fitting))


class Stretches(Future):
    __slots__ = ("_rooms",)

    def __init__(self, rooms: list[Room], wishes: list[Need]) -> None:
        self._rooms = [Stretch(room, wishes, []) for room in rooms]

    def whole(self, at: int) -> Room:
        return self._rooms[at].room

    def usable(self, at: int) -> Nodes:
        return self._rooms[at].room.usable

    def fitting(self, at: int, wish: int) -> Nodes:
        return self._rooms[at].fitting(wish)

    def narrowed(self, first: int, last: int, wish: int, wide: int, among: Nodes) -> tuple[Nodes, int]:
        for at in range(first, last):
            among &= self._rooms[at].fitting(wish)
            if among.bit_count() < wide:
                return among, at
        return among, last

    def after(self, first: int, narrow: int, wish: int, wide: int, among: Nodes) -> int:
        return first + 1 if self._rooms[narrow].fitting(wish).bit_count() >= wide else narrow + 1

    def take(self, first: int, last: int, share: Share) -> None:
        for at in range(first, last):
            self._rooms[at].take(share)

    def split(self, at: int) -> None:
        self._rooms.insert(at, self._rooms[at - 1].copy())

    def forget(self, past: int) -> None:
        del self._rooms[:past]

    def becomes(self, at: int, room: Room, back: list[Share]) -> bool:
        mine = self._rooms[at].room.copy()
        for share in back:
            mine.give(share.places, share.need)
        return mine.free == room.free and mine.usable == room.usable


class Outlines(Future):
    """Rooms in which only GPUs can be short: for each number of GPUs, the nodes that have as many free or more.

    Who takes whole nodes closes them, which is one set for all numbers. Rooms stand in blocks; what is there all the
    time of a block is worked out when it is asked for, so a long job looks at few rooms. A set that is the same in one
    room after the other is one object, and what is found out about it is not looked for again."""

    __slots__ = ("_blocks", "_kept", "_kept_open", "_levels", "_open", "_room", "_wishes")

    def __init__(self, like: Room, wishes: list[Need], rooms: list[list[Nodes]]) -> None:
        self._wishes = wishes
        self._levels: list[list[Nodes]] = [[sets[gpus] for sets in rooms] for gpus in range(like.most + 1)]
        self._open: list[Nodes] = list(self._levels[0])  # by room, the nodes that nobody has whole
        self._room = like.outlined(rooms[0])
        self._blocks = [*range(0, len(rooms), BLOCK), len(rooms)]  # where they begin, and where the last one ends
        blocks = len(self._blocks) - 1
        # By block, what `_levels` and `_open` say of all of its rooms; everywhere: not worked out
        self._kept: list[list[Nodes]] = [[EVERYWHERE] * blocks for _ in self._levels]
        self._kept_open: list[Nodes] = [EVERYWHERE] * blocks

    def whole(self, at: int) -> Room:
        self._room.draw(self._sets(at))
        return self._room

    def usable(self, at: int) -> Nodes:
        return self._levels[0][at]

    def fitting(self, at: int, wish: int) -> Nodes:
        gpus = self._wishes[wish].gpus
        if not gpus:
            return self._levels[0][at]
        return self._levels[gpus][at] & self._open[at] if gpus < len(self._levels) else 0

    def narrowed(self, first: int, last: int, wish: int, wide: int, among: Nodes) -> tuple[Nodes, int]:
        gpus = self._wishes[wish].gpus
        if gpus >= len(self._levels):
            return 0, first
        rows, kept = self._levels[gpus], self._kept[gpus]
        opened, kept_open = (self._open, self._kept_open) if gpus else (rows, kept)
        blocks = self._blocks
        block = bisect_left(blocks, first)
        seen = seen_open = EVERYWHERE
        at = first
        while at < last:
            if at == blocks[block]:
                block += 1
                if blocks[block] <= last:
                    always = self._always(rows, kept, block - 1) & self._always(opened, kept_open, block - 1) & among
                    if always.bit_count() >= wide:
                        among, at = always, blocks[block]
                        continue
            one, other = rows[at], opened[at]
            if one is not seen or other is not seen_open:
                seen, seen_open = one, other
                among &= one & other
                if among.bit_count() < wide:
                    return among, at
            at += 1
        return among, last

    def after(self, first: int, narrow: int, wish: int, wide: int, among: Nodes) -> int:
        gpus = self._wishes[wish].gpus
        if gpus >= len(self._levels):
            return len(self._open)
        rows = self._levels[gpus]
        opened = self._open if gpus else rows
        seen = seen_open = EVERYWHERE
        for at in range(narrow, first, -1):
            one, other = rows[at], opened[at]
            if one is not seen or other is not seen_open:
                seen, seen_open = one, other
                among &= one & other
                if among.bit_count() < wide:
                    return at + 1
        return first + 1

    def _always(self, rows: list[Nodes], kept: list[Nodes], block: int) -> Nodes:
        nodes = kept[block]
        if nodes == EVERYWHERE:
            seen = EVERYWHERE
            for at in range(self._blocks[block], self._blocks[block + 1]):
                if rows[at] is not seen:
                    seen = rows[at]
                    nodes &= seen
            kept[block] = nodes
        return nodes

    def take(self, first: int, last: int, share: Share) -> None:
        for gpus, nodes in share.sets:
            if not gpus:
                continue
            if gpus >= len(self._levels) - 1:
                self._close(first, last, nodes)
            elif nodes & (nodes - 1):
                self._take_from_many(first, last, gpus, nodes)
            else:
                self._take_from_one(first, last, gpus, nodes)

    def _close(self, first: int, last: int, nodes: Nodes) -> None:
        _narrow(self._open, first, last, nodes)
        self._lose(self._kept_open, first, last, nodes)

    def _take_from_one(self, first: int, last: int, gpus: int, node: Nodes) -> None:
        at = first
        while at < last:
            had = self._had(at, node)
            same = self._same(at, last, had, node)
            for lost in range(had - gpus + 1, had + 1):
                _narrow(self._levels[lost], at, same, node)
                self._lose(self._kept[lost], at, same, node)
            at = same

    def _had(self, at: int, node: Nodes) -> int:
        had = len(self._levels) - 1
        while not self._levels[had][at] & node:
            had -= 1
        return had

    def _same(self, first: int, last: int, had: int, node: Nodes) -> int:
        """Until when the node has just so many."""
        levels = self._levels
        last = _until(levels[had], first, last, node, there=True)
        return _until(levels[had + 1], first, last, node, there=False) if had + 1 < len(levels) else last

    def _lose(self, kept: list[Nodes], first: int, last: int, nodes: Nodes) -> None:
        for block in self._touched(first, last):
            if kept[block] != EVERYWHERE:
                kept[block] ^= kept[block] & nodes

    def _take_from_many(self, first: int, last: int, gpus: int, nodes: Nodes) -> None:
        levels = self._levels
        for at in range(first, last):
            for free in range(1, len(levels)):
                had = levels[free][at] & nodes
                if had:
                    levels[free][at] ^= had ^ (had & levels[free + gpus][at] if free + gpus < len(levels) else 0)
        for block in self._touched(first, last):
            for kept in self._kept:
                kept[block] = EVERYWHERE

    def _touched(self, first: int, last: int) -> range:
        return range(bisect_right(self._blocks, first) - 1, bisect_left(self._blocks, last))

    def split(self, at: int) -> None:
        for rows in (*self._levels, self._open):
            rows.insert(at, rows[at - 1])
        blocks = self._blocks
        block = bisect_right(blocks, at - 1) - 1
        for following in range(block + 1, len(blocks)):
            blocks[following] += 1
        if blocks[block + 1] - blocks[block] > 2 * BLOCK:
            blocks.insert(block + 1, blocks[block] + BLOCK)
            for kept in (*self._kept, self._kept_open):
                kept[block : block + 1] = [EVERYWHERE, EVERYWHERE]

    def forget(self, past: int) -> None:
        for rows in (*self._levels, self._open):
            del rows[:past]
        blocks = self._blocks
        gone = bisect_right(blocks, past) - 1
        for kept in (*self._kept, self._kept_open):
            del kept[:gone]
            kept[0] = EVERYWHERE
        self._blocks = [0, *(begins - past for begins in blocks[gone + 1 :])]

    def becomes(self, at: int, room: Room, back: list[Share]) -> bool:
        mine = self._sets(at)
        for share in back:
            for gpus, nodes in share.sets:
                for free in range(len(mine) - 1, 0, -1):
                    mine[free] |= nodes & mine[max(0, free - gpus)]
        return mine == room.at_least()

    def _sets(self, at: int) -> list[Nodes]:
        opened = self._open[at]
        return [rows[at] & opened if gpus else rows[at] for gpus, rows in enumerate(self._levels)]


def _until(rows: list[Nodes], first: int, last: int, node: Nodes, *, there: bool) -> int:
    """As long as the node is in the sets, or is not."""
    seen = rows[first]
    at = first
    for now in rows[first:last]:
        if now is not seen:
            if (now & node != 0) != there:
                return at
            seen = now
        at += 1
    return last


def _narrow(rows: list[Nodes], first: int, last: int, nodes: Nodes) -> None:
    """These are in all of the sets, and leave them."""
    seen = left = EVERYWHERE
    narrowed: list[Nodes] = []
    for now in rows[first:last]:
        if now is not seen:
            seen, left = now, now ^ nodes
        narrowed.append(left)
    rows[first:last] = narrowed


class Share:
    """What a job takes of a room: its places, and the same as sets of nodes by how many GPUs it has on each."""

    __slots__ = ("need", "places", "sets")

    def __init__(self, places: Places, need: Need) -> None:
        self.places = places
        self.need = need
        sets: dict[int, Nodes] = {}
        for node, gpus in places:
            sets[gpus] = sets.get(gpus, 0) | 1 << node
        self.sets = list(sets.items())
