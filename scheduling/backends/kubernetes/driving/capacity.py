"""What pods may still request on each node. Pure."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from jobs.core.gpu_shares import whole_gpus
from jobs.core.lifecycle import NodeFlag

from ..cache import CacheIndex
from ..changes import ChangeReader
from ..nodes import NodeReport
from ..pods import Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequests:
    """What a pod requests, or what several hold together."""

    gpus: int = 0  # with MIG slices
    cpus: float = 0.0
    memory_mb: int = 0
    mig_slices: Mapping[str, int] = field(default_factory=dict)  # by profile

    @classmethod
    def of(cls, pod: Pod) -> PodRequests:
        return cls(gpus=pod.gpus, cpus=pod.cpus, memory_mb=pod.memory_mb, mig_slices=pod.mig_slices)

    @property
    def whole_gpus(self) -> int:
        return whole_gpus(self.gpus, self.mig_slices)

    def __add__(self, other: PodRequests) -> PodRequests:
        slices = dict(self.mig_slices)
        for profile, count in other.mig_slices.items():
            slices[profile] = slices.get(profile, 0) + count
        return PodRequests(
            gpus=self.gpus + other.gpus,
            cpus=self.cpus + other.cpus,
            memory_mb=self.memory_mb + other.memory_mb,
            mig_slices=slices,
        )


NOTHING = PodRequests()


def requests_of_live(pods: Iterable[Pod]) -> PodRequests:
    """What those of the pods request together that have not ended."""
    return sum((PodRequests.of(pod) for pod in pods if pod.is_live), NOTHING)


class CapacityInUse:
    """What live pods hold on each node. Only nodes whose pods changed are summed up again."""

    def __init__(self, pods_by_node: CacheIndex[Pod]) -> None:
        self._index, self._reader = pods_by_node, ChangeReader()
        self._held: dict[str, PodRequests] = {}

    def update(self) -> Mapping[str, PodRequests]:
        pods = self._index.update()
        with self._reader.changes([self._index.changes]) as changed:
            if changed is None:
                self._held, changed = {}, set(pods)
            if changed:  # a new mapping, because the last one may still be in use
                held = {node: need for node, need in self._held.items() if node not in changed}
                self._held = held | {
                    node: requests_of_live(pods[node].values()) for node in changed if node and node in pods
                }
        return self._held


class FreeCapacity:
    """What pods may still request on each node. `held` is what pods held at the beginning. Several threads may reserve
    it.
    """

    def __init__(self, nodes: Mapping[str, NodeReport], held: Mapping[str, PodRequests]) -> None:
        self._lock = threading.Lock()
        self._nodes, self._held_before = nodes, held
        self._held: dict[str, PodRequests] = {}  # on nodes of which something was taken since

    def _requests_on(self, node: str) -> PodRequests:
        return self._held.get(node) or self._held_before.get(node, NOTHING)

    def take(self, node: str, need: PodRequests) -> None:
        self._held[node] = self._requests_on(node) + need

    def reserve(self, node: str, need: PodRequests) -> str:
        """Take this capacity for a pod that is about to be created, unless there is an obstacle, which is returned."""
        with self._lock:
            if not (text := self.obstacle(node, need)):
                self.take(node, need)
            return text

    def obstacle(self, node: str, need: PodRequests) -> str:
        """Why a pod cannot start on this node now; empty if it can."""
        report = self._nodes.get(node)
        if report is None:
            return f"node {node} does not exist"
        if report.power:
            return f"node {node} sleeps or wakes up"
        if not report.usable or NodeFlag.DRAIN in report.flags:
            return f"node {node} is not available: {report.reason}"
        held = self._requests_on(node)
        for name, free, wanted in (
            ("GPUs", whole_gpus(report.gpus, report.mig_slices) - held.whole_gpus, need.whole_gpus),
            *(
                (f"MIG slices {profile}", report.mig_slices.get(profile, 0) - held.mig_slices.get(profile, 0), count)
                for profile, count in need.mig_slices.items()
            ),
            ("CPUs", report.cpus - held.cpus, need.cpus),
            ("MB of memory", report.memory_mb - held.memory_mb, need.memory_mb),
        ):
            if wanted > free:
                return f"node {node} has {max(free, 0):g} {name} free, and the pod requests {wanted:g}"
        return ""
