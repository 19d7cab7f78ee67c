"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7396). Pure."""

from __future__ import annotations

import copy
from typing import Any

from scheduling.simulation.kubernetes.objects import JsonObject

from .errors import ApiError, bad_request

MAX_OPERATIONS = 10_000


def merge_patch(found: Any, patch: Any) -> Any:
    """The patched value; null removes a field."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(found) if isinstance(found, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def json_patch(found: JsonObject, operations: Any) -> JsonObject:
    """The patched object. Raises ApiError for a malformed patch, and for one that does not fit the object."""
    if not isinstance(operations, list) or len(operations) > MAX_OPERATIONS:
        raise bad_request("error decoding patch: a JSON patch is a list of operations")
    document: Any = copy.deepcopy(found)
    for operation in operations:
        document = _apply_operation(document, operation)
    if not isinstance(document, dict):
        raise bad_request("a JSON patch cannot replace the object by another type")
    return document


def _apply_operation(document: Any, operation: Any) -> Any:
    if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
        raise bad_request("error decoding patch: an operation has no path")
    path, name = operation["path"], operation.get("op")
    match name:
        case "add" | "replace":
            return _set(document, _parts(path), copy.deepcopy(operation.get("value")), insert=name == "add")
        case "remove":
            return _remove(document, _parts(path))
        case "test":
            if _get(document, _parts(path)) != operation.get("value"):
                raise _unfit(f"testing value {path} failed")
            return document
    raise bad_request(f"error decoding patch: unexpected operation {name!r:.40}")


def _parts(pointer: str) -> list[str]:
    if pointer and not pointer.startswith("/"):
        raise bad_request(f"error decoding patch: {pointer!r:.80} is not a JSON pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _get(document: Any, parts: list[str]) -> Any:
    for part in parts:
        document = _child(document, part)
    return document


def _child(parent: Any, part: str) -> Any:
    if isinstance(parent, dict) and part in parent:
        return parent[part]
    if isinstance(parent, list):
        return parent[_index(parent, part, len(parent) - 1)]
    raise _unfit(f"missing path {part}")


def _index(parent: list[Any], part: str, last: int) -> int:
    if part.isascii() and part.isdigit() and len(part) < 9 and int(part) <= last:
        return int(part)
    raise _unfit(f"index {part:.20} is out of bounds")


def _set(document: Any, parts: list[str], value: Any, *, insert: bool) -> Any:
    if not parts:
        return value
    parent, last = _get(document, parts[:-1]), parts[-1]
    if isinstance(parent, dict):
        if not insert and last not in parent:
            raise _unfit(f"replace operation does not apply: missing key {last}")
        parent[last] = value
    elif isinstance(parent, list):
        _set_in_list(parent, last, value, insert=insert)
    else:
        raise _unfit(f"missing path {last}")
    return document


def _set_in_list(parent: list[Any], last: str, value: Any, *, insert: bool) -> None:
    if insert:
        parent.insert(len(parent) if last == "-" else _index(parent, last, len(parent)), value)
    else:
        parent[_index(parent, last, len(parent) - 1)] = value


def _remove(document: Any, parts: list[str]) -> Any:
    if not parts:
        return {}
    parent, last = _get(document, parts[:-1]), parts[-1]
    if isinstance(parent, dict) and last in parent:
        del parent[last]
    elif isinstance(parent, list):
        del parent[_index(parent, last, len(parent) - 1)]
    else:
        raise _unfit(f"remove operation does not apply: missing path {last}")
    return document


def _unfit(detail: str) -> ApiError:
    return ApiError(422, "Invalid", f"the server rejected our request due to an error in our request: {detail}", {})
