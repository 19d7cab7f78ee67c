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
class Field:
    schema: Schema
    get: Callable[[Any], Any] | None = None  # None: the attribute of the same name
    needs: tuple[str, ...] | None = None  # None: the column of the same name
    joins: tuple[str, ...] = ()  # what must be prefetched
    required: bool = True
    listed: bool = True  # part of a list without being asked for
    observed: bool = False  # changes with nobody touching the row: no reason to refuse a change


@dataclass(frozen=True)
class Shape:
    name: str
    fields: Mapping[str, Field]
    example: Any = None

    def show(self, row: Any, names: Iterable[str] | None = None) -> dict[str, Any]:
        return {name: plain(self._read(name, row)) for name in (self.fields if names is None else names)}

    def _read(self, name: str, row: Any) -> Any:
        get = self.fields[name].get
        return get(row) if get else getattr(row, name)

    @property
    def listed(self) -> list[str]:
        return [name for name, one in self.fields.items() if one.listed]

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


def plain(value: Any) -> Any:
    """Times are ISO 8601 in UTC, durations whole seconds."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return int(value.total_seconds())
    return value


def at(path: str) -> Callable[[Any], Any]:
    """`team.name`, or null where there is none on the way."""
    get = attrgetter(path)

    def read(row: Any) -> Any:
        try:
            return get(row)
        except AttributeError:
            return None

    return read


# --- kinds of fields, for the tables


def text(says: str = "", choices: Iterable[str] | None = None, **more: Any) -> Field:
    schema = {"type": "string"} | ({"enum": list(choices)} if choices else {})
    return _field(schema, says, more)


def number(says: str = "", low: int | None = None, high: int | None = None, **more: Any) -> Field:
    schema: Schema = {"type": "integer"}
    schema |= {name: bound for name, bound in (("minimum", low), ("maximum", high)) if bound is not None}
    return _field(schema, says, more)


def measure(says: str = "", **more: Any) -> Field:
    """A number that need not be whole."""
    return _field({"type": "number"}, says, more)


def truth(says: str = "", **more: Any) -> Field:
    return _field({"type": "boolean"}, says, more)


def moment(says: str = "", **more: Any) -> Field:
    return _field({"type": "string", "format": "date-time"}, says, more)


def seconds(says: str = "", **more: Any) -> Field:
    return _field({"type": "integer", "minimum": 0}, says, more)


def texts(says: str = "", **more: Any) -> Field:
    return _field({"type": "array", "items": {"type": "string"}}, says, more)


def names(says: str = "", **more: Any) -> Field:
    return _field({"type": "object", "additionalProperties": {"type": "string"}}, says, more)


def anything(says: str = "", **more: Any) -> Field:
    return _field({"type": "object"}, says, more)


def fraction(says: str = "", **more: Any) -> Field:
    return _field({"type": "number"}, says, more)


def one(shape: Shape, says: str = "", **more: Any) -> Field:
    return _field(shape.schema(), says, more)


def many(shape: Shape, says: str = "", **more: Any) -> Field:
    return _field({"type": "array", "items": shape.schema()}, says, more)


def either(*kinds: Schema, says: str = "", **more: Any) -> Field:
    return _field({"oneOf": list(kinds)}, says, more)


def _field(schema: Schema, says: str, more: dict[str, Any]) -> Field:
    if more.pop("nullable", False):
        kinds = schema.get("type")
        schema = schema | {"type": [kinds, "null"]} if kinds else {"oneOf": [schema, {"type": "null"}]}
        if "enum" in schema:
            schema["enum"] = [*schema["enum"], None]
    if says:
        schema = schema | {"description": says}
    return Field(schema=schema, **more)
