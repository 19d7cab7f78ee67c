"""Strategic merge patches: lists of objects are merged by a key field. Pure.

`MERGE_KEYS` lists the merge keys by the name of the list, as the published schemas give them (`x-kubernetes-patch-
merge-key`). Lists that are not in it are replaced. The directives are those that kubectl writes: `$patch`, `$setElement
Order/…`, `$deleteFromPrimitiveList/…` and `$retainKeys`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scheduling.simulation.kubernetes.objects import JsonObject

from .errors import bad_request

MERGE_KEYS: Mapping[str, str] = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "schedulingGates": "name",
    "secrets": "name",
    "taints": "key",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
PORT_KEYS = ("containerPort", "port")  # of containers and of services
PRIMITIVE_MERGE = frozenset({"finalizers"})
DELETE_FROM, ORDER, RETAIN, DIRECTIVE = "$deleteFromPrimitiveList/", "$setElementOrder/", "$retainKeys", "$patch"
# Tolerations have no merge key although they have a name in some documents; conditions of a taint are a list of keys
ATOMIC = frozenset({"tolerations"})


def strategic_merge(found: JsonObject, patch: Any) -> JsonObject:
    """The patched object. Raises ApiError for a malformed patch."""
    if not isinstance(patch, dict):
        raise bad_request("a strategic merge patch is an object")
    return _merge_object(found, patch)


def _merge_object(found: Any, patch: JsonObject) -> JsonObject:
    if patch.get(DIRECTIVE) == "replace":
        return dict(_without_directives(patch))
    merged = dict(found) if isinstance(found, dict) else {}
    if isinstance(retained := patch.get(RETAIN), list):
        merged = {name: value for name, value in merged.items() if name in retained}
    for name, value in patch.items():
        if not name.startswith("$"):
            _merge_field(merged, name, value)
    for name, value in patch.items():
        if name.startswith("$"):
            _apply_directive(merged, name, value)
    return merged


def _merge_field(merged: JsonObject, name: str, value: Any) -> None:
    if value is None:
        merged.pop(name, None)
    elif isinstance(value, dict):
        if value.get(DIRECTIVE) == "delete":
            merged.pop(name, None)
        else:
            merged[name] = _merge_object(merged.get(name), value)
    elif isinstance(value, list):
        merged[name] = _merge_list(name, merged.get(name) or [], value)
    else:
        merged[name] = value


def _merge_list(name: str, found: list[Any], patch: list[Any]) -> list[Any]:
    if name in PRIMITIVE_MERGE:
        return [*found, *(value for value in patch if value not in found)]
    key = _merge_key(name, found, patch)
    if key is None:
        return [_without_directives(value) if isinstance(value, dict) else value for value in patch]
    if any(isinstance(value, dict) and value.get(DIRECTIVE) == "replace" for value in patch):
        return [_without_directives(value) for value in patch if DIRECTIVE not in value]
    return _merge_list_by_key(key, found, patch)


def _merge_key(name: str, found: list[Any], patch: list[Any]) -> str | None:
    if name == "ports":
        return next((key for key in PORT_KEYS if any(key in one for one in (*found, *patch))), None)
    return MERGE_KEYS.get(name) if name not in ATOMIC else None


def _merge_list_by_key(key: str, found: list[Any], patch: list[Any]) -> list[Any]:
    merged = {str(one.get(key)): one for one in found}
    for change in patch:
        if not isinstance(change, dict) or key not in change:
            raise bad_request(f"map: {change!s:.80} does not contain declared merge key: {key}")
        name = str(change[key])
        if change.get(DIRECTIVE) == "delete":
            merged.pop(name, None)
        else:
            merged[name] = _merge_object(merged.get(name), change)
    return list(merged.values())


def _apply_directive(merged: JsonObject, name: str, value: Any) -> None:
    if name.startswith(DELETE_FROM) and isinstance(value, list):
        field = name.removeprefix(DELETE_FROM)
        merged[field] = [one for one in merged.get(field) or [] if one not in value]
    elif name.startswith(ORDER) and isinstance(value, list):
        field = name.removeprefix(ORDER)
        if field in merged:
            merged[field] = _in_order(field, merged[field], value)


def _in_order(field: str, found: list[Any], order: list[Any]) -> list[Any]:
    """The elements in the order of the patch; those that it does not name keep their places at the end."""
    key = _merge_key(field, found, order)

    def identity(one: Any) -> Any:
        return str(one.get(key)) if key and isinstance(one, dict) else str(one)

    places = {identity(one): place for place, one in enumerate(order)}
    place_of: Callable[[Any], int] = lambda one: places.get(identity(one), len(places))  # noqa: E731
    return sorted(found, key=place_of)


def _without_directives(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_directives(one) for name, one in value.items() if not name.startswith("$")}
    return [_without_directives(one) for one in value] if isinstance(value, list) else value
