"""Resource shapes: one table per response or request body.

A shape lists the fields, how each is read from a row, which columns that needs, and its description in the schema.
So responses, `fields=` and the documentation always agree.
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
    needs: tuple[str, ...] | None = None  # columns to load; None: the column of the same name
    joins: tuple[str, ...] = ()  # relations to prefetch
    required: bool = True
    in_lists: bool = True  # returned in lists without `fields=`
    observed: bool = False  # changes without user action, so If-Match ignores it


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
        return [name for name, field in self.fields.items() if field.in_lists]

    @property
    def observed(self) -> list[str]:
        return [name for name, field in self.fields.items() if field.observed]

    def load(self, rows: QuerySet, names: Iterable[str], also: Iterable[str] = ()) -> QuerySet:
        """The rows with only the columns that these fields need, and the `also` columns (used for sorting)."""
        columns: set[str] = {"pk", *also}
        joins: set[str] = set()
        for name in names:
            field = self.fields[name]
            columns.update((name,) if field.needs is None else field.needs)
            joins.update(field.joins)
        related = {column.rpartition("__")[0] for column in columns if "__" in column}
        rows = rows.only(*columns, *related).prefetch_related(*sorted(joins))
        return rows.select_related(*sorted(related)) if related else rows

    def schema(self, thinned: bool = False) -> Schema:
        """The JSON schema. With `thinned` no field is required: lists omit long fields and `fields=` omits more."""
        schema: Schema = {
            "type": "object",
            "properties": {name: field.schema for name, field in self.fields.items()},
            "additionalProperties": False,
        }
        required = [name for name, field in self.fields.items() if field.required]
        if required and not thinned:
            schema["required"] = required
        if self.example is not None:
            schema["examples"] = [self.example]
        return schema


NOTHING_SHAPE = ResourceShape("Nothing", {})  # the body of a request without fields


def json_value(value: Any) -> Any:
    """The value for JSON: times as ISO 8601 in UTC, durations as whole seconds."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return int(value.total_seconds())
    return value


def attribute_path(path: str) -> Callable[[Any], Any]:
    """A getter of a path such as `team.name`; None if a part of the path is missing."""
    get = attrgetter(path)

    def read_attribute(row: Any) -> Any:
        try:
            return get(row)
        except AttributeError:
            return None

    return read_attribute


# --- field types


def text_field(says: str = "", choices: Iterable[str] | None = None, **more: Any) -> ShapeField:
    schema = {"type": "string"} | ({"enum": list(choices)} if choices else {})
    return _build_field(schema, says, more)


def integer_field(says: str = "", low: int | None = None, high: int | None = None, **more: Any) -> ShapeField:
    return _build_field({"type": "integer"} | _range_schema(low, high), says, more)


def number_field(says: str = "", low: int | None = None, high: int | None = None, **more: Any) -> ShapeField:
    """A number that may have a fraction."""
    return _build_field({"type": "number"} | _range_schema(low, high), says, more)


def boolean_field(says: str = "", **more: Any) -> ShapeField:
    return _build_field({"type": "boolean"}, says, more)


def datetime_field(says: str = "", **more: Any) -> ShapeField:
    return _build_field({"type": "string", "format": "date-time"}, says, more)


def seconds_field(says: str = "", **more: Any) -> ShapeField:
    return _build_field({"type": "integer", "minimum": 0}, says, more)


def duration_field(says: str = "", **more: Any) -> ShapeField:
    """A duration in a request: seconds, or a text such as 2:00:00."""
    return _build_field({"type": ["integer", "string"]}, says, more)


def text_list_field(says: str = "", **more: Any) -> ShapeField:
    return _build_field({"type": "array", "items": {"type": "string"}}, says, more)


def integer_list_field(says: str = "", low: int | None = None, high: int | None = None, **more: Any) -> ShapeField:
    return _build_field({"type": "array", "items": {"type": "integer"} | _range_schema(low, high)}, says, more)


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


def _range_schema(low: int | None, high: int | None) -> Schema:
    return {name: bound for name, bound in (("minimum", low), ("maximum", high)) if bound is not None}


def _build_field(schema: Schema, says: str, more: dict[str, Any]) -> ShapeField:
    if more.pop("nullable", False):
        kinds = schema.get("type")
        schema = schema | {"type": [kinds, "null"]} if kinds else {"oneOf": [schema, {"type": "null"}]}
        if "enum" in schema:
            schema["enum"] = [*schema["enum"], None]
    if says:
        schema = schema | {"description": says}
    return ShapeField(schema=schema, **more)
