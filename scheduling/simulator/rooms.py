"""What is free on one node just now, and whether a job would find its place there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .values import Job, Node, Request


class Room:
    """What is free on one node just now."""

    def __init__(self, node: Node) -> None:
        self.cpus, self.memory_mb, self.gpus = node.cpus, node.memory_mb, set(range(node.gpus))
        self.jobs: set[int] = set()

    def fits(self, asked: Request) -> bool:
        return (
            len(self.gpus) >= asked.gpus_per_node
            and self.cpus >= asked.cpus_per_node
            and self.memory_mb >= asked.memory_per_node_mb
        )

    def take(self, job: Job, indices: Iterable[int]) -> None:
        self.cpus -= job.request.cpus_per_node
        self.memory_mb -= job.request.memory_per_node_mb
        self.gpus.difference_update(indices)
        self.jobs.add(job.id)

    def give(self, job: Job, indices: Iterable[int]) -> None:
        self.cpus += job.request.cpus_per_node
        self.memory_mb += job.request.memory_per_node_mb
        self.gpus.update(indices)
        self.jobs.discard(job.id)


class Rooms:
    """All of them, and who finds a place where."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._rooms = {name: Room(node) for name, node in nodes.items()}

    def __getitem__(self, name: str) -> Room:
        return self._rooms[name]

    @property
    def empty(self) -> bool:
        return not any(room.jobs for room in self._rooms.values())

    def take(self, job: Job) -> None:
        for name in job.nodes:
            self._rooms[name].take(job, job.gpus.get(name, ()))

    def give(self, job: Job) -> None:
        for name in job.nodes:
            self._rooms[name].give(job, job.gpus.get(name, ()))

    def lowest_gpus(self, names: Iterable[str], wanted: int) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(sorted(self._rooms[name].gpus)[:wanted]) for name in names} if wanted else {}

    def place_for(self, asked: Request, claimed: set[str]) -> tuple[tuple[str, ...], str]:
        """The nodes to run on, or none and the reason."""
        if asked.held:
            return (), "JobHeldUser"
        if not asked.required_nodes:
            return self._any_place(asked, claimed)
        if not all(self._nodes[name].usable for name in asked.required_nodes):
            return (), "ReqNodeNotAvail"
        if claimed.intersection(asked.required_nodes):
            return (), "Priority"
        fits = all(self._rooms[name].fits(asked) for name in asked.required_nodes)
        return (asked.required_nodes, "None") if fits else ((), "Resources")

    def _any_place(self, asked: Request, claimed: set[str]) -> tuple[tuple[str, ...], str]:
        free = (
            node.name
            for node in self._nodes.values()
            if node.usable and node.name not in claimed and able(node, asked) and self._rooms[node.name].fits(asked)
        )
        nodes = tuple(name for name, _ in zip(free, range(asked.node_count), strict=False))
        return (nodes, "None") if len(nodes) == asked.node_count else ((), "Resources")


def able(node: Node, asked: Request) -> bool:
    """Whether the node could ever carry its share."""
    model_fits = not asked.gpu_model or not asked.gpus_per_node or asked.gpu_model == node.gpu_model
    return (
        model_fits
        and asked.gpus_per_node <= node.gpus
        and asked.cpus_per_node <= node.cpus
        and asked.memory_per_node_mb <= node.memory_mb
    )
