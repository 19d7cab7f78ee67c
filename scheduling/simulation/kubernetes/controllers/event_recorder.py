"""Events: what happened to an object, counted if it happens again, and deleted after an hour. Pure."""

from __future__ import annotations

from hashlib import blake2b

from scheduling.event_queue import EventQueue
from scheduling.simulation.kubernetes.api.resources import BY_ID, EVENTS, NAMESPACES
from scheduling.simulation.kubernetes.api.writing import ObjectWriter
from scheduling.simulation.kubernetes.objects import (
    JsonObject,
    ObjectKey,
    name_of,
    namespace_of,
    seconds_of,
    timestamp,
    value_at,
)
from scheduling.simulation.kubernetes.store import ObjectStore

NORMAL, WARNING = "Normal", "Warning"


class EventRecorder:
    def __init__(self, store: ObjectStore, writer: ObjectWriter, agenda: EventQueue, ttl_s: float) -> None:
        self._store, self._writer, self._agenda, self._ttl_s = store, writer, agenda, ttl_s

    def record(
        self, key: ObjectKey, found: JsonObject, kind: str, reason: str, message: str, source: str, now: float
    ) -> None:
        """Record an event about an object. `source` is the component that reports it."""
        namespace = key.namespace or "default"
        if self._store.get(ObjectKey(NAMESPACES, "", namespace)) is None:
            return
        uid = str(found["metadata"]["uid"])
        digest = blake2b(f"{uid}:{kind}:{reason}:{message}:{source}".encode(), digest_size=8).hexdigest()
        event_key = ObjectKey(EVENTS, namespace, f"{key.name}.{digest}")
        if known := self._store.get(event_key):
            again = {"count": known.get("count", 1) + 1, "lastTimestamp": timestamp(now)}
            self._store.put(event_key, {**known, **again})
            return
        self._create(event_key, _event(key, found, kind, reason, message, source, now), now)

    def _create(self, event_key: ObjectKey, event: JsonObject, now: float) -> None:
        event["metadata"] = {"name": event_key.name}
        resource = BY_ID[EVENTS]
        if value_at(self._store.get(ObjectKey(NAMESPACES, "", event_key.namespace)) or {}, "status", "phase") == (
            "Terminating"
        ):
            return
        self._writer.create(resource, event_key.namespace, event, now)
        self._agenda.at(now + self._ttl_s, self._expire, event_key)

    def _expire(self, key: ObjectKey, now: float) -> None:
        """Delete an event that nothing was added to for its lifetime."""
        found = self._store.get(key)
        if found is None:
            return
        due = seconds_of(found["lastTimestamp"]) + self._ttl_s
        if due <= now:
            self._store.delete(key)
        else:
            self._agenda.at(due, self._expire, key)

    def restore(self, now: float) -> None:
        for stored in self._store.objects(EVENTS):
            key = ObjectKey(EVENTS, namespace_of(stored.object), name_of(stored.object))
            self._agenda.at(now + self._ttl_s, self._expire, key)


def _event(
    key: ObjectKey, found: JsonObject, kind: str, reason: str, message: str, source: str, now: float
) -> JsonObject:
    resource = BY_ID[key.resource]
    about = {
        "kind": resource.kind,
        "apiVersion": resource.api_version,
        "name": key.name,
        "uid": found["metadata"]["uid"],
        "resourceVersion": found["metadata"].get("resourceVersion", ""),
    }
    component, _, host = source.partition(",")
    return {
        "involvedObject": {**about, "namespace": key.namespace} if key.namespace else about,
        "type": kind,
        "reason": reason,
        "message": message,
        "source": {"component": component, "host": host} if host else {"component": component},
        "reportingComponent": component,
        "reportingInstance": host,
        "eventTime": None,
        "firstTimestamp": timestamp(now),
        "lastTimestamp": timestamp(now),
        "count": 1,
    }
