"""`field__lookup` filters and `fields=`, from an explicit table: what is not in it is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import Model, Q

from jobs import readers
from jobs.door.errors import BadField
from jobs.door.shapes import Schema, Shape

RESERVED = frozenset({"limit", "cursor", "ordering", "fields"})
MOST_VALUES = 1000
MOST_DISTINCT = 2000  # values that are walked through: more would take longer than looking through the rows may save
MOST_AMONG = 100

TRUTHS = {"true": True, "1": True, "false": False, "0": False}

WALK = """
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
class Filter:
    column: str
    read: Callable[[str, str], Any]
    lookups: tuple[str, ...]
    schema: Schema
    by_name: bool = False  # what comes after `__` is a name of the rows' own, such as that of a label
    named: tuple[type[Model], str] | None = None  # the values are names of rows there, and the column holds their keys
    walked: type[Model] | None = None  # few different values are usual in its column, with which an index of it begins


def parse(table: Mapping[str, Filter], asked: Mapping[str, Sequence[str]], what: str) -> Q:
    """Every filter must hold; one that is given several times holds for any of its values."""
    wanted = Q()
    for name, values in asked.items():
        if name not in RESERVED:
            wanted &= _one(table, name, values, what)
    return wanted


def _one(table: Mapping[str, Filter], name: str, values: Sequence[str], what: str) -> Q:
    field, _, lookup = name.partition("__")
    known = table.get(field)
    if known is not None and known.by_name and lookup:
        wanted = Q()
        for value in values:
            wanted |= Q(**{f"{known.column}__contains": {lookup: known.read(name, value)}})
        return wanted
    if known is None or lookup not in known.lookups:
        offered = f"{field} knows {_spoken(field, known.lookups)}" if known else f"there are {', '.join(table)}"
        raise BadField(readers.short(name)[1:-1], f"is no filter of {what}; {offered}")
    if lookup == "isnull":
        return Q(**{f"{known.column}__isnull": _truth(name, _single(name, values))})
    if lookup in ("", "in"):
        words = [word for value in values for word in (value.split(",") if lookup == "in" else [value])]
        if len(words) > MOST_VALUES:
            raise BadField(name, f"has {len(words)} values, more than the {MOST_VALUES} allowed")
        found = [_value(known, name, word, lookup) for word in words]
        if known.named:
            return Q(**{f"{known.column}__in": _keys_of(known.named, found)})
        return Q(**{known.column: found[0]}) if len(found) == 1 else Q(**{f"{known.column}__in": found})
    wanted_value = known.read(name, _single(name, values))
    among = _containing(known, wanted_value) if lookup == "contains" else None
    if among is not None:
        return Q(**{f"{known.column}__in": among})
    return Q(**{f"{known.column}__{LOOKUPS[lookup]}": wanted_value})


def _containing(known: Filter, part: str) -> list[str] | None:
    """Which of the column's different values contain it; None where they are many, and each row is looked at.

    A history has a million jobs and a few hundred names, and a part of a name has no index: what no name contains is
    known after a walk from name to name, and what a few contain is found by the index of names.
    """
    if known.walked is None:
        return None
    table, column = (connection.ops.quote_name(one) for one in (known.walked._meta.db_table, known.column))
    with connection.cursor() as cursor:
        cursor.execute(
            WALK.format(table=table, column=column),
            [f"%{connection.ops.prep_for_like_query(part)}%", MOST_DISTINCT + 1],
        )
        rows = cursor.fetchall()
    found = [value for value, contains in rows if contains]
    return found if len(rows) <= MOST_DISTINCT and len(found) <= MOST_AMONG else None


def _value(known: Filter, name: str, word: str, lookup: str) -> Any:
    try:
        return known.read(name, word)
    except (readers.BadSpec, BadField):
        if lookup == "in" and not word:
            raise BadField(name, "has nothing before, after or between its commas; write one,two") from None
        raise


def _keys_of(named: tuple[type[Model], str], names: list[Any]) -> list[Any]:
    """Looked up here: the planner knows how many rows a key has, but not how many a name behind a join will have."""
    model, column = named
    return list(model._default_manager.filter(**{f"{column}__in": names}).order_by("pk").values_list("pk", flat=True))


def _spoken(field: str, lookups: Sequence[str]) -> str:
    if not lookups:
        return f"{field}__NAME"
    return ", ".join(f"{field}__{lookup}" if lookup else field for lookup in lookups)


def _single(name: str, values: Sequence[str]) -> str:
    if len(values) != 1:
        raise BadField(name, "is given more than once")
    return values[0]


def whole(asked: Mapping[str, Sequence[str]], name: str, low: int, high: int) -> int | None:
    """A parameter that is no filter; None when it was not given."""
    values = asked.get(name, [])
    if not values:
        return None
    digits = _single(name, values)
    if not (digits.isascii() and digits.isdigit()):
        raise BadField(name, f"{readers.short(digits)} is no whole number")
    if len(digits) > 18 or not low <= int(digits) <= high:
        raise BadField(name, f"{readers.short(digits)} is not between {low} and {high}")
    return int(digits)


def thin(shape: Shape, asked: str | None) -> list[str] | None:
    """The names in `fields=`, in the order of the shape; None when it was not given."""
    if asked is None:
        return None
    names = [name.strip() for name in asked.split(",")]
    for name in names:
        if name not in shape.fields:
            raise BadField("fields", f"{readers.short(name)} is no field; there are {', '.join(shape.fields)}")
    return [name for name in shape.fields if name in names]


# --- kinds of filters, for the tables


def text(column: str, *more: str, walked: type[Model] | None = None) -> Filter:
    lookups = ("", "in", *more)
    return Filter(column=column, read=readers.text(200), lookups=lookups, schema={"type": "string"}, walked=walked)


def related(column: str, model: type[Model], name: str) -> Filter:
    return Filter(
        column=column, read=readers.text(200), lookups=("", "in"), schema={"type": "string"}, named=(model, name)
    )


def choice(column: str, choices: Sequence[str]) -> Filter:
    words = [str(one) for one in choices]
    schema = {"type": "string", "enum": words}
    return Filter(column=column, read=readers.one_of(words), lookups=("", "in"), schema=schema)


def number(column: str) -> Filter:
    lookups = ("", "in", "gt", "gte", "lt", "lte")
    return Filter(column=column, read=_number, lookups=lookups, schema={"type": "integer"})


def truth(column: str) -> Filter:
    return Filter(column=column, read=_truth, lookups=("",), schema={"type": "boolean"})


def moment(column: str) -> Filter:
    schema = {"type": "string", "format": "date-time"}
    return Filter(column=column, read=read_moment, lookups=("gt", "gte", "lt", "lte", "isnull"), schema=schema)


def labels(column: str) -> Filter:
    """`labels__run=7b`: rows whose label `run` is `7b`."""
    return Filter(column=column, read=readers.text(500), lookups=(), schema={"type": "string"}, by_name=True)


def _number(name: str, value: str) -> int:
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise BadField(name, f"{readers.short(value)} is no whole number")
    number = int(value[:20])
    return readers.whole(-(2**31), 2**31 - 1)(name, number)


def _truth(name: str, value: str) -> bool:
    if value.lower() not in TRUTHS:
        raise BadField(name, f"{readers.short(value)} is neither true nor false")
    return TRUTHS[value.lower()]


def read_moment(name: str, value: str) -> Any:
    # In a query a plus sign arrives as a space when it was not escaped, and nobody means a space before an offset
    return readers.moment(name, value.replace(" ", "+") if value[-6:-5] == " " else value)
