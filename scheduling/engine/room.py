"""The free room of the nodes: what fits where, and what is left after it.

A set of nodes is an integer, bit n for node n. `by_free[g]` is the set of usable nodes with exactly g free GPUs and
`levels` has bit g set when that set is not empty, so the fullest node that still fits is found by two shifts.
Which GPUs of a node a job gets is chosen by the caller at the end: to a policy the GPUs of one node are alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from scheduling.engine.cluster import Need, NodeView

Nodes = int  # a set of nodes
Places = tuple[tuple[int, int], ...]  # (node, GPUs on it)
Groups = dict[tuple[str, ...], Nodes]
EVERYWHERE: Nodes = -1
BITS: Final = [[bit for bit in range(8) if byte >> bit & 1] for byte in range(256)]
LEAF = attrgetter("pod", "leaf", "nic_type")
MOST_AMPLE = 16


class Room:
    def __init__(self, nodes: Iterable[NodeView]) -> None:
        self.nodes = tuple(nodes)
        self.free = [len(node.free_gpus) for node in self.nodes]
        self.cpus = [node.free_cpus for node in self.nodes]
        self.memory_mb = [node.free_memory_mb for node in self.nodes]
        self.most = max((max(node.gpus, len(node.free_gpus)) for node in self.nodes), default=0)
        self.whole = sum(node.gpus for node in self.nodes), sum(self.cpus), sum(self.memory_mb)
        self.by_free: list[Nodes] = [0] * (self.most + 1)
        self.levels = 0
        self.usable: Nodes = (1 << len(self.nodes)) - 1
        self.free_gpus = 0
        self._open_all()
        leaves = self._leaves()
        self.leaves = _by_name(leaves)
        self.leaf_of = [0] * len(self.nodes)
        for leaf, together in enumerate(self.leaves):
            for number in listed(together):
                self.leaf_of[number] = leaf
        pods, kinds = (_merged(leaves, keep) for keep in ((0, 2), (2,)))
        self.nearness = self.leaves, _by_name(pods), _by_name(kinds)  # the nearest first
        self.widest = tuple(max(map(int.bit_count, groups), default=0) for groups in self.nearness)  # nodes in one
        self.bound: dict[str, Nodes] = {}  # virtual cluster -> the nodes on which its jobs run
        self._jobs_of: dict[str, list[int]] = {}  # how many of them, by node
        # CPUs and memory asked of a node -> the nodes that have them; for the first so many that somebody asked for
        self._ample: dict[tuple[int, int], Nodes] = {}
        self.unsettled: Sequence[Any] = ()  # jobs of this turn, that nobody has been told of: they may still be moved

    def _open_all(self) -> None:
        with_free: list[list[int]] = [[] for _ in self.by_free]
        for number, free in enumerate(self.free):
            with_free[free].append(number)
        for free, numbers in enumerate(with_free):
            if numbers:
                self.by_free[free] = gathered(numbers)
                self.levels |= 1 << free
                self.free_gpus += free * len(numbers)

    def _leaves(self) -> Groups:
        groups: dict[tuple[str, ...], list[int]] = {}
        for number, node in enumerate(self.nodes):
            name = LEAF(node)
            if (together := groups.get(name)) is None:
                groups[name] = [number]
            else:
                together.append(number)
        return {name: gathered(numbers) for name, numbers in groups.items()}

    def _twin(self) -> Room:
        """The same nodes; what is free on them is to be said yet."""
        other = Room(())
        other.nodes, other.most, other.whole = self.nodes, self.most, self.whole
        other.leaves, other.nearness, other.widest = self.leaves, self.nearness, self.widest
        other.leaf_of = self.leaf_of
        other.levels, other.usable, other.free_gpus = self.levels, self.usable, self.free_gpus
        other.bound, other._jobs_of, other._ample = self.bound, self._jobs_of, self._ample
        return other

    def copy(self) -> Room:
        """Another room to try things in."""
        other = self._twin()
        other.free, other.cpus, other.memory_mb = list(self.free), list(self.cpus), list(self.memory_mb)
        other.by_free = list(self.by_free)
        other._ample = dict(self._ample)
        other.unsettled = ()
        other.bound = dict(self.bound)
        other._jobs_of = {pool: list(jobs) for pool, jobs in self._jobs_of.items()}
        return other

    def at_least(self) -> list[Nodes]:
        """For each number of GPUs, the usable nodes that have as many free or more."""
        found, sets = 0, []
        for nodes in reversed(self.by_free):
            found |= nodes
            sets.append(found)
        return sets[::-1]

    def outlined(self, at_least: Sequence[Nodes]) -> Room:
        """The same nodes with other GPUs free, given as sets, for placements that look at nothing else."""
        other = self._twin()
        other.free, other.cpus, other.memory_mb, other._ample = [], [], [], {}
        other.unsettled = ()
        other.draw(at_least)
        return other

    def draw(self, at_least: Sequence[Nodes]) -> None:
        """From now on these are free; for rooms of which nobody asks more than placements do."""
        self.by_free, self.levels, self.free_gpus = [], 0, 0
        self.usable = at_least[0]
        for free, nodes in enumerate(at_least):
            exactly = nodes ^ at_least[free + 1] if free + 1 < len(at_least) else nodes
            self.by_free.append(exactly)
            if exactly:
                self.levels |= 1 << free
                self.free_gpus += free * exactly.bit_count()

    def held_before(self, places: Places, need: Need) -> None:
        """Somebody held this already when the room was made of what was free."""
        gpus, cpus, memory_mb = self.whole
        self.whole = gpus, cpus + len(places) * need.cpus, memory_mb + len(places) * need.memory_mb
        if need.pool:
            self.bind(places, need.pool, 1)

    # Nodes that come and go

    def open(self, number: int) -> None:
        """From now on the node takes work."""
        if not self.usable >> number & 1:
            self.usable |= 1 << number
            free = self.free[number]
            self.by_free[free] |= 1 << number
            self.levels |= 1 << free
            self.free_gpus += free

    def close(self, number: int) -> None:
        """No new work; what is held there stays held, and what comes free stays unused until it is opened."""
        if self.usable >> number & 1:
            self.usable ^= 1 << number
            free = self.free[number]
            self.by_free[free] ^= 1 << number
            if not self.by_free[free]:
                self.levels ^= 1 << free
            self.free_gpus -= free

    # Taking and giving back

    def take(self, places: Places, need: Need) -> None:
        self.move(places, need, -1)

    def give(self, places: Places, need: Need) -> None:
        self.move(places, need, 1)

    def move(self, places: Places, need: Need, sign: int) -> None:
        """Take (-1) or give back (1)."""
        if not need.bare:
            for number, _ in places:
                self.cpus[number] = cpus = self.cpus[number] + sign * need.cpus
                self.memory_mb[number] = memory_mb = self.memory_mb[number] + sign * need.memory_mb
                for asked, nodes in self._ample.items():
                    if nodes >> number & 1 != (cpus >= asked[0] and memory_mb >= asked[1]):
                        self._ample[asked] = nodes ^ 1 << number
        if need.pool:
            self.bind(places, need.pool, -sign)
        by_free, free_of, usable = self.by_free, self.free, self.usable
        for number, gpus in places:
            bit = 1 << number
            gpus *= sign
            free = free_of[number]
            free_of[number] = after = free + gpus
            if usable & bit:
                by_free[free] = left = by_free[free] ^ bit
                if not left:
                    self.levels ^= 1 << free
                by_free[after] |= bit
                self.levels |= 1 << after
                self.free_gpus += gpus

    def bind(self, places: Places, pool: str, more: int) -> None:
        """More (1) or fewer (-1) jobs of a virtual cluster run there."""
        jobs = self._jobs_of.setdefault(pool, [0] * len(self.nodes))
        nodes = self.bound.get(pool, 0)
        for number, _ in places:
            jobs[number] += more
            nodes = nodes | 1 << number if jobs[number] else nodes & ~(1 << number)
        self.bound[pool] = nodes

    # Questions

    def able(self, need: Need) -> Nodes:
        """The nodes whose make is the one that is asked for, whatever is free on them."""
        if not need.gpu_model and not need.nic_type and not need.node:
            return EVERYWHERE
        return sum(
            1 << number
            for number, node in enumerate(self.nodes)
            if need.gpu_model in ("", node.gpu_model)
            and need.nic_type in ("", node.nic_type)
            and need.node in ("", node.name)
        )

    def spacious(self, need: Need, nodes: Nodes) -> Nodes:
        """Those of the nodes whose free CPUs and memory suffice."""
        if need.bare:
            return nodes
        asked = need.cpus, need.memory_mb
        if (ample := self._ample.get(asked)) is not None:
            return nodes & ample
        if len(self._ample) < MOST_AMPLE:
            self._ample[asked] = ample = self._with_beside(need, (1 << len(self.nodes)) - 1)
            return nodes & ample
        return self._with_beside(need, nodes)

    def _with_beside(self, need: Need, nodes: Nodes) -> Nodes:
        cpus, memory_mb = need.cpus, need.memory_mb
        there = zip(reversed(self.cpus), reversed(self.memory_mb), strict=True)
        enough = ["1" if free >= cpus and free_mb >= memory_mb else "0" for free, free_mb in there]
        return nodes & int("".join(enough) or "0", 2)

    def lowest(self, need: Need, nodes: Nodes) -> int | None:
        """The first of the nodes whose free CPUs and memory suffice."""
        nodes = self.spacious(need, nodes)
        return (nodes & -nodes).bit_length() - 1 if nodes else None

    def fitting(self, need: Need, among: Nodes = EVERYWHERE) -> Nodes:
        """The nodes on which one share of it fits now."""
        found = 0
        for more in members(self.levels >> need.gpus):
            found |= self.by_free[need.gpus + more]
        return self.spacious(need, found & among)

    def free_gpus_among(self, among: Nodes) -> int:
        return sum(free * (nodes & among).bit_count() for free, nodes in enumerate(self.by_free))


def _by_name(groups: Groups) -> tuple[Nodes, ...]:
    return tuple(groups[name] for name in sorted(groups))


def _merged(leaves: Groups, keep: tuple[int, ...]) -> Groups:
    """With so much of their names."""
    groups: Groups = {}
    for leaf, nodes in leaves.items():
        name = tuple(leaf[part] for part in keep)
        groups[name] = groups.get(name, 0) | nodes
    return groups


def members(nodes: Nodes) -> Iterator[int]:
    while nodes:
        low = nodes & -nodes
        yield low.bit_length() - 1
        nodes ^= low


def gathered(numbers: list[int]) -> Nodes:
    """The set of them, in order as they come: at once, for many small steps with large sets take longer."""
    bits = bytearray(numbers[-1] // 8 + 1)
    for number in numbers:
        bits[number // 8] |= 1 << number % 8
    return int.from_bytes(bits, "little")


def listed(nodes: Nodes) -> list[int]:
    """The same at once, which is quicker where there are many."""
    found: list[int] = []
    for at, byte in enumerate(nodes.to_bytes((nodes.bit_length() + 7) // 8, "little")):
        if byte:
            for bit in BITS[byte]:
                found.append(8 * at + bit)
    return found


def numbered(room: Room, places: Places, free: Mapping[int, list[int]]) -> dict[int, tuple[int, ...]]:
    """Node id -> GPU indices, the lowest free ones; `free` (by node number) is used up."""
    chosen = {}
    for number, gpus in places:
        left = free[number]
        chosen[room.nodes[number].id] = tuple(left[:gpus])
        del left[:gpus]
    return chosen
