"""Free resources of nodes, and whether a job fits there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jobs.core.gpu_shares import MPS
from scheduling.simulation.machines.values import SimulatedJob, SimulatedJobRequest, SimulatedNode


class FreeNodeResources:
    """The free resources of one node."""

    def __init__(self, node: SimulatedNode) -> None:
        self.cpus, self.memory_mb, self.gpus = node.cpus, node.memory_mb, set(range(node.gpus))
        self.jobs: set[int] = set()
        self._shards_per_gpu, self._share_gres = node.shards_per_gpu, node.share_gres
        self._shards: dict[int, int] = {}  # GPU -> its shards that jobs hold, more than none

    def can_fit(self, request: SimulatedJobRequest) -> bool:
        return (
            len(self.gpus) >= request.gpus_per_node
            and (not request.gpu_shards or self._gpu_for_shards(request.gpu_shards) is not None)
            and self.cpus >= request.cpus_per_node
            and self.memory_mb >= request.memory_per_node_mb
        )

    def take(self, job: SimulatedJob, indices: Iterable[int]) -> None:
        self.cpus -= job.request.cpus_per_node
        self.memory_mb -= job.request.memory_per_node_mb
        self.gpus.difference_update(indices)
        if job.request.gpu_shards:
            for gpu in indices:
                self._shards[gpu] = self._shards.get(gpu, 0) + job.request.gpu_shards
        self.jobs.add(job.id)

    def give(self, job: SimulatedJob, indices: Iterable[int]) -> None:
        self.cpus += job.request.cpus_per_node
        self.memory_mb += job.request.memory_per_node_mb
        if job.request.gpu_shards:
            for gpu in indices:
                self._shards[gpu] -= job.request.gpu_shards
        self.gpus.update(gpu for gpu in indices if not self._shards.get(gpu))
        self.jobs.discard(job.id)

    def select_gpus(self, request: SimulatedJobRequest) -> tuple[int, ...]:
        """The lowest free GPUs, or the GPU for the shards. The job must fit."""
        if not request.gpu_shards:
            return tuple(sorted(self.gpus)[: request.gpus_per_node])
        gpu = self._gpu_for_shards(request.gpu_shards)
        assert gpu is not None
        return (gpu,)

    def _gpu_for_shards(self, shards: int) -> int | None:
        """The GPU with the fewest free shards that suffice, as Slurm selects it without LL_SHARED_GRES. While one GPU
        is used with MPS, no other one is."""
        left = {gpu: self._shards_per_gpu - held for gpu, held in self._shards.items() if held}
        if not left or self._share_gres != MPS:
            left |= dict.fromkeys(self.gpus, self._shards_per_gpu)
        fitting = [(free, gpu) for gpu, free in left.items() if free >= shards]
        return min(fitting)[1] if fitting else None


class FreeClusterResources:
    """The free resources of all nodes, and the placement of jobs."""

    def __init__(self, nodes: Mapping[str, SimulatedNode]) -> None:
        self._nodes = nodes
        self._nodes_free = {name: FreeNodeResources(node) for name, node in nodes.items()}

    def __getitem__(self, name: str) -> FreeNodeResources:
        return self._nodes_free[name]

    @property
    def empty(self) -> bool:
        return not any(node.jobs for node in self._nodes_free.values())

    def take(self, job: SimulatedJob) -> None:
        for name in job.nodes:
            self._nodes_free[name].take(job, job.gpus.get(name, ()))

    def give(self, job: SimulatedJob) -> None:
        for name in job.nodes:
            self._nodes_free[name].give(job, job.gpus.get(name, ()))

    def select_gpus(self, names: Iterable[str], request: SimulatedJobRequest) -> Mapping[str, tuple[int, ...]]:
        if not request.gpus_per_node and not request.gpu_shards:
            return {}
        return {name: self._nodes_free[name].select_gpus(request) for name in names}

    def find_placement(self, request: SimulatedJobRequest, claimed: set[str]) -> tuple[tuple[str, ...], str]:
        """The nodes to run on, or no nodes and the reason."""
        if request.held:
            return (), "JobHeldUser"
        if not request.required_nodes:
            return self._find_any_placement(request, claimed)
        if not all(self._nodes[name].usable for name in request.required_nodes):
            return (), "ReqNodeNotAvail"
        if claimed.intersection(request.required_nodes):
            return (), "Priority"
        fits = all(self._nodes_free[name].can_fit(request) for name in request.required_nodes)
        return (request.required_nodes, "None") if fits else ((), "Resources")

    def _find_any_placement(self, request: SimulatedJobRequest, claimed: set[str]) -> tuple[tuple[str, ...], str]:
        free = (
            node.name
            for node in self._nodes.values()
            if node.usable
            and node.name not in claimed
            and could_ever_fit(node, request)
            and self._nodes_free[node.name].can_fit(request)
        )
        nodes = tuple(name for name, _ in zip(free, range(request.node_count), strict=False))
        return (nodes, "None") if len(nodes) == request.node_count else ((), "Resources")


def could_ever_fit(node: SimulatedNode, request: SimulatedJobRequest) -> bool:
    """Whether the node could fit the job's share if it were empty."""
    model_fits = not request.gpu_model or not request.gpus_per_node or request.gpu_model == node.gpu_model
    return (
        model_fits
        and request.gpus_per_node <= node.gpus
        and request.gpu_shards <= (node.shards_per_gpu if node.gpus else 0)
        and (not request.gpu_shards or request.share_gres == node.share_gres)
        and request.cpus_per_node <= node.cpus
        and request.memory_per_node_mb <= node.memory_mb
    )
