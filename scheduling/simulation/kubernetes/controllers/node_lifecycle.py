"""Notices nodes that no longer report, taints them, and deletes pods that do not tolerate the taints. Pure.

A node whose lease was not renewed for the grace period becomes NotReady (Unknown) and gets the taint `unreachable`. Its
pods are deleted after their tolerationSeconds; they stay visible as Terminating until the kubelet reports again or
somebody deletes them by force. Pods of nodes that do not exist any more are removed.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduling.simulation.kubernetes.api.defaults import NOT_READY, UNREACHABLE
from scheduling.simulation.kubernetes.api.resources import LEASES, NODES, PODS
from scheduling.simulation.kubernetes.api.writing import FINAL_PHASES, DeleteOptions
from scheduling.simulation.kubernetes.objects import (
    JsonObject,
    ObjectKey,
    condition_of,
    is_being_deleted,
    name_of,
    seconds_of,
    timestamp,
    value_at,
    with_condition,
)
from scheduling.simulation.kubernetes.store import ChangeKind, ObjectChange

from .base import Controller, ControlPlane
from .event_recorder import NORMAL
from .placement import tolerates

SOURCE = "node-controller"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
OURS = (UNREACHABLE, NOT_READY, UNSCHEDULABLE)


class NodeLifecycle(Controller):
    def __init__(self, plane: ControlPlane, now: float) -> None:
        super().__init__(plane)
        self._started_at = now  # leases are not kept over a restart: they count as renewed then
        plane.agenda.at(now + plane.timing.node_check_s, self._check_leases)

    def observe(self, change: ObjectChange) -> None:
        if change.key.resource == NODES:
            self.enqueue(change.key)
            if change.kind == ChangeKind.DELETED:
                self._enqueue_pods(change.key.name)
        elif change.key.resource == PODS and change.kind != ChangeKind.DELETED and _was_placed(change):
            self.enqueue(change.key)

    def _check_leases(self, _: None, now: float) -> None:
        self.plane.agenda.at(now + self.plane.timing.node_check_s, self._check_leases)
        for stored in self.plane.store.objects(NODES):
            self._check_lease(stored.object, now)

    def reconcile(self, key: ObjectKey, now: float) -> None:
        found = self.plane.store.get(key)
        if found is None:
            return
        if key.resource == NODES:
            self._set_taints(key, found, now)
        else:
            self._check_pod(key, found, now)

    # Nodes

    def _check_lease(self, node: JsonObject, now: float) -> None:
        name = name_of(node)
        lease = self.plane.store.get(ObjectKey(LEASES, "kube-node-lease", name))
        renewed = seconds_of(lease["spec"]["renewTime"]) if lease else self._started_at
        ready = condition_of(node, "Ready")
        if now - renewed <= self.plane.timing.node_grace_s or ready is None or ready["status"] == "Unknown":
            return
        conditions = node["status"]["conditions"]
        for condition in list(conditions):
            conditions = with_condition(
                conditions,
                condition["type"],
                "Unknown",
                now,
                reason="NodeStatusUnknown",
                message="Kubelet stopped posting node status.",
            )
        key = ObjectKey(NODES, "", name)
        self.plane.writer.patch_status(key, {"conditions": conditions})
        text = f"Node {name} status is now: NodeNotReady"
        self.plane.events.record(key, node, NORMAL, "NodeNotReady", text, SOURCE, now)
        self._mark_pods_unready(name, now)

    def _mark_pods_unready(self, name: str, now: float) -> None:
        for key in self.plane.pods.on_node(name):
            pod = self.plane.store.get(key)
            if pod is not None and (condition_of(pod, "Ready") or {}).get("status") == "True":
                conditions = with_condition(pod["status"]["conditions"], "Ready", "False", now, reason="NodeNotReady")
                self.plane.writer.patch_status(key, {"conditions": conditions})

    def _set_taints(self, key: ObjectKey, node: JsonObject, now: float) -> None:
        """Bring the taints of a node into agreement with its conditions, and look at its pods if they changed."""
        old = value_at(node, "spec", "taints", default=[])
        wanted = _wanted_taints(node)
        kept = [one for one in old if one["key"] not in OURS or (one["key"], one["effect"]) in wanted]
        known = {(one["key"], one["effect"]) for one in kept}
        added = [_taint(name, effect, now) for name, effect in wanted if (name, effect) not in known]
        if added or len(kept) != len(old):
            spec = {**node.get("spec", {}), "taints": [*kept, *added]}
            if not spec["taints"]:
                del spec["taints"]
            self.plane.writer.put(key, {**node, "spec": spec})
        if any(one["effect"] == "NoExecute" for one in (*old, *kept, *added)):
            self._enqueue_pods(key.name)

    def _enqueue_pods(self, node: str) -> None:
        for pod in self.plane.pods.on_node(node):
            self.enqueue(pod)

    # Pods

    def _check_pod(self, key: ObjectKey, pod: JsonObject, now: float) -> None:
        """Delete a pod whose node is gone or has a taint that the pod does not, or no longer, tolerate."""
        name = _node_of(pod)
        if not name:
            return
        node = self.plane.store.get(ObjectKey(NODES, "", name))
        if node is None:
            self._remove_orphan(key, pod, now)
            return
        if is_being_deleted(pod) or value_at(pod, "status", "phase") in FINAL_PHASES:
            return
        due = eviction_at(pod, value_at(node, "spec", "taints", default=[]), now)
        if due is not None and due <= now:
            self._evict(key, pod, now)
        elif due is not None:
            self.schedule(due, key)

    def _evict(self, key: ObjectKey, pod: JsonObject, now: float) -> None:
        text = "Taint manager: deleting due to NoExecute taint"
        self.plane.writer.patch_status(key, self._disruption(pod, "DeletionByTaintManager", text, now))
        self.plane.writer.delete(key, now, DeleteOptions())
        text = f"Marking for deletion Pod {key.namespace}/{key.name}"
        self.plane.events.record(key, pod, NORMAL, "TaintManagerEviction", text, "taint-eviction-controller", now)

    def _disruption(self, pod: JsonObject, reason: str, message: str, now: float) -> JsonObject:
        """The part of a status that says why the control plane deletes a pod; old versions do not say it."""
        known = value_at(pod, "status", "conditions", default=[])
        if self.plane.api.is_old:
            return {"conditions": known}
        return {"conditions": with_condition(known, "DisruptionTarget", "True", now, reason=reason, message=message)}

    def _remove_orphan(self, key: ObjectKey, pod: JsonObject, now: float) -> None:
        """A node that has not registered yet may still come; one that had run the pod will not."""
        if value_at(pod, "status", "startTime") is None and not is_being_deleted(pod):
            return
        if value_at(pod, "status", "phase") not in FINAL_PHASES:
            disruption = self._disruption(pod, "DeletionByPodGC", "PodGC: node no longer exists", now)
            self.plane.writer.patch_status(key, {"phase": "Failed", **disruption})
        if self.plane.store.get(key) is not None:
            self.plane.writer.delete(key, now, DeleteOptions(grace_s=0))


def eviction_at(pod: JsonObject, taints: Iterable[JsonObject], now: float) -> float | None:
    """When a pod must leave its node because of NoExecute taints; None if it may stay."""
    times = [_leaves_at(pod, taint, now) for taint in taints if taint.get("effect") == "NoExecute"]
    return min((at for at in times if at is not None), default=None)


def _leaves_at(pod: JsonObject, taint: JsonObject, now: float) -> float | None:
    tolerations = [one for one in pod["spec"].get("tolerations") or [] if tolerates(one, taint)]
    if not tolerations:
        return now
    limits = [one["tolerationSeconds"] for one in tolerations if one.get("tolerationSeconds") is not None]
    if not limits:
        return None
    added = taint.get("timeAdded")
    return (seconds_of(added) if added else now) + max(float(min(limits)), 0.0)


def _wanted_taints(node: JsonObject) -> list[tuple[str, str]]:
    ready = (condition_of(node, "Ready") or {}).get("status")
    wanted = [(UNSCHEDULABLE, "NoSchedule")] if value_at(node, "spec", "unschedulable") else []
    if ready == "Unknown":
        wanted += [(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]
    elif ready == "False":
        wanted += [(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]
    return wanted


def _taint(key: str, effect: str, now: float) -> JsonObject:
    return {"key": key, "effect": effect, "timeAdded": timestamp(now)}


def _was_placed(change: ObjectChange) -> bool:
    """Whether the pod is new, or got its node with this change."""
    return change.previous is None or _node_of(change.previous.object) != _node_of(change.stored.object)


def _node_of(pod: JsonObject) -> str:
    return str(pod["spec"].get("nodeName") or "")
