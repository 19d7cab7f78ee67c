"""`field__lookup` filters and `fields=`, from an explicit table: what is not in it is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import Model, Q

from jobs.core import parsing
from jobs.rest.errors import InvalidRequestField
from jobs.rest.shapes import ResourceShape, Schema

RESERVED_PARAMS = frozenset({"limit", "cursor", "ordering", "fields"})
MAX_VALUES = 1000
MAX_DISTINCT_VALUES = (
    2000  # values that are walked through: more would take longer than looking through the rows may save
)
MAX_MATCHING_VALUES = 100

BOOLEAN_WORDS = {"true": True, "1": True, "false": False, "0": False}

DISTINCT_VALUES_SQL = """
WITH RECURSIVE seen (value) AS (
    (SELECT {column} FROM {table} ORDER BY {column} LIMIT 1)
    UNION ALL
    SELECT (SELECT {column} FROM {table} WHERE {column} > seen.value ORDER BY {column} LIMIT 1)
    FROM seen WHERE seen.value IS NOT NULL
)
SELECT value, upper(value) LIKE upper(%s) FROM (SELECT value FROM seen WHERE value IS NOT NULL LIMIT %s) AS few
"""

# How a lookup of ours is called in the ORM; `""` is the bare field
LOOKUPS = {
    "": "exact",
    "in": "in",
    "gt": "gt",
    "gte": "gte",
    "lt": "lt",
    "lte": "lte",
    "contains": "icontains",
    "startswith": "startswith",
    "isnull": "isnull",
}


@dataclass(frozen=True, kw_only=True)
class QueryFilter:
    column: str
    read: Callable[[str, str], Any]
    lookups: tuple[str, ...]
    schema: Schema
    by_name: bool = False  # what comes after `__` is a name of the rows' own, such as that of a label
    named: tuple[type[Model], str] | None = None  # the values are names of rows there, and the column holds their keys
    distinct_scan_model: type[Model] | None = (
        None  # few different values are usual in its column, with which an index of it begins
    )


def parse(table: Mapping[str, QueryFilter], asked: Mapping[str, Sequence[str]], what: str) -> Q:
    """Every filter must hold; one that is given several times holds for any of its values."""
    wanted = Q()
    for name, values in asked.items():
        if name not in RESERVED_PARAMS:
            wanted &= _filter_condition(table, name, values, what)
    return wanted


def _filter_condition(table: Mapping[str, QueryFilter], name: str, values: Sequence[str], what: str) -> Q:
    field, _, lookup = name.partition("__")
    known = table.get(field)
    if known is not None and known.by_name and lookup:
        wanted = Q()
        for value in values:
            wanted |= Q(**{f"{known.column}__contains": {lookup: known.read(name, value)}})
        return wanted
    if known is None or lookup not in known.lookups:
        offered = f"{field} knows {_lookups_text(field, known.lookups)}" if known else f"there are {', '.join(table)}"
        raise InvalidRequestField(parsing.short_repr(name)[1:-1], f"is no filter of {what}; {offered}")
    if lookup == "isnull":
        return Q(**{f"{known.column}__isnull": _read_boolean(name, _single_value(name, values))})
    if lookup in ("", "in"):
        words = [word for value in values for word in (value.split(",") if lookup == "in" else [value])]
        if len(words) > MAX_VALUES:
            raise InvalidRequestField(name, f"has {len(words)} values, more than the {MAX_VALUES} allowed")
        found = [_parse_filter_value(known, name, word, lookup) for word in words]
        if known.named:
            return Q(**{f"{known.column}__in": _primary_keys_named(known.named, found)})
        return Q(**{known.column: found[0]}) if len(found) == 1 else Q(**{f"{known.column}__in": found})
    wanted_value = known.read(name, _single_value(name, values))
    among = _distinct_values_containing(known, wanted_value) if lookup == "contains" else None
    if among is not None:
        return Q(**{f"{known.column}__in": among})
    return Q(**{f"{known.column}__{LOOKUPS[lookup]}": wanted_value})


def _distinct_values_containing(known: QueryFilter, part: str) -> list[str] | None:
    """Which of the column's different values contain it; None where they are many, and each row is looked at.

    A history has a million jobs and a few hundred names, and a part of a name has no index: what no name contains is
    known after a walk from name to name, and what a few contain is found by the index of names.
    """
    if known.distinct_scan_model is None:
        return None
    table, column = (connection.ops.quote_name(one) for one in (known.distinct_scan_model._meta.db_table, known.column))
    with connection.cursor() as cursor:
        cursor.execute(
            DISTINCT_VALUES_SQL.format(table=table, column=column),
            [f"%{connection.ops.prep_for_like_query(part)}%", MAX_DISTINCT_VALUES + 1],
        )
        rows = cursor.fetchall()
    found = [value for value, contains in rows if contains]
    return found if len(rows) <= MAX_DISTINCT_VALUES and len(found) <= MAX_MATCHING_VALUES else None


def _parse_filter_value(known: QueryFilter, name: str, word: str, lookup: str) -> Any:
    try:
        return known.read(name, word)
    except (parsing.InvalidField, InvalidRequestField):
        if lookup == "in" and not word:
            raise InvalidRequestField(name, "has nothing before, after or between its commas; write one,two") from None
        raise


def _primary_keys_named(named: tuple[type[Model], str], names: list[Any]) -> list[Any]:
    """Looked up here: the planner knows how many rows a key has, but not how many a name behind a join will have."""
    model, column = named
    return list(model._default_manager.filter(**{f"{column}__in": names}).order_by("pk").values_list("pk", flat=True))


def _lookups_text(field: str, lookups: Sequence[str]) -> str:
    if not lookups:
        return f"{field}__NAME"
    return ", ".join(f"{field}__{lookup}" if lookup else field for lookup in lookups)


def _single_value(name: str, values: Sequence[str]) -> str:
    if len(values) != 1:
        raise InvalidRequestField(name, "is given more than once")
    return values[0]


def integer_param(asked: Mapping[str, Sequence[str]], name: str, low: int, high: int) -> int | None:
    """A parameter that is no filter; None when it was not given."""
    values = asked.get(name, [])
    if not values:
        return None
    digits = _single_value(name, values)
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidRequestField(name, f"{parsing.short_repr(digits)} is no whole number")
    if len(digits) > 18 or not low <= int(digits) <= high:
        raise InvalidRequestField(name, f"{parsing.short_repr(digits)} is not between {low} and {high}")
    return int(digits)


def requested_fields(shape: ResourceShape, asked: str | None) -> list[str] | None:
    """The names in `fields=`, in the order of the shape; None when it was not given."""
    if asked is None:
        return None
    names = [name.strip() for name in asked.split(",")]
    for name in names:
        if name not in shape.fields:
            raise InvalidRequestField(
                "fields", f"{parsing.short_repr(name)} is no field; there are {', '.join(shape.fields)}"
            )
    return [name for name in shape.fields if name in names]


# --- kinds of filters, for the tables


def text_filter(column: str, *more: str, walked: type[Model] | None = None) -> QueryFilter:
    lookups = ("", "in", *more)
    return QueryFilter(
        column=column,
        read=parsing.text_reader(200),
        lookups=lookups,
        schema={"type": "string"},
        distinct_scan_model=walked,
    )


def related_name_filter(column: str, model: type[Model], name: str) -> QueryFilter:
    return QueryFilter(
        column=column, read=parsing.text_reader(200), lookups=("", "in"), schema={"type": "string"}, named=(model, name)
    )


def choice_filter(column: str, choices: Sequence[str]) -> QueryFilter:
    words = [str(one) for one in choices]
    schema = {"type": "string", "enum": words}
    return QueryFilter(column=column, read=parsing.choice_reader(words), lookups=("", "in"), schema=schema)


def integer_filter(column: str) -> QueryFilter:
    lookups = ("", "in", "gt", "gte", "lt", "lte")
    return QueryFilter(column=column, read=_read_integer, lookups=lookups, schema={"type": "integer"})


def boolean_filter(column: str) -> QueryFilter:
    return QueryFilter(column=column, read=_read_boolean, lookups=("",), schema={"type": "boolean"})


def datetime_filter(column: str) -> QueryFilter:
    schema = {"type": "string", "format": "date-time"}
    return QueryFilter(column=column, read=read_datetime, lookups=("gt", "gte", "lt", "lte", "isnull"), schema=schema)


def labels_filter(column: str) -> QueryFilter:
    """`labels__run=7b`: rows whose label `run` is `7b`."""
    return QueryFilter(
        column=column, read=parsing.text_reader(500), lookups=(), schema={"type": "string"}, by_name=True
    )


def _read_integer(name: str, value: str) -> int:
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidRequestField(name, f"{parsing.short_repr(value)} is no whole number")
    number = int(value[:20])
    return parsing.integer_reader(-(2**31), 2**31 - 1)(name, number)


def _read_boolean(name: str, value: str) -> bool:
    if value.lower() not in BOOLEAN_WORDS:
        raise InvalidRequestField(name, f"{parsing.short_repr(value)} is neither true nor false")
    return BOOLEAN_WORDS[value.lower()]


def read_datetime(name: str, value: str) -> Any:
    # In a query a plus sign arrives as a space when it was not escaped, and nobody means a space before an offset
    return parsing.read_timestamp(name, value.replace(" ", "+") if value[-6:-5] == " " else value)
