"""The tables that kubectl prints, and objects reduced to their metadata. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduling.simulation.kubernetes.objects import JsonObject, condition_of, seconds_of, value_at

from .resources import ResourceType

TABLE, PARTIAL = "Table", "PartialObjectMetadata"
META_VERSION = "meta.k8s.io/v1"
NONE = "<none>"


@dataclass(frozen=True, kw_only=True)
class Column:
    name: str
    value: Callable[[JsonObject, float], Any]
    wide: bool = False  # shown with `-o wide` only
    type: str = "string"


def requested_form(accept: str) -> str:
    """Table, PartialObjectMetadata or nothing: the first form of the header that the server has."""
    for choice in accept.split(","):
        form = re.search(r";\s*as=(\w+)", choice)
        if form is None and "json" in choice:
            return ""
        if form is not None and "json" in choice and form[1] in (TABLE, PARTIAL, f"{PARTIAL}List"):
            return PARTIAL if form[1].startswith(PARTIAL) else TABLE
    return ""


def table_body(
    resource: ResourceType, objects: Iterable[JsonObject], metadata: JsonObject, now: float, include: str = ""
) -> JsonObject:
    columns = COLUMNS.get(resource.id, DEFAULT_COLUMNS)
    return {
        "kind": TABLE,
        "apiVersion": META_VERSION,
        "metadata": metadata,
        "columnDefinitions": [_definition(column) for column in columns],
        "rows": [_row(resource, columns, found, now, include) for found in objects],
    }


def _definition(column: Column) -> JsonObject:
    form = "name" if column.name == "Name" else ""
    return {
        "name": column.name,
        "type": column.type,
        "format": form,
        "description": column.name,
        "priority": int(column.wide),
    }


def _row(resource: ResourceType, columns: Sequence[Column], found: JsonObject, now: float, include: str) -> JsonObject:
    shown = {"None": None, "Object": {"kind": resource.kind, "apiVersion": resource.api_version, **found}}
    cells = [column.value(found, now) for column in columns]
    return {"cells": cells, "object": shown.get(include, partial_object(found))}


def partial_object(found: JsonObject) -> JsonObject:
    return {"kind": PARTIAL, "apiVersion": META_VERSION, "metadata": found["metadata"]}


def partial_list(objects: Iterable[JsonObject], metadata: JsonObject) -> JsonObject:
    items = [partial_object(found) for found in objects]
    return {"kind": f"{PARTIAL}List", "apiVersion": META_VERSION, "metadata": metadata, "items": items}


# Cells


def age_text(seconds: float) -> str:
    """A duration as kubectl prints it: two units at most."""
    whole = max(int(seconds), 0)
    if whole < 120:
        return f"{whole}s"
    if whole < 600:
        return f"{whole // 60}m{whole % 60}s" if whole % 60 else f"{whole // 60}m"
    if whole < 3 * 3600:
        return f"{whole // 60}m"
    if whole < 8 * 3600:
        return f"{whole // 3600}h{whole % 3600 // 60}m" if whole % 3600 // 60 else f"{whole // 3600}h"
    if whole < 48 * 3600:
        return f"{whole // 3600}h"
    return f"{whole // 86400}d"


def _at(*path: str, default: Any = NONE) -> Callable[[JsonObject, float], Any]:
    return lambda found, now: value_at(found, *path, default=default)


def _age(found: JsonObject, now: float) -> str:
    return age_text(now - seconds_of(found["metadata"]["creationTimestamp"]))


def _pod_ready(pod: JsonObject, now: float) -> str:
    statuses = value_at(pod, "status", "containerStatuses", default=[])
    return f"{sum(bool(one.get('ready')) for one in statuses)}/{len(pod['spec']['containers'])}"


def pod_status_text(pod: JsonObject, now: float = 0.0) -> str:
    """The status column: a reason of the pod or its containers, or its phase."""
    if "deletionTimestamp" in pod["metadata"]:
        return "Unknown" if value_at(pod, "status", "reason") == "NodeLost" else "Terminating"
    if reason := value_at(pod, "status", "reason"):
        return str(reason)
    for status in value_at(pod, "status", "containerStatuses", default=[]):
        state = status.get("state", {})
        detail = state.get("waiting") or state.get("terminated") or {}
        if detail:
            return str(detail.get("reason") or f"ExitCode:{detail.get('exitCode')}")
    gated = condition_of(pod, "PodScheduled")
    if gated is not None and gated.get("reason") == "SchedulingGated":
        return "SchedulingGated"
    return str(value_at(pod, "status", "phase", default="Unknown"))


def _pod_restarts(pod: JsonObject, now: float) -> str:
    statuses = value_at(pod, "status", "containerStatuses", default=[])
    return str(sum(int(one.get("restartCount", 0)) for one in statuses))


def _node_status(node: JsonObject, now: float) -> str:
    ready = (condition_of(node, "Ready") or {}).get("status")
    text = {"True": "Ready", "False": "NotReady"}.get(str(ready), "NotReady" if ready else "Unknown")
    return f"{text},SchedulingDisabled" if value_at(node, "spec", "unschedulable") else text


def _node_roles(node: JsonObject, now: float) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = value_at(node, "metadata", "labels", default={})
    return ",".join(sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix))) or NONE


def _node_address(kind: str) -> Callable[[JsonObject, float], str]:
    def text(node: JsonObject, now: float) -> str:
        addresses = value_at(node, "status", "addresses", default=[])
        return next((str(one["address"]) for one in addresses if one.get("type") == kind), NONE)

    return text


def _job_status(job: JsonObject, now: float) -> str:
    for kind, text in (("Complete", "Complete"), ("Failed", "Failed"), ("Suspended", "Suspended")):
        if (condition_of(job, kind) or {}).get("status") == "True":
            return text
    return "Terminating" if "deletionTimestamp" in job["metadata"] else "Running"


def _job_completions(job: JsonObject, now: float) -> str:
    done = value_at(job, "status", "succeeded", default=0)
    if (wanted := job["spec"].get("completions")) is not None:
        return f"{done}/{wanted}"
    return f"{done}/1 of {parallel}" if (parallel := job["spec"].get("parallelism", 0)) > 1 else f"{done}/1"


def _job_duration(job: JsonObject, now: float) -> str:
    started = value_at(job, "status", "startTime")
    if started is None:
        return ""
    completed = value_at(job, "status", "completionTime")
    return age_text((seconds_of(completed) if completed else now) - seconds_of(started))


def _event_object(event: JsonObject, now: float) -> str:
    about = event.get("involvedObject", {})
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def _event_age(event: JsonObject, now: float) -> str:
    last = event.get("lastTimestamp") or event["metadata"]["creationTimestamp"]
    return age_text(now - seconds_of(last))


def _service_ports(service: JsonObject, now: float) -> str:
    ports = value_at(service, "spec", "ports", default=[])
    return ",".join(f"{port.get('port')}/{port.get('protocol', 'TCP')}" for port in ports) or NONE


def _budget_value(name: str) -> Callable[[JsonObject, float], str]:
    return lambda budget, now: str(value_at(budget, "spec", name, default="N/A"))


NAME = Column(name="Name", value=_at("metadata", "name"))
AGE = Column(name="Age", value=_age)
DEFAULT_COLUMNS = (NAME, Column(name="Created At", value=_at("metadata", "creationTimestamp")))
COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "pods": (
        NAME,
        Column(name="Ready", value=_pod_ready),
        Column(name="Status", value=pod_status_text),
        Column(name="Restarts", value=_pod_restarts),
        AGE,
        Column(name="IP", value=_at("status", "podIP"), wide=True),
        Column(name="Node", value=_at("spec", "nodeName"), wide=True),
        Column(name="Nominated Node", value=_at("status", "nominatedNodeName"), wide=True),
        Column(name="Readiness Gates", value=lambda pod, now: NONE, wide=True),
    ),
    "nodes": (
        NAME,
        Column(name="Status", value=_node_status),
        Column(name="Roles", value=_node_roles),
        AGE,
        Column(name="Version", value=_at("status", "nodeInfo", "kubeletVersion", default="")),
        Column(name="Internal-IP", value=_node_address("InternalIP"), wide=True),
        Column(name="External-IP", value=_node_address("ExternalIP"), wide=True),
        Column(name="OS-Image", value=_at("status", "nodeInfo", "osImage"), wide=True),
        Column(name="Kernel-Version", value=_at("status", "nodeInfo", "kernelVersion"), wide=True),
        Column(name="Container-Runtime", value=_at("status", "nodeInfo", "containerRuntimeVersion"), wide=True),
    ),
    "jobs.batch": (
        NAME,
        Column(name="Status", value=_job_status),
        Column(name="Completions", value=_job_completions),
        Column(name="Duration", value=_job_duration),
        AGE,
    ),
    "namespaces": (NAME, Column(name="Status", value=_at("status", "phase")), AGE),
    "events": (
        Column(name="Last Seen", value=_event_age),
        Column(name="Type", value=_at("type")),
        Column(name="Reason", value=_at("reason")),
        Column(name="Object", value=_event_object),
        Column(name="Message", value=_at("message")),
        Column(name="Name", value=_at("metadata", "name"), wide=True),
    ),
    "services": (
        NAME,
        Column(name="Type", value=_at("spec", "type")),
        Column(name="Cluster-IP", value=_at("spec", "clusterIP")),
        Column(name="External-IP", value=lambda service, now: NONE),
        Column(name="Port(s)", value=_service_ports),
        AGE,
    ),
    "configmaps": (NAME, Column(name="Data", value=lambda found, now: str(len(found.get("data") or {}))), AGE),
    "secrets": (
        NAME,
        Column(name="Type", value=_at("type")),
        Column(name="Data", value=lambda found, now: str(len(found.get("data") or {}))),
        AGE,
    ),
    "poddisruptionbudgets.policy": (
        NAME,
        Column(name="Min Available", value=_budget_value("minAvailable")),
        Column(name="Max Unavailable", value=_budget_value("maxUnavailable")),
        Column(name="Allowed Disruptions", value=_at("status", "disruptionsAllowed", default=0), type="integer"),
        AGE,
    ),
    "leases.coordination.k8s.io": (NAME, Column(name="Holder", value=_at("spec", "holderIdentity")), AGE),
}
