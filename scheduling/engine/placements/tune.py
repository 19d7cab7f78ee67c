"""Synergy-Tune (OSDI'22): CPUs and memory beside the GPUs, without ever leaving GPUs idle for want of them.

A job that asks for more CPUs or memory than its GPUs' part of a node gets them where they are free: it goes to the
fullest node that holds all it asks. Where none does it takes what there is, and whoever on that node has more than his
part gives some back; nobody falls below the part of his GPUs, so what fits by GPUs fits. The room counts what was
asked: below zero, that much has been given back there (`granted` says by whom).

Differences: jobs go in the order of the policy, not widest first, and stay where they are between rounds; how much
slower a job runs on fewer CPUs is in no trace that we know, so it is not modelled. On clusters that we drive CPUs are
fixed once a job runs (`elastic` is off): there it is best fit over all three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.placement import consolidate, place_gang
from scheduling.engine.room import GpuPlacement, NodeResources, NodeSet, members


class TunePlacement:
    def __init__(self, *, elastic: bool) -> None:
        self._elastic = elastic

    def __call__(self, room: NodeResources, need: ResourceRequest, among: NodeSet) -> GpuPlacement | None:
        if need.nodes > 1 or need.rest:
            places = place_gang(room, need, among, _fullest_first)
        else:
            chosen = _fullest_first(room, room.fitting_nodes(need, among), need, 1)
            places = ((chosen[0], need.gpus),) if chosen else None
        if places is None and self._elastic and need.gpus:
            return consolidate(room, replace(need, cpus=0, memory_mb=0), among)
        return places


def _fullest_first(room: NodeResources, nodes: NodeSet, need: ResourceRequest, count: int) -> list[int]:
    """Where the least stays free, GPUs first."""
    order = sorted((room.free[n], room.cpus[n], room.memory_mb[n], n) for n in members(nodes))
    return [number for *_, number in order[:count]]


def cpu_memory_grants(whole: float, gpus: int, asked: Sequence[tuple[int, float]]) -> list[float]:
    """Of `whole` CPUs (or memory) of a node with so many GPUs, what jobs that hold (GPUs, asked for) get.

    Nobody gets more than he asked, nor less than he asked or the part of his GPUs, whichever is smaller; what is left
    over goes to those who want more, by their GPUs.
    """
    given = [min(want, whole * held / gpus) for held, want in asked]
    left = whole - sum(given)
    hungry = [n for n, (_, want) in enumerate(asked) if want > given[n]]
    while hungry and left > 1e-9 * whole:
        parts = sum(asked[n][0] for n in hungry)
        round_left = left
        for n in hungry:
            more = min(asked[n][1] - given[n], round_left * asked[n][0] / parts)
            given[n] += more
            left -= more
        hungry = [n for n in hungry if asked[n][1] - given[n] > 1e-12 * whole]
    return given
