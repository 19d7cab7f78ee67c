"""Top-level owners with everything that they own. Pure.

The top-level owner is found by following the controllers: pod → Job → JobSet → TrainJob. A CronJob is not a job, each
of its Jobs is. An owner of a kind that Acme does not list is known by the reference alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import is_

from .attempts import OwnAttempt, own_attempt
from .pods import OwnerReference, Pod
from .workloads import Workload

MAX_OWNERS = 10  # on the way from a pod to its top-level owner; references are untrusted and may form a circle
NOT_A_JOB = frozenset({"CronJob", "Node"})  # owners whose objects are jobs of their own; a node owns its static pods


@dataclass(eq=False)
class WorkloadGroup:
    """A top-level owner with everything that it owns, directly or not."""

    top: OwnerReference
    workloads: list[Workload] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)

    @property
    def gpus_per_pod(self) -> int:
        return max([part.gpus_per_pod for part in self.workloads] + [pod.gpus for pod in self.pods], default=0)

    @property
    def is_ours(self) -> bool:
        return any(part.owner.key for part in self.workloads) or any(pod.owner.key for pod in self.pods)

    @cached_property
    def attempt(self) -> OwnAttempt | None:
        return own_attempt(self.workloads, self.pods, self.top.uid)

    def has_same_parts(self, other: WorkloadGroup) -> bool:
        """Whether both consist of the same objects: what is read anew is another object."""
        return _are_same(self.pods, other.pods) and _are_same(self.workloads, other.workloads)


def _are_same(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


class GroupCache:
    """The groups as of the last look. A group whose parts did not change stays the same object, and so does what was
    derived from it.
    """

    def __init__(self) -> None:
        self._groups: dict[str, WorkloadGroup] = {}

    def update(self, pods: Iterable[Pod], workloads: Mapping[str, Workload]) -> dict[str, WorkloadGroup]:
        known, self._groups = self._groups, workload_groups(pods, workloads)
        for uid, group in self._groups.items():
            if (before := known.get(uid)) and before.has_same_parts(group):
                self._groups[uid] = before
        return self._groups


def workload_groups(pods: Iterable[Pod], workloads: Mapping[str, Workload]) -> dict[str, WorkloadGroup]:
    """The groups that hold or request GPUs, or that Acme submitted, by the uid of the top-level owner."""
    tops: dict[str, OwnerReference] = {}
    groups: dict[str, WorkloadGroup] = {}
    for workload in workloads.values():
        top = _top_of_workload(workload, workloads, tops)
        groups.setdefault(top.uid, WorkloadGroup(top)).workloads.append(workload)
    for pod in pods:
        top = _top_of_pod(pod, workloads, tops)
        groups.setdefault(top.uid, WorkloadGroup(top)).pods.append(pod)
    return {uid: group for uid, group in groups.items() if group.gpus_per_pod or group.is_ours}


def _top_of_pod(pod: Pod, workloads: Mapping[str, Workload], tops: dict[str, OwnerReference]) -> OwnerReference:
    controller = pod.controller
    if controller is None or controller.kind in NOT_A_JOB:
        return OwnerReference(uid=pod.uid, kind="Pod", name=pod.name)
    owner = workloads.get(controller.uid)
    return _top_of_workload(owner, workloads, tops) if owner else controller


def _top_of_workload(
    workload: Workload, workloads: Mapping[str, Workload], tops: dict[str, OwnerReference]
) -> OwnerReference:
    if (known := tops.get(workload.uid)) is None:
        known = tops[workload.uid] = _follow_controllers(workload, workloads)
    return known


def _follow_controllers(workload: Workload, workloads: Mapping[str, Workload]) -> OwnerReference:
    top = OwnerReference(uid=workload.uid, kind=workload.kind, name=workload.name)
    for _ in range(MAX_OWNERS):
        controller = workload.controller
        if controller is None or controller.kind in NOT_A_JOB:
            break
        top = controller
        if (next_owner := workloads.get(controller.uid)) is None:
            break
        workload = next_owner
    return top
