"""Deletes objects whose owners are gone, and carries out foreground deletion. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from scheduling.simulation.kubernetes.api.served import ServedApi
from scheduling.simulation.kubernetes.api.writing import FOREGROUND, DeleteOptions
from scheduling.simulation.kubernetes.objects import (
    JsonObject,
    ObjectKey,
    finalizers_of,
    is_being_deleted,
    uid_of,
    value_at,
)
from scheduling.simulation.kubernetes.store import ChangeKind, ObjectChange

from .base import Controller, ControlPlane


class GarbageCollector(Controller):
    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(plane)
        self._dependents: dict[str, dict[ObjectKey, None]] = {}  # by the uid of an owner
        self._owners: dict[ObjectKey, tuple[str, ...]] = {}

    def observe(self, change: ObjectChange) -> None:
        self._index(change)
        if change.kind == ChangeKind.DELETED:
            for key in self._dependents.get(uid_of(change.stored.object), {}):
                self.enqueue(key)
        elif owner_references(change.stored.object) or is_being_deleted(change.stored.object):
            self.enqueue(change.key)

    def _index(self, change: ObjectChange) -> None:
        present = change.kind != ChangeKind.DELETED
        owners = tuple(str(one.get("uid")) for one in owner_references(change.stored.object)) if present else ()
        known = self._owners.pop(change.key, ())
        for uid in known:
            self._dependents.get(uid, {}).pop(change.key, None)
            if uid not in owners:
                self._enqueue_waiting_owner(change)
        for uid in owners:
            self._dependents.setdefault(uid, {})[change.key] = None
        if owners:
            self._owners[change.key] = owners

    def _enqueue_waiting_owner(self, change: ObjectChange) -> None:
        previous = (change.previous or change.stored).object
        for reference in owner_references(previous):
            if key := owner_key(self.plane.api, reference, change.key.namespace):
                self.enqueue(key)

    def reconcile(self, key: ObjectKey, now: float) -> None:
        found = self.plane.store.get(key)
        if found is None:
            return
        if is_being_deleted(found):
            self._continue_deletion(key, found, now)
        elif references := owner_references(found):
            self._check_owners(key, found, references, now)

    def _check_owners(self, key: ObjectKey, found: JsonObject, references: list[JsonObject], now: float) -> None:
        solid = [one for one in references if self._exists(one, key.namespace)]
        if not solid:
            self.plane.writer.delete(key, now, DeleteOptions(propagation=_own_propagation(found)))
        elif len(solid) < len(references):
            metadata = {**found["metadata"], "ownerReferences": solid}
            self.plane.writer.put(key, {**found, "metadata": metadata})

    def _exists(self, reference: JsonObject, namespace: str) -> bool:
        """Whether the owner exists. Owners of a kind that the cluster does not have are left alone."""
        if (key := owner_key(self.plane.api, reference, namespace)) is None:
            return True
        owner = self.plane.store.get(key)
        return owner is not None and uid_of(owner) == reference.get("uid")

    def _continue_deletion(self, key: ObjectKey, found: JsonObject, now: float) -> None:
        if FOREGROUND in finalizers_of(found) and not self._delete_dependents(found, now):
            current = self.plane.store.get(key)
            assert current is not None
            finalizers = [one for one in finalizers_of(current) if one != FOREGROUND]
            self.plane.writer.put(key, {**current, "metadata": {**current["metadata"], "finalizers": finalizers}})

    def _delete_dependents(self, owner: JsonObject, now: float) -> int:
        """Delete the dependents; returns how many of those that block the owner are left."""
        blocking = 0
        for key, dependent in list(self._existing_dependents(owner)):
            if not is_being_deleted(dependent):
                self.plane.writer.delete(key, now, DeleteOptions(propagation="Foreground"))
            present = self.plane.store.get(key)
            blocking += present is not None and _blocks(present, owner)
        return blocking

    def _existing_dependents(self, owner: JsonObject) -> Iterator[tuple[ObjectKey, JsonObject]]:
        for key in list(self._dependents.get(uid_of(owner), {})):
            if (dependent := self.plane.store.get(key)) is not None:
                yield key, dependent


def owner_references(found: JsonObject) -> list[JsonObject]:
    return value_at(found, "metadata", "ownerReferences", default=[])  # type: ignore[no-any-return]


def owner_key(api: ServedApi, reference: JsonObject, namespace: str) -> ObjectKey | None:
    """The key of an owner; None if the cluster does not have its kind."""
    resource = api.of_kind(reference.get("apiVersion"), reference.get("kind"))
    if resource is None:
        return None
    return ObjectKey(resource.id, namespace if resource.namespaced else "", str(reference.get("name")))


def _blocks(dependent: JsonObject, owner: JsonObject) -> bool:
    return any(one.get("uid") == uid_of(owner) and one.get("blockOwnerDeletion") for one in owner_references(dependent))


def _own_propagation(found: JsonObject) -> str:
    return "Foreground" if FOREGROUND in finalizers_of(found) else "Background"
