"""Whether a pod may run on a node: selectors and taints. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from scheduling.simulation.kubernetes.objects import JsonObject, labels_of, value_at


def matches_node(pod: JsonObject, node: JsonObject) -> bool:
    """Whether the node has the labels that the pod's selector asks for."""
    return (pod["spec"].get("nodeSelector") or {}).items() <= labels_of(node).items()


def untolerated_taint(pod: JsonObject, node: JsonObject, effects: Iterable[str]) -> JsonObject | None:
    """The first taint with one of these effects that the pod does not tolerate."""
    tolerations = pod["spec"].get("tolerations") or []
    for taint in value_at(node, "spec", "taints", default=[]):
        if taint.get("effect") in effects and not any(tolerates(one, taint) for one in tolerations):
            return taint  # type: ignore[no-any-return]
    return None


def tolerates(toleration: JsonObject, taint: JsonObject) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    key = toleration.get("key")
    if toleration.get("operator") == "Exists":
        return key in (None, "", taint.get("key"))
    return key == taint.get("key") and (toleration.get("value") or "") == (taint.get("value") or "")
