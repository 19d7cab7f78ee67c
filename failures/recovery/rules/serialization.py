"""Converts the inputs of decisions to JSON and back, so that the current rules can replay them. Pure.

The types are read from the annotations of the dataclasses, so new fields need no code here.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def to_json_value(value: Any) -> Any:
    """The value as JSON. Mappings become lists of pairs, because their keys may not be strings."""
    match value:
        case None | bool() | int() | float():
            return value
        case Enum():
            return value.value
        case str():
            return value
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return [[to_json_value(key), to_json_value(inner)] for key, inner in value.items()]
        case frozenset():
            return [to_json_value(inner) for inner in sorted(value)]
    if is_dataclass(value):
        return {item.name: to_json_value(getattr(value, item.name)) for item in fields(value)}
    return [to_json_value(inner) for inner in value]


def from_json(kind: Callable[..., T], stored: Mapping[str, Any]) -> T:
    """An instance from stored JSON. Fields that no longer exist are dropped; newer ones get their default."""
    hints = _field_types(kind)
    return kind(**{name: _parse_value(hints[name], inner) for name, inner in stored.items() if name in hints})


@cache
def _field_types(kind: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _parse_value(hint: Any, stored: Any) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if stored is None else _parse_value(next(kind for kind in inner if kind is not type(None)), stored)
    if origin is not None:
        return _parse_collection(origin, inner, stored)
    if isinstance(hint, type) and is_dataclass(hint):
        return from_json(hint, stored)
    if hint is datetime:
        return datetime.fromisoformat(stored)
    if hint is timedelta:
        return timedelta(seconds=stored)
    return hint(stored) if isinstance(hint, type) and issubclass(hint, Enum) else stored


def _parse_collection(origin: Any, inner: tuple[Any, ...], stored: Iterable[Any]) -> Any:
    if issubclass(origin, Mapping):
        return {_parse_value(inner[0], key): _parse_value(inner[1], value) for key, value in stored}
    if origin is tuple and inner[-1] is not Ellipsis:
        return tuple(_parse_value(kind, item) for kind, item in zip(inner, stored, strict=True))
    items = (_parse_value(inner[0], item) for item in stored)
    return frozenset(items) if issubclass(origin, frozenset) else tuple(items) if issubclass(origin, Sequence) else None
