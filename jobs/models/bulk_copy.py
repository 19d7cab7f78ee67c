"""Many new rows by COPY: an INSERT of thousands of rows spends most of its time as text on the way to the database."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

from django.db import connection, connections, models
from django.db.models.expressions import DatabaseDefault

# psycopg writes the values of these fields as the ORM would have prepared them
PASSTHROUGH_FIELDS = (
    models.BooleanField,
    models.CharField,
    models.DateTimeField,
    models.DurationField,
    models.ForeignKey,
    models.GenericIPAddressField,
    models.IntegerField,
    models.TextField,
)


def insert(rows: Sequence[models.Model]) -> None:
    """Rows of one model, none of them saved yet; afterwards each has its key, as after `bulk_create`.

    Either all bring a key of the model's sequence or none does. What the database is to fill in (a default of its own)
    must be the same columns in all rows.
    """
    if not rows:
        return
    meta: Any = type(rows[0])._meta
    if rows[0].pk is None:
        for row, key in zip(rows, _reserve_keys(meta, len(rows)), strict=True):
            row.pk = key
    left = frozenset(
        name for name in _fields_with_database_default(meta) if isinstance(rows[0].__dict__[name], DatabaseDefault)
    )
    into, plain, prepared = _copy_plan(meta, left)
    here = connections[connection.alias]  # the connection itself: the proxy costs more than most values
    with here.wrap_database_errors, here.cursor() as cursor, cursor.copy(into) as copy:
        for row in rows:
            values = list(map(row.__dict__.__getitem__, plain))
            for place, prepare in prepared:
                values[place] = prepare(values[place], here)
            copy.write_row(values)
    for row in rows:
        row._state.adding, row._state.db = False, here.alias


@cache
def _fields_with_database_default(meta: Any) -> tuple[str, ...]:
    """What the database may fill in."""
    return tuple(field.attname for field in meta.concrete_fields if field.has_db_default())


ValueConverter = Callable[[Any, Any], Any]  # of a value, for a connection
CopyPlan = tuple[str, list[str], list[tuple[int, ValueConverter]]]


@cache
def _copy_plan(meta: Any, left: frozenset[str]) -> CopyPlan:
    """The statement, the attributes in its order, and what those need of which psycopg does not know enough."""
    columns = [field for field in meta.concrete_fields if field.attname not in left]
    quote = connection.ops.quote_name
    names = ", ".join(quote(str(field.column)) for field in columns)
    prepared = [
        (place, _value_converter(field))
        for place, field in enumerate(columns)
        if not isinstance(field, PASSTHROUGH_FIELDS)
    ]
    into = f"COPY {quote(meta.db_table)} ({names}) FROM STDIN"
    return into, [field.attname for field in columns], prepared


def _value_converter(field: Any) -> ValueConverter:
    if isinstance(field, models.JSONField):
        # As text: wrapped for the statement's sake, as the ORM does, it costs twice as much
        return lambda value, _: None if value is None else json.dumps(value, cls=field.encoder)
    return cast(ValueConverter, field.get_db_prep_save)


def _reserve_keys(meta: Any, count: int) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT nextval(pg_get_serial_sequence(%s, %s)) FROM generate_series(1, %s)",
            [connection.ops.quote_name(meta.db_table), meta.pk.column, count],
        )
        return [key for (key,) in cursor.fetchall()]
