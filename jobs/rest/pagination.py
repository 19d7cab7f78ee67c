"""Pages of API lists: reads limit, ordering and cursor from the query. Rows are not counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.db.models import QuerySet

from acmeweb.common.errors import InvalidField
from jobs.core import parsing
from jobs.queries import keyset
from jobs.queries.keyset import SortColumn, SortKey

DEFAULT_LIMIT = 50
MAX_LIMIT = 1000


@dataclass(frozen=True, kw_only=True)
class ResultPage:
    rows: list[Any]
    next: str | None
    previous: str | None


def paginate(
    rows: QuerySet, table: Mapping[str, SortColumn], default: str, query: Mapping[str, Sequence[str]]
) -> ResultPage:
    """One page of the rows; `next` and `previous` are query strings."""
    limit = _limit(query)
    requested = _single_param(query, "ordering")
    ordering = default if requested is None else requested
    keys = _sort_keys(table, ordering)
    cursor = _single_param(query, "cursor")
    backwards, place = keyset.decode_cursor("cursor", cursor, ordering, keys) if cursor else (False, None)
    fetched = keyset.rows_after(rows, keys, place, limit + 1, backwards)
    more, page = len(fetched) > limit, fetched[:limit]
    if backwards:
        page.reverse()
    has_next, has_previous = (True, more) if backwards else (more, place is not None)
    return ResultPage(
        rows=page,
        next=_page_query(query, ordering, keys, page[-1], False) if has_next and page else None,
        previous=_page_query(query, ordering, keys, page[0], True) if has_previous and page else None,
    )


def _single_param(query: Mapping[str, Sequence[str]], name: str) -> str | None:
    values = query.get(name, ())
    if len(values) > 1:
        raise InvalidField(name, "is given more than once")
    return values[0] if values else None


def _limit(query: Mapping[str, Sequence[str]]) -> int:
    text = _single_param(query, "limit")
    if text is None:
        return DEFAULT_LIMIT
    # Checks the length first, so that int() never parses thousands of digits
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= MAX_LIMIT):
        raise InvalidField("limit", f"{parsing.short_repr(text)} is not a number between 1 and {MAX_LIMIT}")
    return int(text)


def _sort_keys(table: Mapping[str, SortColumn], ordering: str) -> list[SortKey]:
    """The sort keys of `ordering`, ending with the id so that every position is unique."""
    names = [name.strip() for name in ordering.split(",")]
    for name in names:
        if name.removeprefix("-") not in table:
            raise InvalidField("ordering", f"{parsing.short_repr(name)} is not one of {', '.join(table)}")
    if len({name.removeprefix("-") for name in names}) < len(names):
        raise InvalidField("ordering", "names the same field twice")
    return keyset.sort_keys(table, names)


def _page_query(
    query: Mapping[str, Sequence[str]], ordering: str, keys: Sequence[SortKey], row: Any, backwards: bool
) -> str:
    cursor = keyset.encode_cursor(ordering, backwards, keyset.position(keys, row))
    return urlencode({**query, "cursor": cursor}, doseq=True)
