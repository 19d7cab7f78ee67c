"""What is free on one node just now, and whether a job would find its place there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .values import SlurmJob, SlurmJobRequest, SlurmNode


class FreeNodeResources:
    """What is free on one node just now."""

    def __init__(self, node: SlurmNode) -> None:
        self.cpus, self.memory_mb, self.gpus = node.cpus, node.memory_mb, set(range(node.gpus))
        self.jobs: set[int] = set()

    def can_fit(self, asked: SlurmJobRequest) -> bool:
        return (
            len(self.gpus) >= asked.gpus_per_node
            and self.cpus >= asked.cpus_per_node
            and self.memory_mb >= asked.memory_per_node_mb
        )

    def take(self, job: SlurmJob, indices: Iterable[int]) -> None:
        self.cpus -= job.request.cpus_per_node
        self.memory_mb -= job.request.memory_per_node_mb
        self.gpus.difference_update(indices)
        self.jobs.add(job.id)

    def give(self, job: SlurmJob, indices: Iterable[int]) -> None:
        self.cpus += job.request.cpus_per_node
        self.memory_mb += job.request.memory_per_node_mb
        self.gpus.update(indices)
        self.jobs.discard(job.id)


class FreeClusterResources:
    """All of them, and who finds a place where."""

    def __init__(self, nodes: Mapping[str, SlurmNode]) -> None:
        self._nodes = nodes
        self._rooms = {name: FreeNodeResources(node) for name, node in nodes.items()}

    def __getitem__(self, name: str) -> FreeNodeResources:
        return self._rooms[name]

    @property
    def empty(self) -> bool:
        return not any(room.jobs for room in self._rooms.values())

    def take(self, job: SlurmJob) -> None:
        for name in job.nodes:
            self._rooms[name].take(job, job.gpus.get(name, ()))

    def give(self, job: SlurmJob) -> None:
        for name in job.nodes:
            self._rooms[name].give(job, job.gpus.get(name, ()))

    def lowest_free_gpus(self, names: Iterable[str], wanted: int) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(sorted(self._rooms[name].gpus)[:wanted]) for name in names} if wanted else {}

    def find_placement(self, asked: SlurmJobRequest, claimed: set[str]) -> tuple[tuple[str, ...], str]:
        """The nodes to run on, or none and the reason."""
        if asked.held:
            return (), "JobHeldUser"
        if not asked.required_nodes:
            return self._find_any_placement(asked, claimed)
        if not all(self._nodes[name].usable for name in asked.required_nodes):
            return (), "ReqNodeNotAvail"
        if claimed.intersection(asked.required_nodes):
            return (), "Priority"
        fits = all(self._rooms[name].can_fit(asked) for name in asked.required_nodes)
        return (asked.required_nodes, "None") if fits else ((), "Resources")

    def _find_any_placement(self, asked: SlurmJobRequest, claimed: set[str]) -> tuple[tuple[str, ...], str]:
        free = (
            node.name
            for node in self._nodes.values()
            if node.usable
            and node.name not in claimed
            and could_ever_fit(node, asked)
            and self._rooms[node.name].can_fit(asked)
        )
        nodes = tuple(name for name, _ in zip(free, range(asked.node_count), strict=False))
        return (nodes, "None") if len(nodes) == asked.node_count else ((), "Resources")


def could_ever_fit(node: SlurmNode, asked: SlurmJobRequest) -> bool:
    """Whether the node could ever carry its share."""
    model_fits = not asked.gpu_model or not asked.gpus_per_node or asked.gpu_model == node.gpu_model
    return (
        model_fits
        and asked.gpus_per_node <= node.gpus
        and asked.cpus_per_node <= node.cpus
        and asked.memory_per_node_mb <= node.memory_mb
    )
