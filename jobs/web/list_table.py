"""Tables of which the user chooses the columns and the order.

The order is in the URL (`?sort=-column`). The columns are in a cookie of the user, so that no row is written when a
page is read, and the form that sets it works without JavaScript.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_POST

from jobs.web.page import PageQuery

COOKIE_AGE_S = 365 * 86400
MAX_QUERY_LENGTH = 2000


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """A column of a list. Its name is the value in `sort=` and in the cookie."""

    name: str
    label: str
    css: str
    title: str = ""
    term: str = ""  # its term in the glossary
    sortable: bool = False
    descending_first: bool = False  # whether the first click sorts the largest values to the top
    is_fixed: bool = False  # always shown
    is_default: bool = True


def largest_first(name: str, label: str, css: str, **other: Any) -> TableColumn:
    """A column that can be sorted, and whose first click sorts the largest values to the top."""
    return TableColumn(name=name, label=label, css=css, sortable=True, descending_first=True, **other)


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """The columns of one list. `page` is the URL name of the page that shows it."""

    name: str
    page: str
    columns: tuple[TableColumn, ...]
    default_sort: str

    @property
    def sorts(self) -> list[str]:
        """The values that `sort` may have."""
        return [sign + column.name for column in self.columns if column.sortable for sign in ("", "-")]

    @property
    def choosable(self) -> list[TableColumn]:
        return [column for column in self.columns if not column.is_fixed]

    @property
    def default_columns(self) -> frozenset[str]:
        return frozenset(column.name for column in self.choosable if column.is_default)


@dataclass(frozen=True, kw_only=True)
class HeaderCell:
    """The heading of a shown column; `url` sorts by it and is empty if the column cannot be sorted."""

    column: TableColumn
    url: str = ""
    aria_sort: str = ""
    arrow: str = ""


@dataclass(frozen=True, kw_only=True)
class ColumnChoice:
    name: str
    label: str
    is_shown: bool


@dataclass(frozen=True, kw_only=True)
class ListTable:
    """A list as one user sees it: its order and its columns. `params` are the other URL parameters of the page."""

    spec: TableSpec
    sort: str
    shown_columns: frozenset[str]
    params: Mapping[str, str]

    @cached_property
    def shows(self) -> dict[str, bool]:
        return {column.name: column.is_fixed or column.name in self.shown_columns for column in self.spec.columns}

    @cached_property
    def hides(self) -> dict[str, bool]:
        """The opposite of `shows`: templates that are also used without a table show every column."""
        return {name: not shown for name, shown in self.shows.items()}

    @property
    def headers(self) -> list[HeaderCell]:
        return [self._header(column) for column in self.spec.columns if self.shows[column.name]]

    @property
    def sort_links(self) -> list[HeaderCell]:
        """The orders as links, for narrow screens, where the headings are hidden."""
        return [self._header(column) for column in self.spec.columns if column.sortable]

    @property
    def choices(self) -> list[ColumnChoice]:
        return [
            ColumnChoice(name=column.name, label=column.label, is_shown=column.name in self.shown_columns)
            for column in self.spec.choosable
        ]

    @property
    def query(self) -> str:
        """The URL parameters of the page, to which the form of the columns returns."""
        return urlencode({**self.params, **self.sort_param})

    @property
    def sort_param(self) -> dict[str, str]:
        return {} if self.sort == self.spec.default_sort else {"sort": self.sort}

    def _header(self, column: TableColumn) -> HeaderCell:
        if not column.sortable:
            return HeaderCell(column=column)
        current, descends = self.sort.removeprefix("-") == column.name, self.sort.startswith("-")
        next_descends = not descends if current else column.descending_first
        target = f"-{column.name}" if next_descends else column.name
        return HeaderCell(
            column=column,
            url=f"?{urlencode({**self.params, 'sort': target})}",
            aria_sort=("descending" if descends else "ascending") if current else "",
            arrow=("▼" if descends else "▲") if current else "",
        )


def read_table(request: HttpRequest, address: PageQuery, spec: TableSpec, params: Mapping[str, str]) -> ListTable:
    """Read the order from the URL and the columns from the cookie."""
    sort = address.choice_value("sort", spec.sorts, spec.default_sort)
    return ListTable(spec=spec, sort=sort, shown_columns=_columns_from_cookie(request, spec), params=params)


def _cookie_name(request: HttpRequest, spec: TableSpec) -> str:
    return f"columns_{spec.name}_{request.user.pk}"


def _columns_from_cookie(request: HttpRequest, spec: TableSpec) -> frozenset[str]:
    """The names in the cookie that are columns. The default without a cookie, or if it names none."""
    names = set(request.COOKIES.get(_cookie_name(request, spec), "").split("."))
    return frozenset(names & {column.name for column in spec.choosable}) or spec.default_columns


@require_POST
def choose_columns(request: HttpRequest, spec: TableSpec) -> HttpResponse:
    """Keep the chosen columns in the user's cookie, and return to the list."""
    names: Sequence[str] = request.POST.getlist("column")
    # Parsed and written again, so that no control character gets into the header
    query = QueryDict(request.POST.get("query", "")[:MAX_QUERY_LENGTH]).urlencode()
    response = redirect(reverse(spec.page) + (f"?{query}" if query else ""))
    chosen = [column.name for column in spec.choosable if column.name in names]
    if chosen and "reset" not in request.POST:
        response.set_cookie(
            _cookie_name(request, spec),
            ".".join(chosen),
            max_age=COOKIE_AGE_S,
            secure=bool(settings.SESSION_COOKIE_SECURE),
            httponly=True,
            samesite="Lax",
        )
    else:
        response.delete_cookie(_cookie_name(request, spec))
    return response
