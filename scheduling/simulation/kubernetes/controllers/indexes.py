"""Pods by node and by owner, and what they use. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from scheduling.simulation.kubernetes.api.quantities import requests_of
from scheduling.simulation.kubernetes.api.resources import PODS
from scheduling.simulation.kubernetes.api.writing import FINAL_PHASES
from scheduling.simulation.kubernetes.objects import JsonObject, ObjectKey, controller_of, value_at
from scheduling.simulation.kubernetes.store import ChangeKind, ObjectChange

NOTHING = Decimal(0)


class PodIndex:
    def __init__(self) -> None:
        self._node_of: dict[ObjectKey, str] = {}
        self._owner_of: dict[ObjectKey, str] = {}
        self._on_node: dict[str, dict[ObjectKey, None]] = {}
        self._of_owner: dict[str, dict[ObjectKey, None]] = {}
        self._requests: dict[ObjectKey, Mapping[str, Decimal]] = {}  # of pods that use a node
        self._used: dict[str, dict[str, Decimal]] = {}

    def observe(self, change: ObjectChange) -> None:
        if change.key.resource != PODS:
            return
        present = change.kind != ChangeKind.DELETED
        pod = change.stored.object
        node = str(pod["spec"].get("nodeName") or "") if present else ""
        owner = str((controller_of(pod) or {}).get("uid", "")) if present else ""
        self._use(change.key, pod, node)
        _move(change.key, self._node_of, self._on_node, node)
        _move(change.key, self._owner_of, self._of_owner, owner)

    def on_node(self, node: str) -> list[ObjectKey]:
        return list(self._on_node.get(node, ()))

    def of_owner(self, uid: str) -> list[ObjectKey]:
        return list(self._of_owner.get(uid, ()))

    def used(self, node: str, resource: str) -> Decimal:
        return self._used.get(node, {}).get(resource, NOTHING)

    def _use(self, key: ObjectKey, pod: JsonObject, node: str) -> None:
        """Count the requests of a pod from its placement until its end."""
        uses = bool(node) and value_at(pod, "status", "phase") not in FINAL_PHASES
        known = self._requests.get(key)
        if uses and known is None:
            self._requests[key] = requests_of(pod)
            self._add(node, self._requests[key], 1)
        elif not uses and known is not None:
            self._add(self._node_of[key], self._requests.pop(key), -1)

    def _add(self, node: str, amounts: Mapping[str, Decimal], sign: int) -> None:
        used = self._used.setdefault(node, {})
        for name, amount in amounts.items():
            used[name] = used.get(name, NOTHING) + sign * amount


def _move(key: ObjectKey, places: dict[ObjectKey, str], groups: dict[str, dict[ObjectKey, None]], new: str) -> None:
    """Move a pod to another group; an empty name is no group."""
    old = places.get(key, "")
    if old == new:
        return
    if old:
        groups[old].pop(key)
        if not groups[old]:
            del groups[old]
        del places[key]
    if new:
        groups.setdefault(new, {})[key] = None
        places[key] = new
