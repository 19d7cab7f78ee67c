"""Placements: functions that choose nodes for a request, or return None if it does not fit. They take nothing.

`consolidate`  puts a job on the fullest node that fits. A gang is placed as close together as possible, and its
               remainder (`ResourceRequest.rest`) on the emptiest node that fits, near the others. This is the rule of
               HeliosArtifact, with topology.
`pack`         does the same, but may spread a job that fits on no single node over the fewest nodes that hold it.
`spread`       puts a job on the emptiest node.

A share of a GPU goes to the GPU with the least left (`consolidate`, `pack`), or the most (`spread`).

"Close together" means one leaf switch, else one pod, else one type of network card. Between InfiniBand and RoCE, NCCL
falls back to sockets, so Holmes (ICPP'24) keeps data-parallel groups within one type; a gang crosses types only if no
type can hold it. Equal nodes are taken in the given order. Placements that need more information are in `placements`.
"""

from __future__ import annotations

from collections.abc import Callable

from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.resources import ALL_NODES, GpuPlacement, NodeResources, NodeSet, members, node_list

PlacementFunction = Callable[[NodeResources, ResourceRequest, NodeSet], GpuPlacement | None]
NodeChooser = Callable[[NodeResources, NodeSet, ResourceRequest, int], list[int]]


def consolidate(resources: NodeResources, need: ResourceRequest, among: NodeSet = ALL_NODES) -> GpuPlacement | None:
    """Place a job of one node on the fullest node that fits, a gang as close together as possible."""
    if need.gang:
        return place_gang(resources, need, among)
    if need.gpu_milli:
        return _place_share(resources, need, among, min)
    gpus = need.gpus
    levels = resources.levels >> gpus
    if not levels:
        return None
    if among == ALL_NODES and need.needs_only_gpus:
        nodes = resources.by_free[gpus + (levels & -levels).bit_length() - 1]
        return (((nodes & -nodes).bit_length() - 1, gpus),)
    while levels:
        lowest = levels & -levels
        node = resources.first_fitting_node(need, resources.by_free[gpus + lowest.bit_length() - 1] & among)
        if node is not None:
            return ((node, gpus),)
        levels ^= lowest
    return None


def spread(resources: NodeResources, need: ResourceRequest, among: NodeSet = ALL_NODES) -> GpuPlacement | None:
    """Place a job of one node on the emptiest node that fits, a gang as close together as possible."""
    if need.gang:
        return place_gang(resources, need, among)
    if need.gpu_milli:
        return _place_share(resources, need, among, max)
    for free in range(resources.most, need.gpus - 1, -1):
        if (node := resources.first_fitting_node(need, resources.by_free[free] & among)) is not None:
            return ((node, need.gpus),)
    return None


def pack(resources: NodeResources, need: ResourceRequest, among: NodeSet = ALL_NODES) -> GpuPlacement | None:
    """Use one placement of `consolidate` if it fits, else fill the emptiest nodes until the remainder fits on
    one node.
    """
    whole = consolidate(resources, need, among)
    if whole or need.gpu_milli or need.total_gpus > resources.free_gpus:
        return whole
    missing, places = need.total_gpus, []
    for free in range(resources.most, 0, -1):
        for number in members(resources.with_cpu_memory(need, resources.by_free[free] & among)):
            among &= ~(1 << number)
            places.append((number, min(free, missing)))
            missing -= min(free, missing)
            if not missing:
                return tuple(places)
            if last := consolidate(
                resources, ResourceRequest(gpus=missing, cpus=need.cpus, memory_mb=need.memory_mb), among
            ):
                return (*places, *last)
    return None


def awake_first(place: PlacementFunction, asleep: NodeSet) -> PlacementFunction:
    """The placement, with nodes that sleep only where it finds no place without them."""

    def choose(resources: NodeResources, need: ResourceRequest, among: NodeSet = ALL_NODES) -> GpuPlacement | None:
        return place(resources, need, among & ~asleep) or place(resources, need, among)

    return choose


def within_power(place: PlacementFunction) -> PlacementFunction:
    """The placement, if power budgets have room for it. Placements offer nodes within the budgets already, but may
    combine several offers."""

    def choose(resources: NodeResources, need: ResourceRequest, among: NodeSet = ALL_NODES) -> GpuPlacement | None:
        places = place(resources, need, among)
        return places if places is None or resources.has_power(places, need) else None

    return choose


def _place_share(
    resources: NodeResources, need: ResourceRequest, among: NodeSet, best: Callable[..., tuple[int, int, int, int]]
) -> GpuPlacement | None:
    """`best` is min or max, by what is left on the GPU and then by the free GPUs of the node."""
    nodes = members(resources.fitting_nodes(need, among))
    found = [
        (left, resources.free[number], number, position)
        for number in nodes
        for left, position in resources.shared_places(number, need)
    ]
    if not found:
        return None
    _, _, number, position = best(found)
    return ((number, position),)


# The result of these depends only on the nodes that fit a part of the request. If no CPUs or memory are requested, they
# read only the node sets of `NodeResources`
PER_NODE_PLACEMENTS: tuple[PlacementFunction, ...] = (consolidate, spread)


def place_gang(
    resources: NodeResources, need: ResourceRequest, among: NodeSet = ALL_NODES, choose: NodeChooser | None = None
) -> GpuPlacement | None:
    """Place a gang close together. `choose` selects nodes within a group of equally close ones; default: the
    fullest.
    """
    if need.total_gpus > resources.free_gpus:
        return None
    fitting = resources.fitting_nodes(need, among)
    if fitting.bit_count() < need.nodes:
        return None
    chosen = _nearest_nodes(resources, fitting, need, choose or fullest_nodes)
    places: GpuPlacement = tuple((number, need.gpus) for number in chosen)
    if not need.rest:
        return places
    last = _remainder_node(resources, need, among & ~sum(1 << number for number in chosen), chosen[-1])
    return None if last is None else (*places, (last, need.rest))


def _remainder_node(resources: NodeResources, need: ResourceRequest, among: NodeSet, neighbor: int) -> int | None:
    """The emptiest node for the remainder, near the other nodes if one fits there."""
    for groups in (*resources.nearness, (ALL_NODES,)):
        near = next(group for group in groups if group >> neighbor & 1)
        for free in range(resources.most, need.rest - 1, -1):
            if (node := resources.first_fitting_node(need, resources.by_free[free] & among & near)) is not None:
                return node
    return None


def _nearest_nodes(resources: NodeResources, fitting: NodeSet, need: ResourceRequest, choose: NodeChooser) -> list[int]:
    """Nodes of the smallest leaf switch that holds the gang, else of a pod or network, else of the leaves with most
    space.
    """
    if len(resources.leaves) == 1:
        return choose(resources, fitting, need, need.nodes)
    for groups, widest in zip(resources.nearness, resources.widest, strict=True):
        if widest < need.nodes:
            continue
        holding = [nodes for group in groups if (nodes := fitting & group).bit_count() >= need.nodes]
        if holding:
            return _fill_leaves(resources, min(holding, key=int.bit_count), need, choose)
    return _fill_leaves(resources, fitting, need, choose)


def _fill_leaves(resources: NodeResources, fitting: NodeSet, need: ResourceRequest, choose: NodeChooser) -> list[int]:
    """Nodes leaf by leaf, those with the most fitting nodes first."""
    sizes = [0] * len(resources.leaves)
    for number in node_list(fitting):
        sizes[resources.leaf_of[number]] += 1
    chosen: list[int] = []
    for leaf in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        chosen += choose(resources, fitting & resources.leaves[leaf], need, need.nodes - len(chosen))
        if len(chosen) == need.nodes:
            break
    return chosen


def fullest_nodes(resources: NodeResources, fitting: NodeSet, need: ResourceRequest, count: int) -> list[int]:
    """Up to `count` fitting nodes, those with the fewest free GPUs first."""
    chosen: list[int] = []
    for nodes in resources.by_free[need.gpus :]:
        for number in members(nodes & fitting):
            if len(chosen) == count:
                return chosen
            chosen.append(number)
    return chosen
