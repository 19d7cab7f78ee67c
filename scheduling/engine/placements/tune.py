"""Synergy-Tune (OSDI'22): allocate CPUs and memory along with GPUs without leaving GPUs idle for lack of them.

A job that requests more CPUs or memory than its GPUs' fraction of a node goes to the fullest node that holds all it
requests. If there is none, it takes what is available, and jobs on that node with more than their fraction return some.
No job falls below the fraction of its GPUs, so whatever fits by GPUs fits. `NodeResources` counts what was requested: a
negative value means that this much was returned there (`cpu_memory_grants` says by which jobs).

Differences: jobs are placed in the order of the policy, not widest first, and are not moved between rounds. How much
slower a job runs with fewer CPUs is in no trace that we know, so it is not modeled. On live clusters, CPUs are fixed
while a job runs (`elastic` is off), so this is best fit over all three resources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.placement import consolidate, place_gang
from scheduling.engine.resources import GpuPlacement, NodeResources, NodeSet, members


class TunePlacement:
    """Best fit over GPUs, CPUs and memory; by GPUs alone if nothing else fits and jobs are elastic."""

    def __init__(self, *, elastic: bool) -> None:
        self._elastic = elastic

    def __call__(self, resources: NodeResources, need: ResourceRequest, among: NodeSet) -> GpuPlacement | None:
        if need.gpu_milli:
            return consolidate(resources, need, among)
        if need.nodes > 1 or need.rest:
            places = place_gang(resources, need, among, _fullest_first)
        else:
            chosen = _fullest_first(resources, resources.fitting_nodes(need, among), need, 1)
            places = ((chosen[0], need.gpus),) if chosen else None
        if places is None and self._elastic and need.gpus:
            return consolidate(resources, replace(need, cpus=0, memory_mb=0), among)
        return places


def _fullest_first(resources: NodeResources, nodes: NodeSet, need: ResourceRequest, count: int) -> list[int]:
    """Nodes with the least free resources first, GPUs before CPUs before memory."""
    order = sorted((resources.free[n], resources.cpus[n], resources.memory_mb[n], n) for n in members(nodes))
    return [number for *_, number in order[:count]]


def cpu_memory_grants(whole: float, gpus: int, requests: Sequence[tuple[int, float]]) -> list[float]:
    """Divide the CPUs (or memory) `whole` of a node with `gpus` GPUs among jobs that hold and request (GPUs, amount).

    A job gets at most what it requested, and at least the smaller of its request and its GPUs' fraction. The remainder
    goes to jobs that requested more, in proportion to their GPUs.
    """
    grants = [min(amount, whole * held / gpus) for held, amount in requests]
    unassigned = whole - sum(grants)
    unsatisfied = [n for n, (_, amount) in enumerate(requests) if amount > grants[n]]
    while unsatisfied and unassigned > 1e-9 * whole:
        parts = sum(requests[n][0] for n in unsatisfied)
        round_left = unassigned
        for n in unsatisfied:
            more = min(requests[n][1] - grants[n], round_left * requests[n][0] / parts)
            grants[n] += more
            unassigned -= more
        unsatisfied = [n for n in unsatisfied if requests[n][1] - grants[n] > 1e-12 * whole]
    return grants
