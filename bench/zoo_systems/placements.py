"""Placements to compare others with: random, and the node that is fullest by all resources."""

from __future__ import annotations

from random import Random

from jobs.core.gpu_shares import WHOLE_GPU
from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.placement import place_gang
from scheduling.engine.resources import GpuPlacement, NodeResources, NodeSet, node_list


class RandomPlacement:
    """Any node that fits, and any GPU of it for a share. Gangs are placed as everywhere else."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice

    def __call__(self, resources: NodeResources, need: ResourceRequest, among: NodeSet) -> GpuPlacement | None:
        if need.gang:
            return place_gang(resources, need, among)
        if not (nodes := node_list(resources.fitting_nodes(need, among))):
            return None
        number = self._dice.choice(nodes)
        if not need.gpu_milli:
            return ((number, need.gpus),)
        _, position = self._dice.choice(resources.shared_places(number, need))
        return ((number, position),)


class BestFitPlacement:
    """The node with the least left after the placement: the sum of its free CPUs and GPUs, each as a part of the most
    that a node has. A share goes to the GPU with the least left.
    """

    def __call__(self, resources: NodeResources, need: ResourceRequest, among: NodeSet) -> GpuPlacement | None:
        if need.gang:
            return place_gang(resources, need, among)
        most_cpus = max((node.free_cpus for node in resources.nodes), default=0) or 1
        nodes = node_list(resources.fitting_nodes(need, among))
        if not nodes:
            return None
        number = min(nodes, key=lambda number: (_part_left(resources, number, most_cpus), number))
        if not need.gpu_milli:
            return ((number, need.gpus),)
        return ((number, resources.shared_places(number, need)[0][1]),)


def _part_left(resources: NodeResources, number: int, most_cpus: int) -> float:
    shared = sum(free for free in resources.shared.get(number, ()) if free < WHOLE_GPU) / WHOLE_GPU
    return resources.cpus[number] / most_cpus + (resources.free[number] + shared) / max(resources.most, 1)
