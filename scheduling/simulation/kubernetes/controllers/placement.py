"""Whether a pod may run on a node: selectors, affinity and taints. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from scheduling.simulation.kubernetes.api.selectors import Requirement
from scheduling.simulation.kubernetes.objects import JsonObject, labels_of, value_at


def matches_node(pod: JsonObject, node: JsonObject) -> bool:
    """Whether the node has what the pod's selector and its required node affinity ask for."""
    labels = labels_of(node)
    selector = pod["spec"].get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    terms = value_at(
        pod, "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"
    )
    return terms is None or any(_term_matches(term, node) for term in terms)


def _term_matches(term: JsonObject, node: JsonObject) -> bool:
    labels, name = labels_of(node), {"metadata.name": node["metadata"]["name"]}
    by_label, by_field = term.get("matchExpressions") or (), term.get("matchFields") or ()
    return bool(by_label or by_field) and all(
        _requirement(one).matches(found) for one, found in [*((one, labels) for one in by_label),
                                                             *((one, name) for one in by_field)]
    )  # fmt: skip


def _requirement(one: JsonObject) -> Requirement:
    return Requirement(str(one.get("key")), str(one.get("operator")), tuple(map(str, one.get("values") or ())))


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
