"""What answers and bodies look like, in one table each.

A Shape says which fields there are, how each is read off a row, what columns that takes, and how it is described in
the schema; so what is sent, what `fields=` can choose and what is documented cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

from django.db.models import QuerySet

Schema = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ShapeField:
    schema: Schema
    get: Callable[[Any], Any] | None = None  # None: the attribute of the same name
    needs: tuple[str, ...] | None = None  # None: the column of the same name
    joins: tuple[str, ...] = ()  # what must be prefetched
    required: bool = True
    in_lists: bool = True  # part of a list without being asked for
    observed: bool = False  # changes with nobody touching the row: no reason to refuse a change


@dataclass(frozen=True)
class ResourceShape:
    name: str
    fields: Mapping[str, ShapeField]
    example: Any = None

    def show(self, row: Any, names: Iterable[str] | None = None) -> dict[str, Any]:
        return {name: json_value(self._read_field(name, row)) for name in (self.fields if names is None else names)}

    def _read_field(self, name: str, row: Any) -> Any:
        get = self.fields[name].get
        return get(row) if get else getattr(row, name)

    @property
    def list_fields(self) -> list[str]:
        return [name for name, one in self.fields.items() if one.in_lists]

    @property
    def observed(self) -> list[str]:
        return [name for name, one in self.fields.items() if one.observed]

    def load(self, rows: QuerySet, names: Iterable[str], also: Iterable[str] = ()) -> QuerySet:
        """Only the columns that these fields are read off, and those that give a row its place on the page."""
        columns: set[str] = {"pk", *also}
        joins: set[str] = set()
        for name in names:
            one = self.fields[name]
            columns.update((name,) if one.needs is None else one.needs)
            joins.update(one.joins)
        related = {column.rpartition("__")[0] for column in columns if "__" in column}
        rows = rows.only(*columns, *related).prefetch_related(*sorted(joins))
        return rows.select_related(*sorted(related)) if related else rows

    def schema(self, thinned: bool = False) -> Schema:
        """With `thinned`, no field is sure to be there: a list leaves out the long ones, `fields=` more of them."""
        shown: Schema = {
            "type": "object",
            "properties": {name: one.schema for name, one in self.fields.items()},
            "additionalProperties": False,
        }
        needed = [name for name, one in self.fields.items() if one.required]
        if needed and not thinned:
            shown["required"] = needed
        if self.example is not None:
            shown["examples"] = [self.example]
        return shown


def json_value(value: Any) -> Any:
    """Times are ISO 8601 in UTC, durations whole seconds."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return int(value.total_seconds())
    return value


def attribute_path(path: str) -> Callable[[Any], Any]:
    """`team.name`, or null where there is none on the way."""
    get = attrgetter(path)

    def read_attribute(row: Any) -> Any:
        try:
            return get(row)
        except AttributeError:
            return None

    return read_attribute


# --- kinds of fields, for the tables


def text_field(says: str = "", choices: Iterable[str] | None = None, **more: Any) -> ShapeField:
    schema = {"type": "string"} | ({"enum": list(choices)} if choices else {})
    return _build_field(schema, says, more)


def integer_field(says: str = "", low: int | None = None, high: int | None = None, **more: Any) -> ShapeField:
    schema: Schema = {"type": "integer"}
    schema |= {name: bound for name, bound in (("minimum", low), ("maximum", high)) if bound is not None}
    return _build_field(schema, says, more)


def number_field(says: str = "", **more: Any) -> ShapeField:
    """A number that need not be whole."""
    return _build_field({"type": "number"}, says, more)


def boolean_field(says: str = "", **more: Any) -> ShapeField:
    return _build_field({"type": "boolean"}, says, more)


def datetime_field(says: str = "", **more: Any) -> ShapeField:
    return _build_field({"type": "string", "format": "date-time"}, says, more)


def seconds_field(says: str = "", **more: Any) -> ShapeField:
    return _build_field({"type": "integer", "minimum": 0}, says, more)


def text_list_field(says: str = "", **more: Any) -> ShapeField:
    return _build_field({"type": "array", "items": {"type": "string"}}, says, more)


def text_map_field(says: str = "", **more: Any) -> ShapeField:
    return _build_field({"type": "object", "additionalProperties": {"type": "string"}}, says, more)


def object_field(says: str = "", **more: Any) -> ShapeField:
    return _build_field({"type": "object"}, says, more)


def fraction_field(says: str = "", **more: Any) -> ShapeField:
    return _build_field({"type": "number"}, says, more)


def nested_field(shape: ResourceShape, says: str = "", **more: Any) -> ShapeField:
    return _build_field(shape.schema(), says, more)


def nested_list_field(shape: ResourceShape, says: str = "", **more: Any) -> ShapeField:
    return _build_field({"type": "array", "items": shape.schema()}, says, more)


def one_of_field(*kinds: Schema, says: str = "", **more: Any) -> ShapeField:
    return _build_field({"oneOf": list(kinds)}, says, more)


def _build_field(schema: Schema, says: str, more: dict[str, Any]) -> ShapeField:
    if more.pop("nullable", False):
        kinds = schema.get("type")
        schema = schema | {"type": [kinds, "null"]} if kinds else {"oneOf": [schema, {"type": "null"}]}
        if "enum" in schema:
            schema["enum"] = [*schema["enum"], None]
    if says:
        schema = schema | {"description": says}
    return ShapeField(schema=schema, **more)
