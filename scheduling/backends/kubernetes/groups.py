"""Top-level owners with everything that they own. Pure.

The top-level owner is found by following the controllers: pod → Job → JobSet → TrainJob. A CronJob is not a job, each
of its Jobs is. An owner of a kind that Acme does not list is known by the reference alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from .attempts import OLDEST, OwnAttempt, own_attempt
from .changes import ChangeLog
from .pods import OwnerReference, Pod
from .workloads import Workload

MAX_OWNERS = 100  # on the way from a pod to its top-level owner; references are untrusted
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

    @property
    def uids(self) -> set[str]:
        return {part.uid for part in self.workloads} | {pod.uid for pod in self.pods}

    @cached_property
    def attempt(self) -> OwnAttempt | None:
        """The attempt that Acme submitted, without what others may have added to it."""
        parts, pods = [part for part in self.workloads if part.owner.key], [pod for pod in self.pods if pod.owner.key]
        return own_attempt(parts, pods, self.top.uid)


class GroupCache:
    """The groups as of the last look. Only those whose parts changed are formed anew; the others stay the same objects,
    and so does what was derived from them. `changes` has the uids of those that are new, changed or gone.
    """

    def __init__(self) -> None:
        self.changes = ChangeLog()
        self.listed: dict[str, WorkloadGroup] = {}  # those that hold or request GPUs, or that Acme submitted
        self._groups: dict[str, WorkloadGroup] = {}  # by the uid of the top-level owner
        self._tops: dict[str, str] = {}  # uid of a pod or workload → uid of its group

    def update(self, pods: Mapping[str, Pod], workloads: Mapping[str, Workload], changed: Set[str] | None) -> None:
        """Apply the changes of pods and workloads with these uids; None: of all, as after an interruption."""
        if changed is None:
            self.listed, self._groups, self._tops = {}, {}, {}
            self.changes.add_everything()
            changed = {*pods, *workloads}
        if changed:
            self._regroup(pods, workloads, changed)

    def _regroup(self, pods: Mapping[str, Pod], workloads: Mapping[str, Workload], changed: Set[str]) -> None:
        """Form the groups anew that had or get a changed part, each from all its parts, so that the result does not
        depend on the order of changes. What an unknown owner owns is in a group under the owner's uid.
        """
        references: dict[str, OwnerReference] = {}
        stale: set[str] = set()
        regrouped, waiting = set(changed), set(changed)
        touched = {*changed, *(self._tops[uid] for uid in changed if uid in self._tops)}
        while waiting or touched - stale:
            for uid in waiting:
                if part := workloads.get(uid) or pods.get(uid):
                    references[uid] = _top_of(part, workloads)
                    touched.add(references[uid].uid)
            members = {uid for top in touched - stale if top in self._groups for uid in self._groups[top].uids}
            stale |= touched
            waiting = members - regrouped
            regrouped |= members
        for uid in regrouped:
            self._tops.pop(uid, None)
        for uid in stale:
            self._groups.pop(uid, None)
            self.listed.pop(uid, None)
            self.changes.add(uid)
        groups = _form_groups(references, pods, workloads)
        self._tops |= {uid: top.uid for uid, top in references.items()}
        self._groups |= groups
        self.listed |= {uid: group for uid, group in groups.items() if group.gpus_per_pod or group.is_ours}


def _form_groups(
    references: Mapping[str, OwnerReference], pods: Mapping[str, Pod], workloads: Mapping[str, Workload]
) -> dict[str, WorkloadGroup]:
    """The groups of these pods and workloads, the oldest parts first. `references` says to which group each belongs."""
    groups: dict[str, WorkloadGroup] = {}
    for workload in sorted((workloads[uid] for uid in references if uid in workloads), key=_age):
        top = references[workload.uid]
        groups.setdefault(top.uid, WorkloadGroup(top)).workloads.append(workload)
    for pod in sorted((pods[uid] for uid in references if uid in pods), key=_age):
        top = references[pod.uid]
        groups.setdefault(top.uid, WorkloadGroup(top)).pods.append(pod)
    return groups


def _age(part: Pod | Workload) -> tuple[datetime, str]:
    return (part.created_at or OLDEST, part.uid)


def _top_of(part: Pod | Workload, workloads: Mapping[str, Workload]) -> OwnerReference:
    """The top-level owner: the last known one, or the reference to an unknown one. Owners that own each other in a
    circle have the one with the smallest uid as top.
    """
    chain: dict[str, Pod | Workload] = {}
    while part.uid not in chain and len(chain) < MAX_OWNERS:
        chain[part.uid] = part
        controller = part.controller
        if controller is None or controller.kind in NOT_A_JOB:
            return _reference_to(part)
        if controller.uid not in workloads:
            return controller
        part = workloads[controller.uid]
    uids = list(chain)
    circle = uids[uids.index(part.uid) :] if part.uid in chain else uids
    return _reference_to(chain[min(circle)])


def _reference_to(part: Pod | Workload) -> OwnerReference:
    return OwnerReference(uid=part.uid, kind=part.kind if isinstance(part, Workload) else "Pod", name=part.name)
