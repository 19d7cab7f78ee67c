"""Keyset pagination in any indexed order: the rows after a position, and the cursor that names a position.

A position is the sort values of a row, so new rows do not shift the pages. A cursor is opaque but not secret: it is
validated like any other input, and can only name a position among rows that the caller may see anyway.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any

from django.db.models import F, Q, QuerySet

from jobs.core import parsing
from jobs.core.parsing import raise_invalid_field


@dataclass(frozen=True, kw_only=True)
class SortColumn:
    """A column by which rows can be ordered."""

    column: str
    kind: type = str
    nullable: bool = False  # rows without a value come last in both directions


@dataclass(frozen=True, kw_only=True)
class SortKey:
    sort: SortColumn
    descending: bool

    @property
    def opposite_direction(self) -> SortKey:
        return SortKey(sort=self.sort, descending=not self.descending)


SORT_BY_ID = SortColumn(column="id", kind=int)


def sort_keys(table: Mapping[str, SortColumn], names: Sequence[str]) -> list[SortKey]:
    """The sort keys of known names such as `-priority`, ending with the id so that every position is unique."""
    keys = [SortKey(sort=table[name.removeprefix("-")], descending=name.startswith("-")) for name in names]
    if any(key.sort.column == "id" for key in keys):
        return keys
    return [*keys, SortKey(sort=SORT_BY_ID, descending=keys[-1].descending)]


def rows_after(
    rows: QuerySet, keys: Sequence[SortKey], place: Sequence[Any] | None, most: int, backwards: bool = False
) -> list[Any]:
    """Up to `most` rows after the position, or before it if `backwards`; from the start of the order without one.

    Rows without a value come last and take a query of their own: an index serves the rows with a value in either
    direction, but no index serves both kinds of rows in one order.
    """
    if place is not None:
        rows = rows.filter(condition_after(keys, place, backwards))
    order, first = _order_by(keys, backwards), keys[0]
    if not first.sort.nullable:
        return list(rows.order_by(*order)[:most])
    column = first.sort.column
    valued = Q(**{f"{column}__isnull": False})
    if place is not None and place[0] is not None:
        valued &= _index_bound(first, place[0], backwards)
    parts = [(valued, [_index_order(first, backwards), *order[1:]]), (Q(**{f"{column}__isnull": True}), order[1:])]
    fetched: list[Any] = []
    for condition, columns in reversed(parts) if backwards else parts:
        if len(fetched) < most:
            fetched += rows.filter(condition).order_by(*columns)[: most - len(fetched)]
    return fetched


def _index_order(key: SortKey, backwards: bool) -> Any:
    """The order without NULLS FIRST or LAST, which matches the index."""
    return F(key.sort.column).desc() if key.descending != backwards else F(key.sort.column).asc()


def _order_by(keys: Sequence[SortKey], backwards: bool) -> list[Any]:
    return [_order_expression(key.opposite_direction if backwards else key, backwards) for key in keys]


def _order_expression(key: SortKey, backwards: bool) -> Any:
    column = F(key.sort.column)
    nulls: dict[str, Any] = {}
    if key.sort.nullable:
        nulls = {"nulls_first": True} if backwards else {"nulls_last": True}
    return column.desc(**nulls) if key.descending else column.asc(**nulls)


def condition_after(keys: Sequence[SortKey], place: Sequence[Any], backwards: bool) -> Q:
    """The condition of rows after the position, or before it if `backwards`. The first differing key decides."""
    after, same = Q(), Q()
    for key, value in zip(keys, place, strict=True):
        after |= same & _key_after(key, value, backwards)
        same &= Q(**{key.sort.column: value}) if value is not None else Q(**{f"{key.sort.column}__isnull": True})
    return after if keys[0].sort.nullable else after & _index_bound(keys[0], place[0], backwards)


def _key_after(key: SortKey, value: Any, backwards: bool) -> Q:
    column = key.sort.column
    if value is None:  # nulls come last: nothing is after them, and all rows with a value are before them
        return Q(**{f"{column}__isnull": False}) if backwards else Q(pk__in=[])
    sign = "lt" if key.descending != backwards else "gt"
    further = Q(**{f"{column}__{sign}": value})
    return further | Q(**{f"{column}__isnull": True}) if key.sort.nullable and not backwards else further


def _index_bound(key: SortKey, value: Any, backwards: bool) -> Q:
    """A redundant condition that lets PostgreSQL start an index scan at the position; an OR does not."""
    sign = "lte" if key.descending != backwards else "gte"
    return Q(**{f"{key.sort.column}__{sign}": value})


def position(keys: Sequence[SortKey], row: Any) -> list[Any]:
    """The sort values of a row."""
    return [attrgetter(key.sort.column.replace("__", "."))(row) for key in keys]


def encode_cursor(ordering: str, backwards: bool, place: Sequence[Any]) -> str:
    values = [value.isoformat() if isinstance(value, datetime) else value for value in place]
    packed = json.dumps([ordering, backwards, *values], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def decode_cursor(field: str, cursor: str, ordering: str, keys: Sequence[SortKey]) -> tuple[bool, list[Any]]:
    """The direction and the position that a cursor names."""
    try:
        packed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        made_for, backwards, *place = json.loads(packed)
        values = [_parse_cursor_value(field, key.sort, value) for key, value in zip(keys, place, strict=True)]
    except (binascii.Error, ValueError, TypeError, RecursionError):
        raise_invalid_field(field, "is not a valid cursor, or belongs to another ordering")
    if made_for != ordering or not isinstance(backwards, bool):
        raise_invalid_field(field, "belongs to another ordering")
    return backwards, values


def _parse_cursor_value(field: str, sort: SortColumn, value: Any) -> Any:
    if value is None and sort.nullable:
        return None
    if sort.kind is datetime:
        return parsing.read_timestamp(field, value)
    if sort.kind is int:
        return parsing.integer_reader(-(2**63), 2**63 - 1)(field, value)
    if sort.kind is float:
        return _finite_number(value)
    return parsing.text_reader(200)(field, value)


def _finite_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("not a number")
    return float(value)
