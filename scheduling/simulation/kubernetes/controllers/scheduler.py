"""The default scheduler: places pods without a node on the least used node that fits. Pure.

As in Kubernetes, it tries a pod again when something changed that could help: a pod ended, or a node changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from decimal import Decimal

from scheduling.simulation.kubernetes.api.quantities import amounts_of, requests_of
from scheduling.simulation.kubernetes.api.resources import NODES, PODS
from scheduling.simulation.kubernetes.api.writing import FINAL_PHASES
from scheduling.simulation.kubernetes.objects import (
    JsonObject,
    ObjectKey,
    condition_of,
    is_being_deleted,
    value_at,
    with_condition,
)
from scheduling.simulation.kubernetes.store import ChangeKind, ObjectChange

from .base import Controller, ControlPlane
from .event_recorder import NORMAL, WARNING
from .placement import matches_node, untolerated_taint

SCHEDULER = "default-scheduler"
ENOUGH_NODES = 100  # of those that fit; the best of them is taken
BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
UNSCHEDULABLE_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


class Scheduler(Controller):
    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(plane)
        self._waiting: dict[ObjectKey, None] = {}
        self._nodes: dict[str, tuple[JsonObject, Mapping[str, Decimal]]] = {}
        self._offset = 0  # where the search begins, so that pods spread over equal nodes
        self._retry = False

    def observe(self, change: ObjectChange) -> None:
        if change.key.resource == NODES:
            self._observe_node(change)
        elif change.key.resource == PODS:
            self._observe_pod(change)

    def _observe_node(self, change: ObjectChange) -> None:
        if change.kind == ChangeKind.DELETED:
            self._nodes.pop(change.key.name, None)
            return
        node = change.stored.object
        if change.previous is None or _for_scheduling(change.previous.object) != _for_scheduling(node):
            self._retry = True
        allocatable = value_at(node, "status", "allocatable", default={})
        self._nodes[change.key.name] = node, amounts_of(allocatable)

    def _observe_pod(self, change: ObjectChange) -> None:
        pod = change.stored.object
        if change.kind != ChangeKind.DELETED and _needs_node(pod):
            self._waiting[change.key] = None
            if change.previous is None or change.previous.object["spec"] != pod["spec"]:
                self.enqueue(change.key)
            return
        self._waiting.pop(change.key, None)
        if pod["spec"].get("nodeName") and (change.kind == ChangeKind.DELETED or _has_ended(pod)):
            self._retry = True

    @property
    def has_work(self) -> bool:
        return super().has_work or (self._retry and bool(self._waiting))

    def work(self, now: float) -> None:
        if self._retry:
            self._retry = False
            for key in self._waiting:
                self.enqueue(key)
        super().work(now)

    def reconcile(self, key: ObjectKey, now: float) -> None:
        pod = self.plane.store.get(key)
        if pod is None or not _needs_node(pod):
            return
        if pod["spec"].get("schedulingGates"):
            return  # the API server explains gates when it stores the pod
        node, why = self._find_node(pod)
        if node:
            self._bind(key, pod, node, now)
        else:
            self._explain(key, pod, "Unschedulable", why, now)
            self.plane.events.record(key, pod, WARNING, "FailedScheduling", why, SCHEDULER, now)

    def _find_node(self, pod: JsonObject) -> tuple[str, str]:
        """The node to run on, or the reason why there is none."""
        requests, names = requests_of(pod), list(self._nodes)
        reasons: Counter[str] = Counter()
        fitting: list[str] = []
        for place in range(len(names)):
            name = names[(place + self._offset) % len(names)]
            if reason := self._obstacle(pod, name, requests):
                reasons[reason] += 1
            else:
                fitting.append(name)
            if len(fitting) >= ENOUGH_NODES:
                break
        self._offset += 1
        if fitting:
            return min(fitting, key=lambda name: self._usage(name, requests)), ""
        details = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
        return "", f"0/{len(names)} nodes are available: {details}." if names else "no nodes available to schedule pods"

    def _obstacle(self, pod: JsonObject, name: str, requests: Mapping[str, Decimal]) -> str:
        node, allocatable = self._nodes[name]
        if value_at(node, "spec", "unschedulable") and not _tolerates_cordon(pod):
            return "node(s) were unschedulable"
        if taint := untolerated_taint(pod, node, BLOCKING_EFFECTS):
            return f"node(s) had untolerated taint {{{taint.get('key')}: {taint.get('value') or ''}}}"
        if not matches_node(pod, node):
            return "node(s) didn't match Pod's node affinity/selector"
        for resource, amount in requests.items():
            free = allocatable.get(resource, Decimal(0)) - self.plane.pods.used(name, resource)
            if amount > free:
                return "Too many pods" if resource == "pods" else f"Insufficient {resource}"
        return ""

    def _usage(self, name: str, requests: Mapping[str, Decimal]) -> Decimal:
        """How much of a node is used, on average over what the pod asks for."""
        allocatable = self._nodes[name][1]
        shares = [
            self.plane.pods.used(name, resource) / allocatable[resource]
            for resource in requests
            if allocatable.get(resource)
        ]
        return sum(shares, Decimal(0)) / max(len(shares), 1)

    def _bind(self, key: ObjectKey, pod: JsonObject, node: str, now: float) -> None:
        conditions = with_condition(
            value_at(pod, "status", "conditions", default=[]), "PodScheduled", "True", now, reason=None, message=None
        )
        status = {**pod["status"], "conditions": conditions}
        self.plane.writer.put(key, {**pod, "spec": {**pod["spec"], "nodeName": node}, "status": status})
        self._waiting.pop(key, None)
        # The index must see this placement before the next pod is placed
        self.plane.events.record(
            key,
            pod,
            NORMAL,
            "Scheduled",
            f"Successfully assigned {key.namespace}/{key.name} to {node}",
            SCHEDULER,
            now,
        )

    def _explain(self, key: ObjectKey, pod: JsonObject, reason: str, why: str, now: float) -> None:
        known = condition_of(pod, "PodScheduled") or {}
        if (known.get("reason"), known.get("message")) == (reason, why):
            return
        conditions = value_at(pod, "status", "conditions", default=[])
        conditions = with_condition(conditions, "PodScheduled", "False", now, reason=reason, message=why)
        self.plane.writer.patch_status(key, {"conditions": conditions})


def _needs_node(pod: JsonObject) -> bool:
    spec = pod["spec"]
    return (
        not spec.get("nodeName")
        and spec.get("schedulerName") == SCHEDULER
        and not _has_ended(pod)
        and not is_being_deleted(pod)
    )


def _has_ended(pod: JsonObject) -> bool:
    return value_at(pod, "status", "phase") in FINAL_PHASES


def _for_scheduling(node: JsonObject) -> tuple[object, ...]:
    return node.get("spec"), value_at(node, "metadata", "labels"), value_at(node, "status", "allocatable")


def _tolerates_cordon(pod: JsonObject) -> bool:
    node = {"spec": {"taints": [UNSCHEDULABLE_TAINT]}}
    return untolerated_taint(pod, node, BLOCKING_EFFECTS) is None
