"""Placing a pod through its `binding` subresource. Pure."""

from __future__ import annotations

from scheduling.simulation.kubernetes.objects import JsonObject, is_being_deleted, value_at, with_condition

from .errors import bad_request, conflict, invalid, not_supported

RESOURCE = "pods/binding"


def check_binding(name: str, pod: JsonObject, binding: JsonObject) -> None:
    """Raises ApiError if the pod cannot be placed, or if the client means another pod."""
    target, spec = value_at(binding, "target", default={}), pod["spec"]
    if not isinstance(target, dict) or not isinstance(target.get("name"), str) or not target["name"]:
        raise bad_request("target.name: the name of a node is required")
    if target.get("kind") not in (None, "", "Node"):
        raise invalid("Binding", "", name, [not_supported("target.kind", target["kind"], ("Node", "<empty>"))])
    uid, wanted = pod["metadata"]["uid"], value_at(binding, "metadata", "uid")
    if wanted and wanted != uid:
        raise conflict(
            RESOURCE, name, f"Precondition failed: UID in precondition: {wanted!s:.80}, UID in object meta: {uid}"
        )
    if is_being_deleted(pod):
        raise conflict(RESOURCE, name, f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise conflict(RESOURCE, name, f'pod {name} is already assigned to node "{spec["nodeName"]}"')
    if spec.get("schedulingGates"):
        raise conflict(RESOURCE, name, f"pod {name} has non-empty .spec.schedulingGates")


def placed_pod(pod: JsonObject, binding: JsonObject, now: float) -> JsonObject:
    """The pod on its node, with the labels and annotations of the binding and the condition `PodScheduled`."""
    given = binding.get("metadata") or {}
    metadata = dict(pod["metadata"])
    for name in ("annotations", "labels"):
        if isinstance(more := given.get(name), dict) and more:
            metadata[name] = {**metadata.get(name, {}), **more}
    known = value_at(pod, "status", "conditions", default=[])
    conditions = with_condition(known, "PodScheduled", "True", now, reason=None, message=None)
    return {
        **pod,
        "metadata": metadata,
        "spec": {**pod["spec"], "nodeName": binding["target"]["name"]},
        "status": {**pod.get("status", {}), "conditions": conditions},
    }
