"""Keyset pagination: the cursor holds the sort values of the last row, so new rows do not shift the pages.

Rows are not counted. A cursor is opaque but not secret: it is validated like any other input, and can only name a
position among rows that the caller may see anyway.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any
from urllib.parse import urlencode

from django.db.models import F, Q, QuerySet

from jobs.core import parsing
from jobs.rest.errors import InvalidRequestField

DEFAULT_LIMIT = 50
MAX_LIMIT = 1000


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


@dataclass(frozen=True, kw_only=True)
class ResultPage:
    rows: list[Any]
    next: str | None
    previous: str | None


SORT_BY_ID = SortColumn(column="id", kind=int)


def paginate(
    rows: QuerySet, table: Mapping[str, SortColumn], default: str, query: Mapping[str, Sequence[str]]
) -> ResultPage:
    """One page of the rows; `next` and `previous` are query strings."""
    limit = _limit(query)
    requested = _single_param(query, "ordering")
    ordering = default if requested is None else requested
    keys = _sort_keys(table, ordering)
    cursor = _single_param(query, "cursor")
    backwards, place = _decode(cursor, ordering, keys) if cursor else (False, None)
    if place is not None:
        rows = rows.filter(_after_cursor(keys, place, backwards))
    fetched = _fetch_rows(rows, keys, place, backwards, limit + 1)
    more, page = len(fetched) > limit, fetched[:limit]
    if backwards:
        page.reverse()
    has_next, has_previous = (True, more) if backwards else (more, place is not None)
    return ResultPage(
        rows=page,
        next=_page_query(query, ordering, keys, page[-1], False) if has_next and page else None,
        previous=_page_query(query, ordering, keys, page[0], True) if has_previous and page else None,
    )


def _fetch_rows(
    rows: QuerySet, keys: Sequence[SortKey], place: Sequence[Any] | None, backwards: bool, most: int
) -> list[Any]:
    """Up to `most` rows after the cursor.

    Rows without a value come last and take a query of their own: an index serves the rows with a value in either
    direction, but no index serves both kinds of rows in one order.
    """
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


def _single_param(query: Mapping[str, Sequence[str]], name: str) -> str | None:
    values = query.get(name, ())
    if len(values) > 1:
        raise InvalidRequestField(name, "is given more than once")
    return values[0] if values else None


def _limit(query: Mapping[str, Sequence[str]]) -> int:
    text = _single_param(query, "limit")
    if text is None:
        return DEFAULT_LIMIT
    # Checks the length first, so that int() never parses thousands of digits
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= MAX_LIMIT):
        raise InvalidRequestField("limit", f"{parsing.short_repr(text)} is not a number between 1 and {MAX_LIMIT}")
    return int(text)


def _sort_keys(table: Mapping[str, SortColumn], ordering: str) -> list[SortKey]:
    """The sort keys of `ordering`, ending with the id so that every position is unique."""
    names = [name.strip() for name in ordering.split(",")]
    for name in names:
        if name.removeprefix("-") not in table:
            raise InvalidRequestField("ordering", f"{parsing.short_repr(name)} is not one of {', '.join(table)}")
    if len({name.removeprefix("-") for name in names}) < len(names):
        raise InvalidRequestField("ordering", "names the same field twice")
    keys = [SortKey(sort=table[name.removeprefix("-")], descending=name.startswith("-")) for name in names]
    if any(key.sort.column == "id" for key in keys):
        return keys
    return [*keys, SortKey(sort=SORT_BY_ID, descending=keys[-1].descending)]


def _order_by(keys: Sequence[SortKey], backwards: bool) -> list[Any]:
    return [_order_expression(key.opposite_direction if backwards else key, backwards) for key in keys]


def _order_expression(key: SortKey, backwards: bool) -> Any:
    column = F(key.sort.column)
    nulls: dict[str, Any] = {}
    if key.sort.nullable:
        nulls = {"nulls_first": True} if backwards else {"nulls_last": True}
    return column.desc(**nulls) if key.descending else column.asc(**nulls)


def _after_cursor(keys: Sequence[SortKey], place: Sequence[Any], backwards: bool) -> Q:
    """Rows after the cursor's position, or before it if `backwards`. The first differing key decides."""
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


def _page_query(
    query: Mapping[str, Sequence[str]], ordering: str, keys: Sequence[SortKey], row: Any, backwards: bool
) -> str:
    place = [_cursor_value(attrgetter(key.sort.column.replace("__", "."))(row)) for key in keys]
    packed = json.dumps([ordering, backwards, *place], separators=(",", ":")).encode()
    cursor = base64.urlsafe_b64encode(packed).decode().rstrip("=")
    return urlencode({**query, "cursor": cursor}, doseq=True)


def _cursor_value(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _decode(cursor: str, ordering: str, keys: Sequence[SortKey]) -> tuple[bool, list[Any]]:
    try:
        packed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        made_for, backwards, *place = json.loads(packed)
        values = [_parse_cursor_value(key.sort, value) for key, value in zip(keys, place, strict=True)]
    except (binascii.Error, ValueError, TypeError, RecursionError):
        raise InvalidRequestField("cursor", "is not a valid cursor, or belongs to another ordering") from None
    if made_for != ordering or not isinstance(backwards, bool):
        raise InvalidRequestField("cursor", "belongs to another ordering")
    return backwards, values


def _parse_cursor_value(sort: SortColumn, value: Any) -> Any:
    if value is None and sort.nullable:
        return None
    if sort.kind is datetime:
        return parsing.read_timestamp("cursor", value)
    if sort.kind is int:
        return parsing.integer_reader(-(2**63), 2**63 - 1)("cursor", value)
    return parsing.text_reader(200)("cursor", value)
