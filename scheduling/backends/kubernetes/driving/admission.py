"""The next steps of attempts that need more than their submission. Pure: the cached objects in, small values out.

| attempt | step |
|---|---|
| pods are missing that Acme creates itself, and it was not admitted | `CreatePods` |
| all its pods exist, and each fits on its node | `Admit`: record the uids of the pods, then place them |
| it is admitted, and some of its pods were not placed | `Place` them |
| its pods have ended, or one was deleted, and nothing records the end | `RecordEnd`, which ends the other pods |
| its recorded end has left pods running | `DeletePods` |
| it ended a day ago | `DeleteOwner` |

Attempts are looked at in the order of their creation, and each admitted one takes its share of its nodes first. Pods of
other people count, so what does not fit waits here, with a sentence, instead of being rejected by the kubelet.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from jobs.core.gpu_shares import whole_gpus
from jobs.core.lifecycle import NodeFlag

from ..attempts import OLDEST, OwnAttempt, attempt_end
from ..ends import PodEnd
from ..nodes import NodeReport
from ..pods import Pod

KEEP_ENDED = timedelta(days=1)
CREATED_BY_ACME = "ConfigMap"  # the kind of owner whose pods no controller creates
SINGLE_POD = "Pod"


@dataclass(frozen=True, kw_only=True)
class Step:
    attempt: OwnAttempt


@dataclass(frozen=True, kw_only=True)
class CreatePods(Step):
    pass


@dataclass(frozen=True, kw_only=True)
class Place(Step):
    """Pods with their nodes."""

    placements: Sequence[tuple[Pod, str]]


@dataclass(frozen=True, kw_only=True)
class Admit(Place):
    pass


@dataclass(frozen=True, kw_only=True)
class RecordEnd(Step):
    end: PodEnd


@dataclass(frozen=True, kw_only=True)
class DeletePods(Step):
    pods: Sequence[Pod]


@dataclass(frozen=True, kw_only=True)
class DeleteOwner(Step):
    pass


@dataclass(frozen=True, kw_only=True)
class PodNeed:
    """What a pod requests."""

    gpus: int  # with MIG slices
    cpus: float
    memory_mb: int
    mig_slices: Mapping[str, int]  # by profile

    @classmethod
    def of(cls, pod: Pod) -> PodNeed:
        return cls(gpus=pod.gpus, cpus=pod.cpus, memory_mb=pod.memory_mb, mig_slices=pod.mig_slices)

    @property
    def whole_gpus(self) -> int:
        return whole_gpus(self.gpus, self.mig_slices)


class FreeCapacity:
    """What pods may still request on each node. Several threads may reserve it."""

    def __init__(self, nodes: Iterable[NodeReport], pods: Iterable[Pod]) -> None:
        self._lock = threading.Lock()
        self._nodes = {node.name: node for node in nodes}
        self._gpus: dict[str, int] = defaultdict(int)  # with MIG slices
        self._slices: Counter[tuple[str, str]] = Counter()  # MIG slices by node and profile
        self._cpus: dict[str, float] = defaultdict(float)
        self._memory_mb: dict[str, int] = defaultdict(int)
        for pod in pods:
            if pod.node and pod.is_live:
                self.take(pod, pod.node)

    def copy(self) -> FreeCapacity:
        other = FreeCapacity((), ())
        other._nodes = self._nodes
        other._gpus, other._cpus, other._memory_mb = self._gpus.copy(), self._cpus.copy(), self._memory_mb.copy()
        other._slices = self._slices.copy()
        return other

    def take(self, pod: Pod, node: str) -> None:
        self._take(node, PodNeed.of(pod))

    def _take(self, node: str, need: PodNeed) -> None:
        self._gpus[node] += need.gpus
        self._cpus[node] += need.cpus
        self._memory_mb[node] += need.memory_mb
        for profile, count in need.mig_slices.items():
            self._slices[node, profile] += count

    def reserve(self, node: str, need: PodNeed) -> str:
        """Take this capacity for a pod that is about to be created, unless there is an obstacle, which is returned."""
        with self._lock:
            if not (text := self.obstacle(node, need)):
                self._take(node, need)
            return text

    def obstacle(self, node: str, need: PodNeed) -> str:
        """Why a pod cannot start on this node now; empty if it can."""
        report = self._nodes.get(node)
        if report is None:
            return f"node {node} does not exist"
        if report.power:
            return f"node {node} sleeps or wakes up"
        if not report.usable or NodeFlag.DRAIN in report.flags:
            return f"node {node} is not available: {report.reason}"
        slices = {profile: self._slices[node, profile] for profile in {**report.mig_slices, **need.mig_slices}}
        held_gpus = self._gpus[node] - sum(slices.values())
        for name, free, wanted in (
            ("GPUs", whole_gpus(report.gpus, report.mig_slices) - held_gpus, need.whole_gpus),
            *(
                (f"MIG slices {profile}", report.mig_slices.get(profile, 0) - slices[profile], count)
                for profile, count in need.mig_slices.items()
            ),
            ("CPUs", report.cpus - self._cpus[node], need.cpus),
            ("MB of memory", report.memory_mb - self._memory_mb[node], need.memory_mb),
        ):
            if wanted > free:
                return f"node {node} has {max(free, 0):g} {name} free, and the pod requests {wanted:g}"
        return ""


class SettledAttempts:
    """The attempts that run and need no step, until they change, or the lost nodes or the late pods do."""

    def __init__(self) -> None:
        self._derived_for: object = None
        self._by_uid: dict[str, OwnAttempt] = {}

    def unsettled(
        self, attempts: Iterable[OwnAttempt], lost_nodes: Collection[str], late: Collection[str]
    ) -> list[OwnAttempt]:
        """Those to look at. The settled ones that are not among the attempts any more are forgotten."""
        known = self._by_uid if self._derived_for == (lost_nodes, late) else {}
        self._derived_for, self._by_uid = (lost_nodes, late), {}
        found: list[OwnAttempt] = []
        for attempt in attempts:
            if known.get(attempt.owner.uid) is attempt:
                self.add(attempt)
            else:
                found.append(attempt)
        return found

    def add(self, attempt: OwnAttempt) -> None:
        self._by_uid[attempt.owner.uid] = attempt


def next_steps(
    attempts: Iterable[OwnAttempt],
    free: FreeCapacity,
    lost_nodes: Collection[str],
    late: Collection[str],
    now: datetime,
    settled: SettledAttempts,
) -> list[Step]:
    """At most one step of each attempt. `late`: see `attempt_end`."""
    unsettled = settled.unsettled((attempt for attempt in attempts if not _is_gone(attempt)), lost_nodes, late)
    ordered = sorted(unsettled, key=lambda attempt: (attempt.owner.created_at or OLDEST, attempt.owner.uid))
    steps = []
    for attempt in ordered:
        end = attempt_end(attempt, lost_nodes, late)
        step = _step_after_end(attempt, end, now) if end else _next_step(attempt, free)
        if step:
            steps.append(step)
        elif end is None and attempt.plan.admitted:
            settled.add(attempt)
    return steps


def _is_gone(attempt: OwnAttempt) -> bool:
    return attempt.owner.gone_at is not None


def _next_step(attempt: OwnAttempt, free: FreeCapacity) -> Step | None:
    """The next step of an attempt that has not ended."""
    if attempt.plan.admitted:
        unplaced = [
            (pod, node)
            for pod, node in zip(attempt.members, attempt.plan.nodes, strict=True)
            if pod and not pod.node and not pod.is_deleting
        ]
        return Place(attempt=attempt, placements=unplaced) if unplaced else None
    if any(pod is None for pod in attempt.members):
        return CreatePods(attempt=attempt) if attempt.owner.kind == CREATED_BY_ACME else None
    return _admission(attempt, free)


def _admission(attempt: OwnAttempt, free: FreeCapacity) -> Step | None:
    if obstacle(attempt, free):
        return None
    placements = [(pod, node) for pod, node in zip(attempt.members, attempt.plan.nodes, strict=True) if pod]
    for pod, node in placements:
        free.take(pod, node)
    return Admit(attempt=attempt, placements=placements)


def _step_after_end(attempt: OwnAttempt, end: PodEnd, now: datetime) -> Step | None:
    owner, recorded = attempt.owner, attempt.plan.ended
    if recorded is None and owner.end is None and owner.kind != SINGLE_POD:
        return RecordEnd(attempt=attempt, end=end)
    if recorded and (running := [pod for pod in attempt.live_pods if not pod.is_deleting]):
        return DeletePods(attempt=attempt, pods=running)
    if end.at and now - end.at > KEEP_ENDED:
        return DeleteOwner(attempt=attempt)
    return None


def obstacle(attempt: OwnAttempt, free: FreeCapacity) -> str:
    """Why an attempt that was not admitted waits; empty if it need not."""
    members = list(zip(attempt.members, attempt.plan.nodes, strict=True))
    if missing := sum(pod is None for pod, _ in members):
        return f"{missing} of {len(members)} pods do not exist yet"
    obstacles = (free.obstacle(node, PodNeed.of(pod)) for pod, node in members if pod)
    return next(filter(None, obstacles), "")


def obstacles(attempts: Iterable[OwnAttempt], free: FreeCapacity) -> Iterator[tuple[str, str]]:
    """The uids of owners that wait, and why."""
    for attempt in attempts:
        if not attempt.plan.admitted and not attempt.is_over and (text := obstacle(attempt, free)):
            yield attempt.owner.uid, text
