"""Counts the nodes that match a request, and what is free on them now. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.core.gpu_models import accepts_model
from jobs.core.gpu_shares import is_whole_shards
from scheduling.engine.cluster import ClusterSnapshot, NodeView, ResourceRequest


@dataclass(frozen=True, kw_only=True)
class FreeCapacity:
    """What is free on the nodes with the requested hardware. `fitting` nodes have room for a part of the job."""

    nodes: int
    gpus: int
    free_gpus: int
    fitting: int


def free_capacity(picture: ClusterSnapshot, need: ResourceRequest) -> FreeCapacity:
    """What is free for the request, on nodes that accept jobs."""
    matching = [node for node in picture.nodes if has_hardware(node, need)]
    return FreeCapacity(
        nodes=len(matching),
        gpus=sum(node.gpus for node in matching),
        free_gpus=sum(len(node.free_gpus) for node in matching),
        fitting=sum(_has_room(node, need) for node in matching),
    )


def has_hardware(node: NodeView, need: ResourceRequest) -> bool:
    fits = accepts_model(need.gpu_model, node.gpu_model) and need.nic_type in ("", node.nic_type)
    return fits and (not need.gpu_milli or is_whole_shards(need.gpu_milli, node.shards_per_gpu))


def _has_room(node: NodeView, need: ResourceRequest) -> bool:
    enough_memory = node.free_memory_mb >= need.memory_mb
    return _has_gpus(node, need) and node.free_cpus >= need.cpus and enough_memory


def _has_gpus(node: NodeView, need: ResourceRequest) -> bool:
    if need.gpu_milli:
        return bool(node.free_gpus) or any(left >= need.gpu_milli for _, left in node.shared_gpus)
    return len(node.free_gpus) >= need.gpus
