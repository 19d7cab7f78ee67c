"""Owners of pods: Jobs, JobSets, training jobs, Ray and Volcano jobs, Deployments and others. Pure.

All kinds are read alike. Their pod templates are found wherever they are in the spec, with the numbers of replicas on
the way to them. Their ends are found by the names of conditions and phases that these kinds share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from jobs.core.lifecycle import State

from .ends import PodEnd
from .fields import mapping_at, mappings_at, require_text, text_at, time_at
from .ownership import Owner, OwnerMapping
from .plans import AttemptPlan, read_plan
from .pods import OwnerReference, read_controller, read_time_limit
from .resources import PodResources

MAX_DEPTH = 8  # of a pod template in a spec: that of a RayJob is at the fifth level
SUCCEEDED_CONDITIONS = frozenset({"Complete", "Completed", "Succeeded"})
FAILED_CONDITION = "Failed"
# Phases of a Ray job (`jobStatus`) and of a Volcano job (`state.phase`)
STATE_OF_PHASE = {
    **dict.fromkeys(("SUCCEEDED", "Completed"), State.COMPLETED),
    **dict.fromkeys(("FAILED", "Failed"), State.FAILED),
    **dict.fromkeys(("STOPPED", "Aborted", "Terminated"), State.CANCELLED),
}
TIME_LIMIT_REASONS = frozenset({"DeadlineExceeded"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """An object that owns pods, or that owns their owners."""

    uid: str
    kind: str
    namespace: str
    name: str
    controller: OwnerReference | None
    owner: Owner
    gpus_per_pod: int  # the most that one of its pod templates requests
    suspended: bool
    created_at: datetime | None
    started_at: datetime | None
    time_limit: timedelta | None
    end: PodEnd | None
    collection: str = ""  # the path of all objects of its kind
    plan: AttemptPlan | None = None  # of an attempt that Acme submitted
    gone_at: datetime | None = None  # its object was deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaWait:
    """Why Kueue does not admit a workload; empty if it is admitted."""

    uid: str
    for_uids: tuple[str, ...]  # the objects that wait
    reason: str


def read_workload(item: Mapping[str, Any], kind: str, collection: str, owners: OwnerMapping) -> Workload:
    """Raises MalformedResponse. `kind` is the one that was listed: items of a list do not always name theirs."""
    spec, owner = mapping_at(item, "spec"), owners.owner(item)
    templates = list(pod_templates(spec))
    limits = map(read_time_limit, (spec, mapping_at(spec, "runPolicy"), *templates))
    return Workload(
        uid=require_text(item, "metadata", "uid"),
        kind=kind,
        namespace=require_text(item, "metadata", "namespace"),
        name=require_text(item, "metadata", "name"),
        controller=read_controller(item),
        owner=owner,
        collection=collection,
        plan=read_plan(item) if owner.key else None,
        gpus_per_pod=max((PodResources(template).gpus for template in templates), default=0),
        suspended=spec.get("suspend") is True or mapping_at(spec, "runPolicy").get("suspend") is True,
        created_at=time_at(item, "metadata", "creationTimestamp"),
        started_at=time_at(item, "status", "startTime"),
        time_limit=next(filter(None, limits), None),
        end=_end(item),
    )


def pod_templates(spec: object, depth: int = MAX_DEPTH) -> Iterator[Mapping[str, Any]]:
    """The pod specs that the spec of a workload contains."""
    if depth == 0:
        return
    children = spec.values() if isinstance(spec, Mapping) else spec if isinstance(spec, list) else ()
    for child in children:
        if isinstance(child, Mapping) and isinstance(child.get("containers"), list):
            yield child
        elif isinstance(child, (Mapping, list)):
            yield from pod_templates(child, depth - 1)


def _end(item: Mapping[str, Any]) -> PodEnd | None:
    for condition in mappings_at(item, "status", "conditions"):
        if condition.get("status") == "True":
            if condition.get("type") in SUCCEEDED_CONDITIONS:
                return PodEnd(state=State.COMPLETED, at=_end_time(item, condition))
            if condition.get("type") == FAILED_CONDITION:
                return _failed_end(condition, _end_time(item, condition))
    return _end_of_phase(item)


def _end_time(item: Mapping[str, Any], condition: Mapping[str, Any]) -> datetime | None:
    return time_at(item, "status", "completionTime") or time_at(condition, "lastTransitionTime")


def _failed_end(place: Mapping[str, Any], at: datetime | None) -> PodEnd:
    reason, message = text_at(place, "reason"), text_at(place, "message")
    state = State.TIMEOUT if reason in TIME_LIMIT_REASONS else State.FAILED
    return PodEnd(state=state, at=at, reason=": ".join(text for text in (reason, message) if text))


def _end_of_phase(item: Mapping[str, Any]) -> PodEnd | None:
    status, volcano = mapping_at(item, "status"), mapping_at(item, "status", "state")
    state = STATE_OF_PHASE.get(text_at(status, "jobStatus") or text_at(volcano, "phase"))
    if state is None:
        return None
    at = time_at(status, "endTime") or time_at(volcano, "lastTransitionTime")
    reasons: Sequence[str] = (text_at(volcano, "reason"), text_at(status, "message") or text_at(volcano, "message"))
    return PodEnd(state=state, at=at, reason="" if state == State.COMPLETED else ": ".join(filter(None, reasons)))


def read_quota_wait(item: Mapping[str, Any]) -> QuotaWait:
    """A Workload of Kueue. Raises MalformedResponse."""
    references = mappings_at(item, "metadata", "ownerReferences")
    uids = tuple(uid for reference in references if (uid := text_at(reference, "uid")))
    return QuotaWait(uid=require_text(item, "metadata", "uid"), for_uids=uids, reason=_quota_reason(item))


def _quota_reason(item: Mapping[str, Any]) -> str:
    conditions = {str(entry.get("type")): entry for entry in mappings_at(item, "status", "conditions")}
    if any(conditions.get(name, {}).get("status") == "True" for name in ("Admitted", "Finished")):
        return ""
    queue = text_at(item, "spec", "queueName")
    waits = f"waits for quota of queue {queue}" if queue else "waits for quota"
    message = text_at(conditions.get("QuotaReserved"), "message")
    return f"{waits}: {message}" if message else waits
