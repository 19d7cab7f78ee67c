"""Creates, changes and deletes objects by the rules of the API server. Pure.

Requests and controllers change objects through the same `ObjectWriter`, so that both get the same metadata, defaults,
checks, finalizers and graceful deletion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from scheduling.simulation.kubernetes.objects import (
    JsonObject,
    ObjectKey,
    deep_copy,
    labels_of,
    timestamp,
    value_at,
    with_condition,
)
from scheduling.simulation.kubernetes.pod_security import ENFORCE_LABEL, RESTRICTED, restricted_violations
from scheduling.simulation.kubernetes.store import ObjectStore

from .defaults import quality_of_service, with_defaults
from .errors import ApiError, already_exists, bad_request, conflict, forbidden, invalid, not_found
from .resources import NAMESPACES, PODS, PRIORITY_CLASSES, ResourceType
from .served import STANDARD, ServedApi
from .update_rules import update_errors, with_fixed_fields
from .validation import object_errors

SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # as in generated names: no vowels, so no words
MAX_GENERATED_BASE = 58
FINAL_PHASES = ("Succeeded", "Failed")
FOREGROUND = "foregroundDeletion"
SERVER_METADATA = (
    "resourceVersion", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields",
)  # fmt: skip
DEFAULT_GRACE_S = 30
GATED_MESSAGE = "Scheduling is blocked due to non-empty scheduling gates"


@dataclass(frozen=True, kw_only=True)
class DeleteOptions:
    grace_s: int | None = None
    propagation: str = "Background"  # Background, Foreground
    uid: str = ""
    version: str = ""
    dry_run: bool = False


class ObjectWriter:
    def __init__(self, store: ObjectStore, *, seed: int = 0, api: ServedApi = STANDARD) -> None:
        self._store, self._seed, self._api = store, seed, api

    # Create

    def create(
        self, resource: ResourceType, namespace: str, new: JsonObject, now: float, *, dry_run: bool = False
    ) -> JsonObject:
        """Store a new object. Raises ApiError if it is invalid or exists."""
        self._check_namespace(resource, namespace, str(value_at(new, "metadata", "name", default="")))
        created = self._new_object(resource, namespace, new, now)
        name = str(created["metadata"].get("name", ""))
        if errors := object_errors(resource.id, created):
            raise invalid(resource.kind, resource.group, name, errors)
        key = ObjectKey(resource.id, namespace, name)
        if self._store.get(key) is not None:
            raise already_exists(resource.id, name)
        if resource.id == PODS:
            created = self._admit_pod(created, now)
        return created if dry_run else self._store.put(key, created)

    def _new_object(self, resource: ResourceType, namespace: str, new: JsonObject, now: float) -> JsonObject:
        created = deep_copy(new)
        created.pop("kind", None)
        created.pop("apiVersion", None)
        if resource.has_status:
            created.pop("status", None)
        metadata = {**(created.get("metadata") or {})}
        for field in (
            "resourceVersion",
            "selfLink",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "managedFields",
        ):
            metadata.pop(field, None)
        uid = self._next_uid()
        if not metadata.get("name") and isinstance(base := metadata.get("generateName"), str) and base:
            metadata["name"] = base[:MAX_GENERATED_BASE] + _suffix(uid)
        if resource.namespaced:
            metadata["namespace"] = namespace
        metadata |= {"uid": uid, "creationTimestamp": timestamp(now)}
        if resource.generations:
            metadata["generation"] = 1
        created["metadata"] = metadata
        return with_defaults(resource.id, created, self._api)

    def _next_uid(self) -> str:
        """A UUID that depends only on the seed and the version."""
        digest = bytearray(blake2b(f"{self._seed}:{self._store.version}:uid".encode(), digest_size=16).digest())
        digest[6], digest[8] = digest[6] & 0x0F | 0x40, digest[8] & 0x3F | 0x80
        text = digest.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def _check_namespace(self, resource: ResourceType, namespace: str, name: str) -> None:
        if not resource.namespaced:
            return
        found = self._store.get(ObjectKey(NAMESPACES, "", namespace))
        if found is None:
            raise not_found(NAMESPACES, namespace)
        if "deletionTimestamp" in found["metadata"]:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise forbidden(resource.id, name, why)

    def _admit_pod(self, pod: JsonObject, now: float) -> JsonObject:
        spec = pod["spec"]
        pod["status"] = {"phase": "Pending", "qosClass": quality_of_service(pod)}
        if spec.get("schedulingGates"):
            gated = with_condition([], "PodScheduled", "False", now, reason="SchedulingGated", message=GATED_MESSAGE)
            pod["status"]["conditions"] = gated
        account = ObjectKey("serviceaccounts", pod["metadata"]["namespace"], spec["serviceAccountName"])
        if self._store.get(account) is None:
            why = (
                f'error looking up service account {account.namespace}/{account.name}: serviceaccount "{account.name}"'
            )
            raise forbidden(PODS, pod["metadata"]["name"], f"{why} not found")
        if name := spec.get("priorityClassName"):
            found = self._store.get(ObjectKey(PRIORITY_CLASSES, "", name))
            if found is None:
                raise forbidden(PODS, pod["metadata"]["name"], f"no PriorityClass with name {name} was found")
            spec["priority"] = found.get("value", 0)
        self._check_pod_security(pod)
        return pod

    def _check_pod_security(self, pod: JsonObject) -> None:
        """Namespaces that enforce "restricted". Version 1.20 had no such admission."""
        namespace = self._store.get(ObjectKey(NAMESPACES, "", pod["metadata"]["namespace"])) or {}
        if self._api.is_old or labels_of(namespace).get(ENFORCE_LABEL) != RESTRICTED:
            return
        if violations := restricted_violations(pod["spec"]):
            why = f'violates PodSecurity "{RESTRICTED}:latest": {violations}'
            raise forbidden(PODS, pod["metadata"]["name"], why)

    # Update

    def update(
        self,
        resource: ResourceType,
        key: ObjectKey,
        new: JsonObject,
        now: float,
        *,
        status_only: bool = False,
        dry_run: bool = False,
    ) -> JsonObject:
        """Replace an object. Raises ApiError if it is invalid or was changed since the client read it."""
        old = self._store.get(key)
        if old is None:
            raise not_found(key.resource, key.name)
        _check_identity(key, old, new)
        new = deep_copy({name: value for name, value in new.items() if name not in ("kind", "apiVersion")})
        new = with_fixed_fields(old, new, status_only=status_only, has_status=resource.has_status)
        if not status_only:
            new = with_defaults(resource.id, new, self._api)
            errors = object_errors(resource.id, new) or update_errors(resource.id, old, new)
            if errors:
                raise invalid(resource.kind, resource.group, key.name, errors)
        if resource.generations and new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
        return new if dry_run else self.put(key, new)

    def put(self, key: ObjectKey, new: JsonObject) -> JsonObject:
        """Store a new state. An object that was waiting only for its finalizers is removed with the last one."""
        stored = self._store.put(key, new)
        if "deletionTimestamp" in stored["metadata"] and not stored["metadata"].get("finalizers"):
            if key.resource == NAMESPACES and value_at(stored, "spec", "finalizers"):
                return stored
            if key.resource != PODS or stored["metadata"].get("deletionGracePeriodSeconds") == 0:
                return self._store.delete(key)
        return stored

    # Delete

    def delete(self, key: ObjectKey, now: float, options: DeleteOptions | None = None) -> tuple[JsonObject, bool]:
        """Delete an object, at once or gracefully. Returns its state and whether it is gone. Raises ApiError."""
        options = options or DeleteOptions()
        found = self._store.get(key)
        if found is None:
            raise not_found(key.resource, key.name)
        _check_preconditions(key, found, options)
        marked = _marked_for_deletion(key, found, now, options)
        gone = _is_deleted_at_once(key, marked)
        if options.dry_run:
            return found, gone
        if not gone:
            return self.put(key, marked), False
        return self._store.delete(key), True

    def patch_status(self, key: ObjectKey, status: Mapping[str, Any]) -> JsonObject:
        """Replace some fields of the status; None removes one. For controllers."""
        found = self._store.get(key)
        assert found is not None
        merged = {**found.get("status", {}), **status}
        new = {**found, "status": {name: value for name, value in merged.items() if value is not None}}
        return self.put(key, new)


def _check_identity(key: ObjectKey, old: JsonObject, new: JsonObject) -> None:
    metadata = new.get("metadata") or {}
    if metadata.get("name", key.name) != key.name:
        raise bad_request(
            f"the name of the object ({metadata['name']!s:.80}) does not match the name on the URL ({key.name})"
        )
    if metadata.get("namespace", key.namespace) not in ("", key.namespace):
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    version = metadata.get("resourceVersion")
    if version and version != old["metadata"]["resourceVersion"]:
        raise conflict(key.resource, key.name)
    if metadata.get("uid") and metadata["uid"] != old["metadata"]["uid"]:
        raise conflict(key.resource, key.name, _precondition_text("UID", metadata["uid"], old["metadata"]["uid"]))


def _check_preconditions(key: ObjectKey, found: JsonObject, options: DeleteOptions) -> None:
    for name, wanted, actual in (
        ("UID", options.uid, found["metadata"]["uid"]),
        ("ResourceVersion", options.version, found["metadata"]["resourceVersion"]),
    ):
        if wanted and wanted != actual:
            raise conflict(key.resource, key.name, _precondition_text(name, wanted, actual))


def _precondition_text(name: str, wanted: object, actual: object) -> str:
    return f"Precondition failed: {name} in precondition: {wanted!s:.80}, {name} in object meta: {actual}"


def _marked_for_deletion(key: ObjectKey, found: JsonObject, now: float, options: DeleteOptions) -> JsonObject:
    """The object with its deletion time and the finalizers of the propagation policy."""
    grace_s = _grace_s(key, found, options)
    metadata = dict(found["metadata"])
    if (earlier := metadata.get("deletionGracePeriodSeconds")) is not None and "deletionTimestamp" in metadata:
        grace_s = min(grace_s, earlier)
    if grace_s != earlier or "deletionTimestamp" not in metadata:
        metadata |= {"deletionTimestamp": timestamp(now + grace_s), "deletionGracePeriodSeconds": grace_s}
    finalizers = [one for one in metadata.get("finalizers", []) if one != FOREGROUND]
    if options.propagation == "Foreground":
        finalizers.append(FOREGROUND)
    if finalizers != metadata.get("finalizers", []):
        metadata["finalizers"] = finalizers
    if key.resource == NAMESPACES:
        return {**found, "metadata": metadata, "status": {**found.get("status", {}), "phase": "Terminating"}}
    return {**found, "metadata": metadata}


def _grace_s(key: ObjectKey, found: JsonObject, options: DeleteOptions) -> int:
    """Only pods end gracefully, and only those that a kubelet runs."""
    if key.resource != PODS:
        return 0
    if not found["spec"].get("nodeName") or value_at(found, "status", "phase") in FINAL_PHASES:
        return 0
    if options.grace_s is not None:
        return max(options.grace_s, 0)
    return int(value_at(found, "spec", "terminationGracePeriodSeconds", default=DEFAULT_GRACE_S))


def _is_deleted_at_once(key: ObjectKey, marked: JsonObject) -> bool:
    if marked["metadata"].get("finalizers"):
        return False
    if key.resource == NAMESPACES:
        return not value_at(marked, "spec", "finalizers")
    return bool(marked["metadata"]["deletionGracePeriodSeconds"] == 0)


def parse_delete_options(body: Any, query: Mapping[str, str]) -> DeleteOptions:
    """The options of a deletion, from its body or its query. Raises ApiError."""
    options = body if isinstance(body, dict) else {}
    grace = options.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    propagation = options.get("propagationPolicy") or query.get("propagationPolicy") or ""
    if propagation not in ("", "Background", "Foreground"):
        raise ApiError(422, "Invalid", f'DeleteOptions "" is invalid: propagationPolicy: {propagation!s:.40}', {})
    preconditions = options.get("preconditions") if isinstance(options.get("preconditions"), dict) else {}
    assert preconditions is not None
    return DeleteOptions(
        grace_s=None if grace is None else _parse_grace(grace),
        propagation=str(propagation or "Background"),
        uid=str(preconditions.get("uid") or ""),
        version=str(preconditions.get("resourceVersion") or ""),
        dry_run=options.get("dryRun") == ["All"] or query.get("dryRun") == "All",
    )


def _parse_grace(value: Any) -> int:
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise bad_request(f"gracePeriodSeconds: {text:.40} is not a whole number of seconds")
    return int(text)


def _suffix(uid: str) -> str:
    digest = blake2b(uid.encode(), digest_size=5).digest()
    return "".join(SUFFIX_LETTERS[byte % len(SUFFIX_LETTERS)] for byte in digest)
