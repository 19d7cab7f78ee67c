"""Pods: where they run, what they hold, why they wait and how they ended. Pure.

| how a pod ended | state |
|---|---|
| phase Succeeded | COMPLETED |
| a container was OOMKilled | OUT_OF_MEMORY |
| DeadlineExceeded | TIMEOUT |
| preempted by the scheduler, or evicted through the API (a drain) | PREEMPTED |
| evicted by its kubelet, node lost, shut down or deleted | NODE_FAIL |
| rejected by its kubelet before it started | BOOT_FAIL |
| it ended after somebody requested its deletion | CANCELLED |
| anything else | FAILED, with the exit code of the first container that failed |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from jobs.core.lifecycle import State

from .ends import CAUSES, PodEnd, failure_order
from .fields import count_at, mapping_at, mappings_at, require_text, text_at, texts_at, time_at
from .ownership import Owner, OwnerMapping
from .plans import AttemptPlan, read_plan
from .pod_objects import FAILS_IF_STOPPED_ANNOTATION
from .resources import PodResources

# Reasons of a pod's status, of its condition DisruptionTarget, and of its containers
STATE_OF_REASON = {
    "OOMKilled": State.OUT_OF_MEMORY,
    "DeadlineExceeded": State.TIMEOUT,
    **dict.fromkeys(("Preempting", "PreemptionByScheduler", "EvictionByEvictionAPI"), State.PREEMPTED),
    **dict.fromkeys(("Evicted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated"), State.NODE_FAIL),
    **dict.fromkeys(("TerminationByKubelet", "DeletionByTaintManager", "DeletionByPodGC"), State.NODE_FAIL),
    "ContainerStatusUnknown": State.NODE_FAIL,  # the kubelet found no trace of it, as after a reboot
    **dict.fromkeys(("UnexpectedAdmissionError", "NodeAffinity", "NodeSelectorMismatching"), State.BOOT_FAIL),
}
OUT_OF_RESOURCE = "OutOf"  # `OutOfcpu`, `OutOfnvidia.com/gpu`: the kubelet had less than the scheduler believed
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"  # set by Jobs, and by Acme on pods without a Job
MAX_INDEX_DIGITS = 6
LATEST = datetime.max.replace(tzinfo=UTC)
MAX_TIME_LIMIT_S = 10 * 366 * 86_400
MAX_SIGNAL = 127  # a number that the database stores; real ones are at most 64
NO_REASON = frozenset({"", "Completed", "Error"})  # these add nothing to the exit code
STARTING = frozenset({"ContainerCreating", "PodInitializing"})
NO_CAUSE = frozenset({State.COMPLETED, State.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerReference:
    """The controller that created an object."""

    uid: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    uid: str
    namespace: str
    name: str
    controller: OwnerReference | None
    owner: Owner
    node: str
    gpus: int  # with MIG slices
    cpus: float
    memory_mb: int
    created_at: datetime | None
    started_at: datetime | None  # when its kubelet accepted it
    running: bool  # a container has started
    waits: str  # why it is not scheduled, or why its containers do not start
    end: PodEnd | None
    index: int | None = None  # within its Job or its gang
    is_gated: bool = False  # scheduling gates keep every scheduler away from it
    is_deleting: bool = False  # its deletion was requested; its containers may still run
    plan: AttemptPlan | None = None  # of an attempt that is this pod alone
    gone_at: datetime | None = None  # its object was deleted
    fails_if_stopped: bool = False  # its program cannot succeed after a stop (`pod_script`)
    mig_slices: Mapping[str, int] = field(default_factory=dict)  # by profile

    @property
    def is_live(self) -> bool:
        return self.end is None and self.gone_at is None


def pod_end(pod: Pod, lost_nodes: Collection[str]) -> PodEnd:
    """How a pod ended that has ended or was deleted."""
    if pod.end:
        return pod.end
    if pod.node in lost_nodes:
        return PodEnd(state=State.NODE_FAIL, at=pod.gone_at, reason=f"deleted after node {pod.node} was lost")
    return PodEnd(state=State.CANCELLED, at=pod.gone_at, reason="deleted")


def with_cause(end: PodEnd, pods: Iterable[Pod], lost_nodes: Collection[str]) -> PodEnd:
    """The end of a failed job with what its pods say about the cause."""
    failed = [pod for pod in pods if not pod.is_live and pod_end(pod, lost_nodes).state not in NO_CAUSE]
    if not failed:
        return end
    first = min(failed, key=lambda pod: failure_order(pod_end(pod, lost_nodes)))
    cause = pod_end(first, lost_nodes)
    state = cause.state if cause.state in CAUSES and end.state == State.FAILED else end.state
    reason = "; ".join(text for text in (end.reason, f"{first.name}: {cause.reason}" if cause.reason else "") if text)
    return PodEnd(state=state, at=end.at, exit_code=cause.exit_code, signal=cause.signal, reason=reason)


def read_pod(item: Mapping[str, Any], owners: OwnerMapping) -> Pod:
    """Raises MalformedResponse."""
    spec, resources = mapping_at(item, "spec"), PodResources(mapping_at(item, "spec"))
    owner, controller = owners.owner(item), read_controller(item)
    return Pod(
        uid=require_text(item, "metadata", "uid"),
        namespace=require_text(item, "metadata", "namespace"),
        name=require_text(item, "metadata", "name"),
        controller=controller,
        owner=owner,
        node=text_at(spec, "nodeName"),
        gpus=resources.gpus,
        cpus=resources.cpus,
        memory_mb=resources.memory_mb,
        created_at=time_at(item, "metadata", "creationTimestamp"),
        started_at=time_at(item, "status", "startTime"),
        running=any(
            mapping_at(status, "state", "running")
            or mapping_at(status, "lastState")
            or mapping_at(status, "state", "terminated")
            for status in _statuses(item)
        ),
        waits=_wait_reason(item),
        end=_pod_end(item),
        index=_index(item),
        is_gated=bool(mappings_at(spec, "schedulingGates")),
        is_deleting=bool(text_at(item, "metadata", "deletionTimestamp")),
        plan=read_plan(item) if owner.key and controller is None else None,
        mig_slices=resources.mig_slices,
        fails_if_stopped=FAILS_IF_STOPPED_ANNOTATION in texts_at(item, "metadata", "annotations"),
    )


def _index(item: Mapping[str, Any]) -> int | None:
    text = texts_at(item, "metadata", "annotations").get(INDEX_ANNOTATION, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_INDEX_DIGITS else None


def read_controller(item: Mapping[str, Any]) -> OwnerReference | None:
    for reference in mappings_at(item, "metadata", "ownerReferences"):
        uid, kind, name = (text_at(reference, part, largest=253) for part in ("uid", "kind", "name"))
        if reference.get("controller") is True and uid and kind and name:
            return OwnerReference(uid=uid, kind=kind, name=name)
    return None


def _statuses(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return mappings_at(item, "status", "containerStatuses")


def _condition(item: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    conditions = mappings_at(item, "status", "conditions")
    return next((condition for condition in conditions if condition.get("type") == name), {})


def _wait_reason(item: Mapping[str, Any]) -> str:
    scheduled = _condition(item, "PodScheduled")
    if scheduled.get("status") == "False":
        return _two_texts(scheduled)
    for status in [*mappings_at(item, "status", "initContainerStatuses"), *_statuses(item)]:
        waiting = mapping_at(status, "state", "waiting")
        if text_at(waiting, "reason") not in {"", *STARTING}:
            return _two_texts(waiting)
    return ""


def _two_texts(place: Mapping[str, Any]) -> str:
    """`ImagePullBackOff: Back-off pulling image …`"""
    texts = (text_at(place, "reason"), text_at(place, "message"))
    return ": ".join(text for text in texts if text)


def _pod_end(item: Mapping[str, Any]) -> PodEnd | None:
    phase = text_at(item, "status", "phase")
    if phase not in ("Succeeded", "Failed"):
        return None
    terminated = _terminated(item)
    at = max((at for state in terminated if (at := time_at(state, "finishedAt"))), default=None)
    if phase == "Succeeded":
        return PodEnd(state=State.COMPLETED, at=at, exit_code=0)
    first = min((state for state in terminated if _failed(state)), key=lambda s: text_at(s, "finishedAt"), default={})
    exit_code, signal = count_at(first, "exitCode"), count_at(first, "signal")
    state, reason = _failure(item, first, at)
    if state == State.TIMEOUT:
        # Kubelets of 1.20 do not report when: some containers are still being stopped, and others ended long before
        reached = time_limit_reached_at(time_at(item, "status", "startTime"), read_time_limit(mapping_at(item, "spec")))
        at = max((time for time in (at, reached) if time), default=None)
    signal = signal if signal and signal <= MAX_SIGNAL else None
    return PodEnd(state=state, at=at, exit_code=exit_code, signal=signal, reason=reason)


def time_limit_reached_at(started_at: datetime | None, limit: timedelta | None) -> datetime | None:
    return min(started_at, LATEST - limit) + limit if started_at and limit else None


def read_time_limit(spec: Mapping[str, Any]) -> timedelta | None:
    """The time limit of a pod or a workload."""
    seconds = count_at(spec, "activeDeadlineSeconds")
    return timedelta(seconds=seconds) if seconds and seconds <= MAX_TIME_LIMIT_S else None


def _terminated(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    statuses = [*mappings_at(item, "status", "initContainerStatuses"), *_statuses(item)]
    return [state for status in statuses if (state := mapping_at(status, "state", "terminated"))]


def _failed(terminated: Mapping[str, Any]) -> bool:
    return bool(count_at(terminated, "exitCode")) or text_at(terminated, "reason") == "OOMKilled"


def _failure(item: Mapping[str, Any], container: Mapping[str, Any], at: datetime | None) -> tuple[State, str]:
    """The state of a failed pod and the reason: of the pod, of a disruption, or of its first failed container."""
    for place in (mapping_at(item, "status"), _disruption(item), container):
        reason = text_at(place, "reason")
        if state := _state_of_reason(reason):
            return state, _two_texts(place)
    if _deletion_precedes(item, at):
        return State.CANCELLED, "deleted"
    return State.FAILED, "" if text_at(container, "reason") in NO_REASON else _two_texts(container)


def _state_of_reason(reason: str) -> State | None:
    return State.BOOT_FAIL if reason.startswith(OUT_OF_RESOURCE) else STATE_OF_REASON.get(reason)


def _disruption(item: Mapping[str, Any]) -> Mapping[str, Any]:
    target = _condition(item, "DisruptionTarget")
    return target if target.get("status") == "True" else {}


def _deletion_precedes(item: Mapping[str, Any], ended_at: datetime | None) -> bool:
    """Whether somebody requested the deletion before the pod ended. The timestamp is the end of the grace period."""
    due = time_at(item, "metadata", "deletionTimestamp")
    grace = timedelta(seconds=count_at(item, "metadata", "deletionGracePeriodSeconds") or 0)
    return due is not None and (ended_at is None or ended_at >= due - grace)
