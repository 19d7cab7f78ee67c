"""Counts the nodes that match a request, and what is free on them now. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.core.gpu_models import accepts_model
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
    return accepts_model(need.gpu_model, node.gpu_model) and need.nic_type in ("", node.nic_type)


def _has_room(node: NodeView, need: ResourceRequest) -> bool:
    enough_memory = node.free_memory_mb >= need.memory_mb
    return len(node.free_gpus) >= need.gpus and node.free_cpus >= need.cpus and enough_memory
