"""JSON objects of the Kubernetes API, and how to read and change them. Pure.

A stored object is never changed in place: readers keep references. `changed` returns a copy with new values.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

JsonObject = dict[str, Any]


class ObjectKey(NamedTuple):
    """Names one object. `resource` is the plural with its group, as in `jobs.batch`."""

    resource: str
    namespace: str
    name: str


def value_at(found: JsonObject, *path: str, default: Any = None) -> Any:
    """The value below these names, or the default if a part of the path is missing or null."""
    value: Any = found
    for name in path:
        if not isinstance(value, dict) or (value := value.get(name)) is None:
            return default
    return value


def changed(found: JsonObject, *path: str, value: Any) -> JsonObject:
    """A copy with another value at the path; None removes it. Everything off the path is shared."""
    name, *rest = path
    copied = dict(found)
    new = changed(copied.get(name) or {}, *rest, value=value) if rest else value
    if new is None:
        copied.pop(name, None)
    else:
        copied[name] = new
    return copied


def deep_copy(found: JsonObject) -> JsonObject:
    return copy.deepcopy(found)


def labels_of(found: JsonObject) -> dict[str, str]:
    return value_at(found, "metadata", "labels", default={})  # type: ignore[no-any-return]


def annotations_of(found: JsonObject) -> dict[str, str]:
    return value_at(found, "metadata", "annotations", default={})  # type: ignore[no-any-return]


def name_of(found: JsonObject) -> str:
    return str(found["metadata"]["name"])


def namespace_of(found: JsonObject) -> str:
    return str(found["metadata"].get("namespace", ""))


def uid_of(found: JsonObject) -> str:
    return str(found["metadata"]["uid"])


def is_being_deleted(found: JsonObject) -> bool:
    return "deletionTimestamp" in found["metadata"]


def finalizers_of(found: JsonObject) -> list[str]:
    return value_at(found, "metadata", "finalizers", default=[])  # type: ignore[no-any-return]


def controller_of(found: JsonObject) -> JsonObject | None:
    """The owner reference with `controller: true`."""
    owners = value_at(found, "metadata", "ownerReferences", default=[])
    return next((owner for owner in owners if owner.get("controller")), None)


def condition_of(found: JsonObject, kind: str) -> JsonObject | None:
    conditions = value_at(found, "status", "conditions", default=[])
    return next((condition for condition in conditions if condition.get("type") == kind), None)


def with_condition(
    conditions: Iterable[JsonObject], kind: str, status: str, now: float, **more: Any
) -> list[JsonObject]:
    """The conditions with this one set. The time of its transition stays while its status stays."""
    known = list(conditions)
    old = next((condition for condition in known if condition["type"] == kind), {})
    since = old["lastTransitionTime"] if old.get("status") == status else timestamp(now)
    new = {**old, "type": kind, "status": status, "lastTransitionTime": since, **more}
    new = {name: value for name, value in new.items() if value is not None}
    return [new if condition is old else condition for condition in known] if old else [*known, new]


def timestamp(at: float) -> str:
    """A time as in metadata: whole seconds."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def seconds_of(text: str) -> float:
    """The time of a timestamp in unix seconds. Raises ValueError."""
    parsed = datetime.fromisoformat(text)
    return parsed.replace(tzinfo=parsed.tzinfo or UTC).timestamp()
