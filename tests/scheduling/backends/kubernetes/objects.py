"""API objects with the fields that Acme reads, written from the published API schemas."""

from __future__ import annotations

from itertools import count
from typing import Any

CREATED = "2026-03-01T10:00:00Z"
STARTED = "2026-03-01T10:00:05Z"
FINISHED = "2026-03-01T11:00:00Z"
numbers = count(1)


def metadata(name: str, *, controller: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    values = {"name": name, "uid": f"uid-{name}", "namespace": "research", "creationTimestamp": CREATED}
    owners = [{"controller": True, "kind": controller["kind"], **_reference(controller)}] if controller else []
    return {**values, "resourceVersion": str(next(numbers)), "ownerReferences": owners, "labels": {}, **more}


def _reference(item: dict[str, Any]) -> dict[str, Any]:
    return {"uid": item["metadata"]["uid"], "name": item["metadata"]["name"]}


def condition(name: str, status: str = "True", **more: Any) -> dict[str, Any]:
    return {"type": name, "status": status, "lastTransitionTime": FINISHED, **more}


def node(name: str = "n1", gpus: int = 8, **more: Any) -> dict[str, Any]:
    resources = {"cpu": "64", "memory": "1Ti", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    values: dict[str, Any] = {
        "kind": "Node",
        "metadata": {**metadata(name), "namespace": "", "labels": more.pop("labels", {})},
        "spec": more.pop("spec", {}),
        "status": {
            "allocatable": more.pop("allocatable", resources),
            "capacity": more.pop("capacity", resources),
            "conditions": more.pop("conditions", [condition("Ready")]),
        },
    }
    assert not more
    return values


def template(gpus: int = 8, resource: str = "nvidia.com/gpu") -> dict[str, Any]:
    limits = {resource: str(gpus)} if gpus else {}
    return {"containers": [{"name": "main", "resources": {"limits": limits, "requests": {"cpu": "2", **limits}}}]}


def pod(
    name: str = "p1",
    *,
    on: str = "",
    phase: str = "",
    gpus: int = 8,
    controller: dict[str, Any] | None = None,
    terminated: dict[str, Any] | None = None,
    waiting: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    **meta: Any,
) -> dict[str, Any]:
    """Without `on` it is not scheduled; without `phase` it runs there."""
    phase = phase or ("Running" if on else "Pending")
    state: dict[str, Any] = {"running": {"startedAt": STARTED}} if phase == "Running" else {}
    state |= {"terminated": {"finishedAt": FINISHED, **terminated}} if terminated else {}
    state |= {"waiting": waiting} if waiting else {}
    return {
        "kind": "Pod",
        "metadata": metadata(name, controller=controller, **meta),
        "spec": {**template(gpus), **({"nodeName": on} if on else {})},
        "status": {
            "phase": phase,
            **({"startTime": STARTED} if on else {}),
            "containerStatuses": [{"name": "main", "state": state}] if state else [],
            **(status or {}),
        },
    }


def ended_pod(name: str = "p1", exit_code: int = 1, reason: str = "Error", **more: Any) -> dict[str, Any]:
    terminated = {"exitCode": exit_code, "reason": reason}
    return pod(name, on=more.pop("on", "n1"), phase=more.pop("phase", "Failed"), terminated=terminated, **more)


def workload(
    kind: str = "Job",
    name: str = "train",
    *,
    controller: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    gpus: int = 8,
    **meta: Any,
) -> dict[str, Any]:
    return {
        "kind": kind,
        "metadata": metadata(name, controller=controller, **meta),
        "spec": {"template": {"spec": template(gpus)}, **(spec or {})},
        "status": {"startTime": STARTED, **(status or {})},
    }


def finished(kind: str, **more: Any) -> dict[str, Any]:
    return {"conditions": [condition(kind, **more)]}
