"""Top-level owners with everything that they own. Pure.

The top-level owner is found by following the controllers: pod → Job → JobSet → TrainJob. A CronJob is not a job, each
of its Jobs is. An owner of a kind that Acme does not list is known by the reference alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from .attempts import OwnAttempt, own_attempt
from .pods import OwnerReference, Pod
from .workloads import Workload

T = TypeVar("T")

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


class GroupCache:
    """The groups as of the last look. Only those whose parts changed are formed anew; the others stay the same objects,
    and so does what was derived from them.
    """

    def __init__(self) -> None:
        self._pods: Mapping[str, Pod] = {}
        self._workloads: Mapping[str, Workload] = {}
        self._tops: dict[str, str] = {}  # uid of a pod or workload → that of its top-level owner
        self._groups: dict[str, WorkloadGroup] = {}
        self._shown: dict[str, WorkloadGroup] = {}

    def update(self, pods: Mapping[str, Pod], workloads: Mapping[str, Workload]) -> Mapping[str, WorkloadGroup]:
        """The groups that hold or request GPUs, or that Acme submitted, by the uid of the top-level owner. All are by
        uid; what is read anew is another object.
        """
        changed = _changed_uids(self._pods, pods) | _changed_uids(self._workloads, workloads)
        self._pods, self._workloads = pods, workloads
        if changed:
            self._form_again(self._take_apart(changed))
        return self._shown

    def _take_apart(self, changed: set[str]) -> set[str]:
        """Remove the groups of these, and return the uids of their parts. An owner that appears or vanishes moves what
        it owns, which was in its own group or in that of its top.
        """
        moving = set(changed)
        for uid in {*changed, *(self._tops.get(uid, uid) for uid in changed)}:
            self._shown.pop(uid, None)
            if group := self._groups.pop(uid, None):
                moving.update(workload.uid for workload in group.workloads)
                moving.update(pod.uid for pod in group.pods)
        for uid in moving:
            self._tops.pop(uid, None)
        return moving

    def _form_again(self, moving: set[str]) -> None:
        formed: dict[str, WorkloadGroup] = {}
        for uid, workload in _in_order(self._workloads, moving):
            self._group_of(uid, _follow_controllers(workload, self._workloads), formed).workloads.append(workload)
        for uid, pod in _in_order(self._pods, moving):
            self._group_of(uid, _top_of_pod(pod, self._workloads), formed).pods.append(pod)
        self._groups.update(formed)
        self._shown.update((uid, group) for uid, group in formed.items() if group.gpus_per_pod or group.is_ours)

    def _group_of(self, uid: str, top: OwnerReference, formed: dict[str, WorkloadGroup]) -> WorkloadGroup:
        """The group to which an object is added: another object than before, because others have that one."""
        self._tops[uid] = top.uid
        if top.uid not in formed:
            before = self._groups.get(top.uid, WorkloadGroup(top))
            formed[top.uid] = WorkloadGroup(top, [*before.workloads], [*before.pods])
        return formed[top.uid]


def _changed_uids(before: Mapping[str, object], now: Mapping[str, object]) -> set[str]:
    gone = before.keys() - now.keys()
    return gone | {uid for uid, value in now.items() if before.get(uid) is not value}


def _in_order(objects: Mapping[str, T], uids: Collection[str]) -> Iterator[tuple[str, T]]:
    """Those of the objects with these uids, in a stable order."""
    return ((uid, objects[uid]) for uid in sorted(uids) if uid in objects)


def _top_of_pod(pod: Pod, workloads: Mapping[str, Workload]) -> OwnerReference:
    controller = pod.controller
    if controller is None or controller.kind in NOT_A_JOB:
        return OwnerReference(uid=pod.uid, kind="Pod", name=pod.name)
    owner = workloads.get(controller.uid)
    return _follow_controllers(owner, workloads) if owner else controller


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
