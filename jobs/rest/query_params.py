"""`field__lookup` filters and `fields=`. Each endpoint lists its filters in a table; other names are rejected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from django.db import connection
from django.db.models import Model, Q

from acmeweb.common.errors import InvalidField
from jobs.core import parsing
from jobs.rest.shapes import ResourceShape, Schema

RESERVED_PARAMS = frozenset({"limit", "cursor", "ordering", "fields"})
MAX_VALUES = 1000
MAX_DISTINCT_VALUES = 2000  # beyond this, collecting the distinct values takes longer than scanning the rows
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

# API lookup -> ORM lookup; "" is the field without a lookup
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
    by_name: bool = False  # the text after `__` is a key in the column's JSON object, such as a label's name
    named: tuple[type[Model], str] | None = None  # the values are names of these rows; the column holds their keys
    child: tuple[type[Model], str] | None = None  # the column is one of these rows, which point to ours by this field
    # The column has few distinct values and an index of this model begins with it
    distinct_scan_model: type[Model] | None = None
    max_distinct_values: int = MAX_DISTINCT_VALUES


def parse(table: Mapping[str, QueryFilter], params: Mapping[str, Sequence[str]], what: str) -> Q:
    """The condition of all filters combined with AND. A repeated filter matches any of its values."""
    condition = Q()
    for name, values in params.items():
        if name not in RESERVED_PARAMS:
            condition &= _filter_condition(table, name, values, what)
    return condition


def _filter_condition(table: Mapping[str, QueryFilter], name: str, values: Sequence[str], what: str) -> Q:
    field, _, lookup = name.partition("__")
    known = table.get(field)
    if known is not None and known.by_name and lookup:
        condition = Q()
        for value in values:
            condition |= Q(**{f"{known.column}__contains": {lookup: known.read(name, value)}})
        return condition
    if known is None or lookup not in known.lookups:
        choices = _lookups_text(field, known.lookups) if known else ", ".join(table)
        raise InvalidField(parsing.short_repr(name)[1:-1], f"is not a filter of {what}; use one of {choices}")
    if lookup == "isnull":
        return Q(**{f"{known.column}__isnull": _read_boolean(name, _single_value(name, values))})
    if lookup in ("", "in"):
        texts = [text for value in values for text in (value.split(",") if lookup == "in" else [value])]
        if len(texts) > MAX_VALUES:
            raise InvalidField(name, f"has {len(texts)} values; at most {MAX_VALUES} are allowed")
        parsed = [_parse_filter_value(known, name, text, lookup) for text in texts]
        if known.named:
            return Q(**{f"{known.column}__in": _primary_keys_named(known.named, parsed)})
        if known.child:
            model, owner = known.child
            return Q(pk__in=model._default_manager.filter(**{f"{known.column}__in": parsed}).values(owner))
        return Q(**{known.column: parsed[0]}) if len(parsed) == 1 else Q(**{f"{known.column}__in": parsed})
    value = known.read(name, _single_value(name, values))
    candidates = _distinct_values_containing(known, value) if lookup == "contains" else None
    if candidates is not None:
        return Q(**{f"{known.column}__in": candidates})
    return Q(**{f"{known.column}__{LOOKUPS[lookup]}": value})


def _distinct_values_containing(known: QueryFilter, part: str) -> list[str] | None:
    """The distinct values of the column that contain `part`; None if they are too many, so that the rows are scanned.

    A history has a million jobs but a few hundred names, and no index serves a substring search. Collecting the
    distinct names with index skips is fast, and the rows with matching names are then found by index.
    """
    if known.distinct_scan_model is None:
        return None
    names = (known.distinct_scan_model._meta.db_table, known.column)
    table, column = (connection.ops.quote_name(name) for name in names)
    with connection.cursor() as cursor:
        cursor.execute(
            DISTINCT_VALUES_SQL.format(table=table, column=column),
            [f"%{connection.ops.prep_for_like_query(part)}%", known.max_distinct_values + 1],
        )
        rows = cursor.fetchall()
    matching = [value for value, contains in rows if contains]
    is_complete = len(rows) <= known.max_distinct_values and len(matching) <= MAX_MATCHING_VALUES
    return matching if is_complete else None


def _parse_filter_value(known: QueryFilter, name: str, text: str, lookup: str) -> Any:
    try:
        return known.read(name, text)
    except InvalidField:
        if lookup == "in" and not text:
            raise InvalidField(name, "contains an empty value; separate values with single commas") from None
        raise


def _primary_keys_named(named: tuple[type[Model], str], names: list[Any]) -> list[Any]:
    """The primary keys of the named rows.

    Resolved in a query of its own instead of a join: the planner has statistics for keys, not for joined names.
    """
    model, column = named
    return list(model._default_manager.filter(**{f"{column}__in": names}).order_by("pk").values_list("pk", flat=True))


def _lookups_text(field: str, lookups: Sequence[str]) -> str:
    if not lookups:
        return f"{field}__NAME"
    return ", ".join(f"{field}__{lookup}" if lookup else field for lookup in lookups)


def _single_value(name: str, values: Sequence[str]) -> str:
    if len(values) != 1:
        raise InvalidField(name, "is given more than once")
    return values[0]


def integer_param(params: Mapping[str, Sequence[str]], name: str, low: int, high: int) -> int | None:
    """The value of an integer parameter; None if it is absent."""
    values = params.get(name, [])
    if not values:
        return None
    digits = _single_value(name, values)
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidField(name, f"{parsing.short_repr(digits)} is not a whole number")
    if len(digits) > 18 or not low <= int(digits) <= high:
        raise InvalidField(name, f"{parsing.short_repr(digits)} is not between {low} and {high}")
    return int(digits)


def requested_fields(shape: ResourceShape, text: str | None) -> list[str] | None:
    """The names in `fields=`, in the order of the shape; None if the parameter is absent."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in shape.fields:
            raise InvalidField("fields", _unknown_field_text(name, shape))
    return [name for name in shape.fields if name in names]


def _unknown_field_text(name: str, shape: ResourceShape) -> str:
    """Without all names, of which a job has more than fifty."""
    similar = get_close_matches(name[:60], shape.fields)
    hint = f"; similar ones are {', '.join(similar)}" if similar else ""
    return f"{parsing.short_repr(name)} is not a field{hint}. A request without `fields` returns all fields."


# --- filter types


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


def child_text_filter(model: type[Model], column: str, owner: str) -> QueryFilter:
    """A filter on a text of rows that belong to ours: a job matches if one of its attempts does."""
    read = parsing.nonempty_reader(parsing.text_reader(200))
    return QueryFilter(
        column=column, read=read, lookups=("", "in"), schema={"type": "string", "minLength": 1}, child=(model, owner)
    )


def choice_filter(column: str, choices: Sequence[str]) -> QueryFilter:
    values = [str(choice) for choice in choices]
    schema = {"type": "string", "enum": values}
    return QueryFilter(column=column, read=parsing.choice_reader(values), lookups=("", "in"), schema=schema)


def integer_filter(column: str) -> QueryFilter:
    lookups = ("", "in", "gt", "gte", "lt", "lte")
    return QueryFilter(column=column, read=_read_integer, lookups=lookups, schema={"type": "integer"})


def boolean_filter(column: str) -> QueryFilter:
    return QueryFilter(column=column, read=_read_boolean, lookups=("",), schema={"type": "boolean"})


def datetime_filter(column: str) -> QueryFilter:
    schema = {"type": "string", "format": "date-time"}
    return QueryFilter(column=column, read=read_datetime, lookups=("gt", "gte", "lt", "lte", "isnull"), schema=schema)


def labels_filter(column: str) -> QueryFilter:
    """A filter on labels: `labels__run=7b` matches rows whose label `run` is `7b`."""
    return QueryFilter(
        column=column, read=parsing.text_reader(500), lookups=(), schema={"type": "string"}, by_name=True
    )


def _read_integer(name: str, value: str) -> int:
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidField(name, f"{parsing.short_repr(value)} is not a whole number")
    number = int(value[:20])
    return parsing.integer_reader(-(2**31), 2**31 - 1)(name, number)


def _read_boolean(name: str, value: str) -> bool:
    if value.lower() not in BOOLEAN_WORDS:
        raise InvalidField(name, f"{parsing.short_repr(value)} is not true or false")
    return BOOLEAN_WORDS[value.lower()]


def read_datetime(name: str, value: str) -> Any:
    # An unescaped plus sign in a query arrives as a space; before a UTC offset it can only mean a plus
    return parsing.read_timestamp(name, value.replace(" ", "+") if value[-6:-5] == " " else value)
