"""Inserts many rows with COPY. Thousands of rows in an INSERT spend most of their time as SQL text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar, cast

from django.db import connection, connections, models
from django.db.models.base import ModelState
from django.db.models.expressions import DatabaseDefault

M = TypeVar("M", bound=models.Model)
# psycopg writes the values of these fields in the same way as the ORM
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
    """Insert unsaved rows of one model. Afterwards each row has its key, as after `bulk_create`.

    Either all rows already have a key of the model's sequence, or none. Columns that the database fills with a default
    of its own must be the same in all rows.
    """
    if not rows:
        return
    meta: Any = type(rows[0])._meta
    # COPY does not return generated keys, so they are reserved first
    if rows[0].pk is None:
        for row, key in zip(rows, _reserve_keys(meta, len(rows)), strict=True):
            row.pk = key
    omitted = frozenset(
        name for name in _fields_with_database_default(meta) if isinstance(rows[0].__dict__[name], DatabaseDefault)
    )
    columns, plain, prepared = _copy_plan(meta, omitted)
    raw_connection = connections[connection.alias]  # not the proxy, whose attribute lookup costs more than most values
    with copy_into(meta.db_table, columns) as copy:
        for row in rows:
            values = list(map(row.__dict__.__getitem__, plain))
            for position, prepare in prepared:
                values[position] = prepare(values[position], raw_connection)
            copy.write_row(values)
    for row in rows:
        # As after save(), so that a later save() of the instance is an UPDATE
        row._state.adding, row._state.db = False, raw_connection.alias


def insert_values(model: type[models.Model], columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Insert rows of plain values, which have these columns. The others get the default of the database.

    For values that need no conversion. Making instances of the model takes several times as long.
    """
    with copy_into(model._meta.db_table, columns) as copy:
        for row in rows:
            copy.write_row(row)


def row_like(template: M, **columns: Any) -> M:
    """Return an unsaved row with these values, by their attributes, and otherwise those of the template.

    Calling the model takes ten times as long, because it looks at each field. Mutable values are those of the template.
    """
    row: M = object.__new__(type(template))
    row.__dict__.update(template.__dict__, **columns, _state=ModelState())
    return row


@contextmanager
def copy_into(table: str, columns: Iterable[str], options: str = "") -> Iterator[Any]:
    """Yield psycopg's writer of a COPY into these columns of a table."""
    quote, raw = connection.ops.quote_name, connections[connection.alias]
    statement = f"COPY {quote(table)} ({', '.join(map(quote, columns))}) FROM STDIN {options}"
    with raw.wrap_database_errors, raw.cursor() as cursor, cursor.copy(statement) as copy:
        yield copy


@cache
def _fields_with_database_default(meta: Any) -> tuple[str, ...]:
    """Return the attributes of columns that have a database default."""
    return tuple(field.attname for field in meta.concrete_fields if field.has_db_default())


ValueConverter = Callable[[Any, Any], Any]  # (value, connection) -> value for psycopg
CopyPlan = tuple[list[str], list[str], list[tuple[int, ValueConverter]]]


@cache
def _copy_plan(meta: Any, omitted: frozenset[str]) -> CopyPlan:
    """Return the columns, the attributes in their order, and converters for values that psycopg cannot write
    itself."""
    fields = [field for field in meta.concrete_fields if field.attname not in omitted]
    converters = [
        (position, _value_converter(field))
        for position, field in enumerate(fields)
        if not isinstance(field, PASSTHROUGH_FIELDS)
    ]
    return [str(field.column) for field in fields], [field.attname for field in fields], converters


def _value_converter(field: Any) -> ValueConverter:
    if isinstance(field, models.JSONField):
        # As text: the wrapper object that the ORM uses takes twice as long
        return lambda value, _: None if value is None else json.dumps(value, cls=field.encoder)
    return cast(ValueConverter, field.get_db_prep_save)


def _reserve_keys(meta: Any, count: int) -> list[int]:
    """Return new values of the model's sequence."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT nextval(pg_get_serial_sequence(%s, %s)) FROM generate_series(1, %s)",
            [connection.ops.quote_name(meta.db_table), meta.pk.column, count],
        )
        return [key for (key,) in cursor.fetchall()]
