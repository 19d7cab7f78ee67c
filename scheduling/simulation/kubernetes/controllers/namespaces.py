"""Namespaces: a service account for each, and the deletion of everything in one that is deleted. Pure."""

from __future__ import annotations

from scheduling.simulation.kubernetes.api.resources import BY_ID, NAMESPACES, SERVICE_ACCOUNTS
from scheduling.simulation.kubernetes.api.writing import DeleteOptions
from scheduling.simulation.kubernetes.objects import ObjectKey, is_being_deleted, name_of
from scheduling.simulation.kubernetes.store import ObjectChange

from .base import Controller

KEPT_IN_EACH = (SERVICE_ACCOUNTS, "default")


class NamespaceController(Controller):
    def observe(self, change: ObjectChange) -> None:
        if change.key.resource == NAMESPACES:
            self.enqueue(change.key)
        elif change.key.namespace and self._is_terminating(change.key.namespace):
            self.enqueue(ObjectKey(NAMESPACES, "", change.key.namespace))

    def reconcile(self, key: ObjectKey, now: float) -> None:
        found = self.plane.store.get(key)
        if found is None:
            return
        if is_being_deleted(found):
            self._empty(key, now)
        else:
            self._create_account(key.name, now)

    def _create_account(self, namespace: str, now: float) -> None:
        resource, name = KEPT_IN_EACH
        if self.plane.store.get(ObjectKey(resource, namespace, name)) is None:
            self.plane.writer.create(BY_ID[resource], namespace, {"metadata": {"name": name}}, now)

    def _empty(self, key: ObjectKey, now: float) -> None:
        """Delete what the namespace contains; the namespace goes last, when nothing is left."""
        left = 0
        for resource in self.plane.api.resources:
            if not resource.namespaced:
                continue
            for found in self.plane.store.objects(resource.id, key.name):
                left += not self._delete(ObjectKey(resource.id, key.name, name_of(found.object)), now)
        if not left and (namespace := self.plane.store.get(key)) is not None:
            self.plane.writer.put(key, {**namespace, "spec": {}})

    def _delete(self, key: ObjectKey, now: float) -> bool:
        """Delete an object; returns whether it is gone."""
        found = self.plane.store.get(key)
        if found is None:
            return True
        return False if is_being_deleted(found) else self.plane.writer.delete(key, now, DeleteOptions())[1]

    def _is_terminating(self, namespace: str) -> bool:
        found = self.plane.store.get(ObjectKey(NAMESPACES, "", namespace))
        return found is not None and is_being_deleted(found)
