"""Free resources of the nodes: what fits where, and what remains after a placement.

A set of nodes is an integer, bit n for node n. `by_free[g]` is the set of usable nodes with exactly g free GPUs, and
`levels` has bit g set if that set is not empty, so two shifts find the fullest node that still fits. The caller selects
the GPU indices at the end, because all GPUs of a node are equal to a policy.

A GPU is shared while jobs hold thousandths of it (`ResourceRequest.gpu_milli`). Then it is not free for whole-GPU jobs,
and `shared` has what is left of it. A position in `shared` stays the same GPU until it is wholly free again, also in
copies for other times, where jobs have ended or start. The MIG slices of a node are in `shared` too, each with the
thousandths of its profile, or 0 while it is held. A node with slices has no other shared GPUs.

The power of a gang is divided evenly among its nodes. For each budget of a part of the cluster, at most as many nodes
are offered as parts of the job fit in what is left, so a placement may choose any of them. Budgets are applied from the
smallest to the largest, which offers the most nodes if racks lie in leaves and leaves in pods. A node that sleeps needs
its idle power too, and is offered after awake ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from jobs.core.gpu_models import accepts_model
from jobs.core.gpu_shares import WHOLE_GPU, is_whole_shards
from scheduling.engine.cluster import NodeView, PowerBudget, ResourceRequest

NodeSet = int  # a set of nodes
# (node, GPUs on it); for a share (node, position of the shared GPU in `NodeResources.shared`)
GpuPlacement = tuple[tuple[int, int], ...]
NodeGroups = dict[tuple[str, ...], NodeSet]
ALL_NODES: NodeSet = -1
BITS_OF_BYTE: Final = [[bit for bit in range(8) if byte >> bit & 1] for byte in range(256)]
LEAF_KEY = attrgetter("pod", "leaf", "nic_type")
MAX_CACHED_SHAPES = 16
UNLIMITED_WATTS: Final = 1 << 60


class NodeResources:
    """The free GPUs, CPUs and memory of a set of nodes, indexed by number of free GPUs, and what is left of power
    budgets.
    """

    def __init__(
        self,
        nodes: Iterable[NodeView],
        power: PowerBudget | None = None,
        held_watts: int = 0,
        areas: PowerAreas | None = None,
    ) -> None:
        """`power` is the budget of all nodes, of which running jobs hold `held_watts`; `areas` has those of parts."""
        self.power = power
        self.watts_left = power.watts - held_watts if power else UNLIMITED_WATTS
        self.areas = areas
        self.nodes = tuple(nodes)
        self.free = [len(node.free_gpus) for node in self.nodes]
        self.cpus = [node.free_cpus for node in self.nodes]
        self.memory_mb = [node.free_memory_mb for node in self.nodes]
        self.most = max((max(node.gpus, len(node.free_gpus)) for node in self.nodes), default=0)
        self.whole = sum(node.gpus for node in self.nodes), sum(self.cpus), sum(self.memory_mb)
        self.by_free: list[NodeSet] = [0] * (self.most + 1)
        self.levels = 0
        self.usable: NodeSet = (1 << len(self.nodes)) - 1
        self.free_gpus = 0
        self._index_free_nodes()
        leaves = self._nodes_by_leaf()
        self.leaves = _sorted_groups(leaves)
        self.leaf_of = [0] * len(self.nodes)
        for leaf, together in enumerate(self.leaves):
            for number in node_list(together):
                self.leaf_of[number] = leaf
        pods, kinds = (_merge_groups(leaves, keep) for keep in ((0, 2), (2,)))
        self.nearness = self.leaves, _sorted_groups(pods), _sorted_groups(kinds)  # the closest grouping first
        self.widest = tuple(
            max(map(int.bit_count, groups), default=0) for groups in self.nearness
        )  # most nodes in one group
        self.bound: dict[str, NodeSet] = {}  # virtual cluster -> nodes on which its jobs run
        self._jobs_of: dict[str, list[int]] = {}  # virtual cluster -> its number of jobs per node
        # (CPUs, memory) per node -> nodes that have both free; cached for the first `MAX_CACHED_SHAPES` shapes
        self._ample: dict[tuple[int, int], NodeSet] = {}
        # Node -> free thousandths of each of its shared GPUs. One that is wholly free again counts as a free GPU, and
        # the next share that needs a GPU takes its position
        self.shared: dict[int, list[int]] = {
            number: [left for _, left in node.shared_gpus] for number, node in enumerate(self.nodes) if node.shared_gpus
        }
        self.one_shared = sum(1 << number for number, node in enumerate(self.nodes) if node.shares_one_gpu)
        self.unsettled: Sequence[Any] = ()  # jobs started in this turn but not yet reported, so they may still be moved

    @property
    def counts_power(self) -> bool:
        """Whether there is any power budget."""
        return self.power is not None or self.areas is not None

    def _index_free_nodes(self) -> None:
        with_free: list[list[int]] = [[] for _ in self.by_free]
        for number, free in enumerate(self.free):
            with_free[free].append(number)
        for free, numbers in enumerate(with_free):
            if numbers:
                self.by_free[free] = node_set_of(numbers)
                self.levels |= 1 << free
                self.free_gpus += free * len(numbers)

    def _nodes_by_leaf(self) -> NodeGroups:
        groups: dict[tuple[str, ...], list[int]] = {}
        for number, node in enumerate(self.nodes):
            name = LEAF_KEY(node)
            if (together := groups.get(name)) is None:
                groups[name] = [number]
            else:
                together.append(number)
        return {name: node_set_of(numbers) for name, numbers in groups.items()}

    def _copy_topology(self) -> NodeResources:
        """A copy for the same nodes; the caller sets what is free on them."""
        other = NodeResources(())
        other.nodes, other.most, other.whole = self.nodes, self.most, self.whole
        other.power, other.watts_left = self.power, self.watts_left
        other.areas = self.areas.copy() if self.areas else None
        other.leaves, other.nearness, other.widest = self.leaves, self.nearness, self.widest
        other.leaf_of, other.one_shared = self.leaf_of, self.one_shared
        other.levels, other.usable, other.free_gpus = self.levels, self.usable, self.free_gpus
        other.bound, other._jobs_of, other._ample = self.bound, self._jobs_of, self._ample
        return other

    def copy(self) -> NodeResources:
        """An independent copy for trying placements."""
        other = self._copy_topology()
        other.free, other.cpus, other.memory_mb = list(self.free), list(self.cpus), list(self.memory_mb)
        other.by_free = list(self.by_free)
        other._ample = dict(self._ample)
        other.shared = {number: list(left) for number, left in self.shared.items()}
        other.unsettled = ()
        other.bound = dict(self.bound)
        other._jobs_of = {pool: list(jobs) for pool, jobs in self._jobs_of.items()}
        return other

    def nodes_with_at_least(self) -> list[NodeSet]:
        """For each number of GPUs, the usable nodes that have that many free or more."""
        nodes_so_far, sets = 0, []
        for nodes in reversed(self.by_free):
            nodes_so_far |= nodes
            sets.append(nodes_so_far)
        return sets[::-1]

    def with_free_sets(self, at_least: Sequence[NodeSet]) -> NodeResources:
        """A copy with the free GPUs given as sets. Only for placements that read nothing else."""
        other = self._copy_topology()
        other.free, other.cpus, other.memory_mb, other._ample = [], [], [], {}
        other.unsettled = ()
        other.set_free_sets(at_least)
        return other

    def set_free_sets(self, at_least: Sequence[NodeSet]) -> None:
        """Replace the free GPUs by these sets. Only for copies that placements alone read."""
        self.by_free, self.levels, self.free_gpus = [], 0, 0
        self.usable = at_least[0]
        for free, nodes in enumerate(at_least):
            exactly = nodes ^ at_least[free + 1] if free + 1 < len(at_least) else nodes
            self.by_free.append(exactly)
            if exactly:
                self.levels |= 1 << free
                self.free_gpus += free * exactly.bit_count()

    def add_existing_job(self, places: GpuPlacement, need: ResourceRequest) -> None:
        """Account for a job that already held resources when this object was created."""
        gpus, cpus, memory_mb = self.whole
        self.whole = gpus, cpus + len(places) * need.cpus, memory_mb + len(places) * need.memory_mb
        if need.pool:
            self.count_cluster_jobs(places, need.pool, 1)

    # Opening and closing nodes

    def open(self, number: int) -> None:
        """Let the node accept jobs."""
        if not self.usable >> number & 1:
            self.usable |= 1 << number
            free = self.free[number]
            self.by_free[free] |= 1 << number
            self.levels |= 1 << free
            self.free_gpus += free

    def close(self, number: int) -> None:
        """Stop accepting jobs on the node. Held resources stay held; released ones stay unused until the node is
        opened.
        """
        if self.usable >> number & 1:
            self.usable ^= 1 << number
            free = self.free[number]
            self.by_free[free] ^= 1 << number
            if not self.by_free[free]:
                self.levels ^= 1 << free
            self.free_gpus -= free

    # Taking and releasing

    def take(self, places: GpuPlacement, need: ResourceRequest) -> None:
        self.move(places, need, -1)

    def give(self, places: GpuPlacement, need: ResourceRequest) -> None:
        self.move(places, need, 1)

    def move(self, places: GpuPlacement, need: ResourceRequest, sign: int) -> None:
        """Take (-1) or release (1) the resources of a placement."""
        if not need.needs_only_gpus:
            if need.watts:
                self.move_power(places, need, sign)
            for number, _ in places:
                self.cpus[number] = cpus = self.cpus[number] + sign * need.cpus
                self.memory_mb[number] = memory_mb = self.memory_mb[number] + sign * need.memory_mb
                for shape, nodes in self._ample.items():
                    if nodes >> number & 1 != (cpus >= shape[0] and memory_mb >= shape[1]):
                        self._ample[shape] = nodes ^ 1 << number
        if need.pool:
            self.count_cluster_jobs(places, need.pool, -sign)
        if need.gpu_milli:
            self._move_share(places[0], sign * need.gpu_milli)
        else:
            self._move_gpus(places, sign)

    def move_power(self, places: GpuPlacement, need: ResourceRequest, sign: int) -> None:
        """Take (-1) or release (1) only the power of a placement."""
        self.watts_left += sign * need.watts
        if self.areas:
            self.areas.move(places, need, sign)

    def _move_share(self, place: tuple[int, int], thousandths: int) -> None:
        """Take (negative) or release thousandths of one shared GPU."""
        number, position = place
        left = self.shared.setdefault(number, [])
        while position >= len(left):
            left.append(WHOLE_GPU)
        before = left[position]
        left[position] = after = before + thousandths
        if before == WHOLE_GPU:
            self._move_gpus(((number, 1),), -1)
        elif after == WHOLE_GPU:
            self._move_gpus(((number, 1),), 1)

    def _move_gpus(self, places: GpuPlacement, sign: int) -> None:
        by_free, free_of, usable = self.by_free, self.free, self.usable
        for number, gpus in places:
            bit = 1 << number
            gpus *= sign
            free = free_of[number]
            free_of[number] = after = free + gpus
            if usable & bit:
                by_free[free] = remaining = by_free[free] ^ bit
                if not remaining:
                    self.levels ^= 1 << free
                by_free[after] |= bit
                self.levels |= 1 << after
                self.free_gpus += gpus

    def count_cluster_jobs(self, places: GpuPlacement, pool: str, more: int) -> None:
        """Count one more (1) or one fewer (-1) job of a virtual cluster on these nodes."""
        jobs = self._jobs_of.setdefault(pool, [0] * len(self.nodes))
        nodes = self.bound.get(pool, 0)
        for number, _ in places:
            jobs[number] += more
            nodes = nodes | 1 << number if jobs[number] else nodes & ~(1 << number)
        self.bound[pool] = nodes

    # Queries

    def matching_nodes(self, need: ResourceRequest) -> NodeSet:
        """The nodes with the requested hardware, regardless of what is free on them."""
        if not need.gpu_model and not need.nic_type and not need.node and not need.gpu_milli:
            return ALL_NODES
        return sum(
            1 << number
            for number, node in enumerate(self.nodes)
            if accepts_model(need.gpu_model, node.gpu_model)
            and need.nic_type in ("", node.nic_type)
            and need.node in ("", node.name)
            and (not need.gpu_milli or offers_share(node, need))
        )

    def with_cpu_memory(self, need: ResourceRequest, nodes: NodeSet) -> NodeSet:
        """The nodes of the set that have enough free CPUs and memory, as far as power budgets have room for them."""
        if need.needs_only_gpus:
            return nodes
        if not need.watts:
            return self._with_shape(need, nodes)
        if need.watts > self.watts_left:
            return 0
        fitting = self._with_shape(need, nodes)
        return self.areas.fitting(need, fitting) if self.areas else fitting

    def _with_shape(self, need: ResourceRequest, nodes: NodeSet) -> NodeSet:
        shape = need.cpus, need.memory_mb
        if (ample := self._ample.get(shape)) is not None:
            return nodes & ample
        if len(self._ample) < MAX_CACHED_SHAPES:
            self._ample[shape] = ample = self._scan_cpu_memory(need, (1 << len(self.nodes)) - 1)
            return nodes & ample
        return self._scan_cpu_memory(need, nodes)

    def _scan_cpu_memory(self, need: ResourceRequest, nodes: NodeSet) -> NodeSet:
        cpus, memory_mb = need.cpus, need.memory_mb
        free_pairs = zip(reversed(self.cpus), reversed(self.memory_mb), strict=True)
        enough = ["1" if free >= cpus and free_mb >= memory_mb else "0" for free, free_mb in free_pairs]
        return nodes & int("".join(enough) or "0", 2)

    def first_fitting_node(self, need: ResourceRequest, nodes: NodeSet) -> int | None:
        """The first node of the set that has enough free CPUs and memory."""
        nodes = self.with_cpu_memory(need, nodes)
        return (nodes & -nodes).bit_length() - 1 if nodes else None

    def fitting_nodes(self, need: ResourceRequest, among: NodeSet = ALL_NODES) -> NodeSet:
        """The nodes on which one part of the request fits now."""
        fitting, gpus = 0, need.gpus
        if need.mig_profile:
            return self.with_cpu_memory(need, self.nodes_with_slice(need) & among)
        if need.gpu_milli:
            fitting, gpus = self._nodes_with_shared_gpu(need.gpu_milli), 1
        for more in members(self.levels >> gpus):
            fitting |= self.by_free[gpus + more]
        if need.gpu_milli and self.one_shared:
            fitting &= ~sum(1 << n for n in members(fitting & self.one_shared) if not self.shared_places(n, need))
        return self.with_cpu_memory(need, fitting & among)

    def _nodes_with_shared_gpu(self, thousandths: int) -> NodeSet:
        """The usable nodes with a shared GPU that has this much left."""
        nodes = 0
        for number, left in self.shared.items():
            if any(thousandths <= free < WHOLE_GPU for free in left):
                nodes |= 1 << number
        return nodes & self.usable

    def nodes_with_slice(self, need: ResourceRequest) -> NodeSet:
        """The usable nodes with a free MIG slice of the requested profile."""
        nodes = 0
        for number in self.shared:
            if self._free_slice(number, need) is not None:
                nodes |= 1 << number
        return nodes & self.usable

    def _free_slice(self, number: int, need: ResourceRequest) -> int | None:
        """The position of the first free slice of the requested profile on this node."""
        left = self.shared[number]
        for position, profile in enumerate(self.nodes[number].mig_profiles):
            if profile == need.mig_profile and left[position] >= need.gpu_milli:
                return position
        return None

    def count_free_slices(self, number: int, need: ResourceRequest) -> int:
        """How many MIG slices of the requested profile are free on this node."""
        slices = zip(self.nodes[number].mig_profiles, self.shared.get(number, ()), strict=False)
        return sum(profile == need.mig_profile and left > 0 for profile, left in slices)

    def shared_places(self, number: int, need: ResourceRequest) -> list[tuple[int, int]]:
        """Where on this node a share fits: (left on the GPU, its position), one for each amount that is left."""
        if need.mig_profile:
            free = self._free_slice(number, need) if number in self.shared else None
            return [] if free is None else [(need.gpu_milli, free)]
        thousandths = need.gpu_milli
        left = self.shared.get(number, [])
        found = {free: position for position, free in enumerate(left) if thousandths <= free < WHOLE_GPU}
        if self._may_open_gpu(number):
            found[WHOLE_GPU] = left.index(WHOLE_GPU) if WHOLE_GPU in left else len(left)
        return sorted(found.items())

    def free_milli_on_gpu(self, number: int, position: int) -> int:
        """The thousandths that a share may take at this position."""
        left = self.shared.get(number, [])
        if position < len(left) and left[position] < WHOLE_GPU:
            return left[position]
        return WHOLE_GPU if self._may_open_gpu(number) else 0

    def _may_open_gpu(self, number: int) -> bool:
        """Whether a share may be the first one on a free GPU of this node."""
        if not self.free[number]:
            return False
        return not self.one_shared >> number & 1 or all(free == WHOLE_GPU for free in self.shared.get(number, ()))

    def has_same_shares(self, other: NodeResources) -> bool:
        """Whether equally much is left on the shared GPUs."""
        return all(
            self.free_milli_on_gpu(number, position) == other.free_milli_on_gpu(number, position)
            for number in {*self.shared, *other.shared}
            for position in range(max(len(self.shared.get(number, ())), len(other.shared.get(number, ()))))
        )

    def has_free(self, places: GpuPlacement, need: ResourceRequest) -> bool:
        """Whether everything that this placement takes is free."""
        if not self.has_power(places, need):
            return False
        for number, gpus in places:
            if self.cpus[number] < need.cpus or self.memory_mb[number] < need.memory_mb:
                return False
            if need.gpu_milli:
                if self.free_milli_on_gpu(number, gpus) < need.gpu_milli:
                    return False
            elif self.free[number] < gpus:
                return False
        return True

    def has_power(self, places: GpuPlacement, need: ResourceRequest) -> bool:
        """Whether power budgets have room for this placement."""
        if not need.watts:
            return True
        return need.watts <= self.watts_left and (self.areas is None or self.areas.has_room(places, need))

    def take_if_free(self, places: GpuPlacement, need: ResourceRequest) -> bool:
        """Take a placement. False if it is not all free; then nothing is taken."""
        if not self.has_free(places, need):
            return False
        self.take(places, need)
        return True

    def free_gpus_among(self, among: NodeSet) -> int:
        return sum(free * (nodes & among).bit_count() for free, nodes in enumerate(self.by_free))


def watts_per_node(need: ResourceRequest, nodes: int = 0) -> int:
    """The part of the job's power on each of its nodes, rounded up."""
    return -(-need.watts // (nodes or _node_count(need)))


def _node_count(need: ResourceRequest) -> int:
    return need.nodes + bool(need.rest)


class PowerAreas:
    """What is left of the power budgets of parts of a cluster. `left` changes with the jobs; `wake_w` has the idle
    power of nodes that sleep.
    """

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


def _sorted_groups(groups: NodeGroups) -> tuple[NodeSet, ...]:
    return tuple(groups[name] for name in sorted(groups))


def _merge_groups(leaves: NodeGroups, keep: tuple[int, ...]) -> NodeGroups:
    """Merge leaves whose names agree in the parts to keep."""
    groups: NodeGroups = {}
    for leaf, nodes in leaves.items():
        name = tuple(leaf[part] for part in keep)
        groups[name] = groups.get(name, 0) | nodes
    return groups


def members(nodes: NodeSet) -> Iterator[int]:
    """The node numbers in a set, in ascending order."""
    while nodes:
        lowest = nodes & -nodes
        yield lowest.bit_length() - 1
        nodes ^= lowest


def node_set_of(numbers: list[int]) -> NodeSet:
    """The set of these numbers, which must be in order. Built at once, because many small steps on large integers are
    slow.
    """
    bits = bytearray(numbers[-1] // 8 + 1)
    for number in numbers:
        bits[number // 8] |= 1 << number % 8
    return int.from_bytes(bits, "little")


def node_list(nodes: NodeSet) -> list[int]:
    """The node numbers in a set as a list; faster than `members` for large sets."""
    numbers: list[int] = []
    for at, byte in enumerate(nodes.to_bytes((nodes.bit_length() + 7) // 8, "little")):
        if byte:
            for bit in BITS_OF_BYTE[byte]:
                numbers.append(8 * at + bit)
    return numbers


def offers_share(node: NodeView, need: ResourceRequest) -> bool:
    """Whether the node's GPUs can be shared as requested, regardless of what is free on them."""
    if need.mig_profile:
        return need.mig_profile in node.mig_profiles
    return need.share_gres in ("", node.share_gres) and is_whole_shards(need.gpu_milli, node.shards_per_gpu)


def free_slices(node: NodeView, profile: str) -> int:
    """How many MIG slices of this profile are free on the node."""
    slices = zip(node.mig_profiles, node.shared_gpus, strict=False)
    return sum(made_as == profile and left > 0 for made_as, (_, left) in slices)


def shared_position(node: NodeView, gpu: int) -> int:
    """The position in `NodeResources.shared` of a GPU that shares hold."""
    return next(position for position, (index, _) in enumerate(node.shared_gpus) if index == gpu)


class GpuIndices:
    """The indices of the GPUs that the starts of a turn get, the lowest free ones first."""

    def __init__(self, nodes: Sequence[NodeView]) -> None:
        self._nodes = nodes
        self._free: dict[int, list[int]] = {}  # by node number
        self._shared: dict[tuple[int, int], int] = {}  # GPUs that a share of this turn is the first to hold

    def take(self, places: GpuPlacement, need: ResourceRequest) -> dict[int, tuple[int, ...]]:
        """Node id -> GPU indices of a placement; of a share, the one GPU that it is on."""
        chosen: dict[int, tuple[int, ...]] = {}
        for number, gpus in places:
            if need.gpu_milli:
                chosen[self._nodes[number].id] = (self._shared_gpu(number, gpus),)
            else:
                chosen[self._nodes[number].id] = self._take_free(number, gpus)
        return chosen

    def _shared_gpu(self, number: int, position: int) -> int:
        known = self._nodes[number].shared_gpus
        if position < len(known):
            return known[position][0]
        if (gpu := self._shared.get((number, position))) is None:
            (gpu,) = self._take_free(number, 1)
            self._shared[number, position] = gpu
        return gpu

    def _take_free(self, number: int, gpus: int) -> tuple[int, ...]:
        if (free := self._free.get(number)) is None:
            free = self._free[number] = sorted(self._nodes[number].free_gpus)
        chosen = tuple(free[:gpus])
        del free[:gpus]
        return chosen
