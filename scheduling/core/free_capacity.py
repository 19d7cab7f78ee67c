"""Counts the nodes that match a request, and what is free on them now. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.core.gpu_models import accepts_model
from scheduling.engine.cluster import ClusterSnapshot, NodeView, ResourceRequest
from scheduling.engine.resources import free_slices, offers_share


@dataclass(frozen=True, kw_only=True)
class FreeCapacity:
    """What is free on the nodes with the requested hardware. `fitting` nodes have room for a part of the job. For a MIG
    slice, `gpus` and `free_gpus` count slices of its profile.
    """

    nodes: int
    gpus: int
    free_gpus: int
    fitting: int


def free_capacity(picture: ClusterSnapshot, need: ResourceRequest) -> FreeCapacity:
    """What is free for the request, on nodes that accept jobs."""
    matching = [node for node in picture.nodes if has_hardware(node, need)]
    return FreeCapacity(
        nodes=len(matching),
        gpus=sum(_devices(node, need) for node in matching),
        free_gpus=sum(_free_devices(node, need) for node in matching),
        fitting=sum(_has_room(node, need) for node in matching),
    )


def has_hardware(node: NodeView, need: ResourceRequest) -> bool:
    fits = accepts_model(need.gpu_model, node.gpu_model) and need.nic_type in ("", node.nic_type)
    return fits and (not need.gpu_milli or offers_share(node, need))


def _devices(node: NodeView, need: ResourceRequest) -> int:
    return node.mig_profiles.count(need.mig_profile) if need.mig_profile else node.gpus


def _free_devices(node: NodeView, need: ResourceRequest) -> int:
    return free_slices(node, need.mig_profile) if need.mig_profile else len(node.free_gpus)


def _has_room(node: NodeView, need: ResourceRequest) -> bool:
    enough_memory = node.free_memory_mb >= need.memory_mb
    return _has_gpus(node, need) and node.free_cpus >= need.cpus and enough_memory


def _has_gpus(node: NodeView, need: ResourceRequest) -> bool:
    if need.mig_profile:
        return free_slices(node, need.mig_profile) > 0
    if need.gpu_milli:
        return bool(node.free_gpus) or any(left >= need.gpu_milli for _, left in node.shared_gpus)
    return len(node.free_gpus) >= need.gpus
