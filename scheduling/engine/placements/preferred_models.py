"""Tries the GPU models of a request in its order of preference, with any other placement.

A job never gets GPUs of two models, even if it needs several nodes: the slower ones would slow down all others.
"""

from __future__ import annotations

from dataclasses import replace

from jobs.core.gpu_models import SEPARATOR, gpu_models
from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.placement import PlacementFunction
from scheduling.engine.resources import GpuPlacement, NodeResources, NodeSet


class PreferredModels:
    """`place` sees one model at a time."""

    def __init__(self, place: PlacementFunction) -> None:
        self._place = place
        self._of_model: dict[ResourceRequest, list[tuple[ResourceRequest, NodeSet]]] = {}

    def __call__(self, resources: NodeResources, need: ResourceRequest, among: NodeSet) -> GpuPlacement | None:
        if SEPARATOR not in need.gpu_model:
            return self._place(resources, need, among)
        for request, nodes in self._requests(resources, need):
            if among & nodes and (places := self._place(resources, request, among & nodes)) is not None:
                return places
        return None

    def _requests(self, resources: NodeResources, need: ResourceRequest) -> list[tuple[ResourceRequest, NodeSet]]:
        """The request with each of its models, and the nodes that have it. All resources of an engine have the same
        nodes, so this is computed once.
        """
        if (found := self._of_model.get(need)) is None:
            requests = [replace(need, gpu_model=model) for model in gpu_models(need.gpu_model)]
            found = [(request, resources.matching_nodes(request)) for request in requests]
            self._of_model[need] = found
        return found
