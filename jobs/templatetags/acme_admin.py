"""The date drill-down of the admin lists, without a full table scan.

Django's own version queries which years, months and days occur, which reads the whole table on every page. This one
lists all periods since the first row, so it queries only the smallest date.
"""

from __future__ import annotations

from calendar import monthrange
from datetime import date
from typing import Any

from django import template
from django.db.models import Min
from django.utils import timezone
from django.utils.formats import date_format

register = template.Library()


@register.inclusion_tag("admin/date_hierarchy.html")
def calendar(cl: Any) -> dict[str, Any]:
    field = cl.date_hierarchy
    selected = [int(cl.params[name]) for part in ("year", "month", "day") if (name := f"{field}__{part}") in cl.params]
    today = timezone.now().date()

    def date_link(*parts: int) -> str:
        named_parts = zip(("year", "month", "day"), parts, strict=False)
        return cl.get_query_string({f"{field}__{name}": part for name, part in named_parts}, [f"{field}__"])

    if not selected:
        years = range(_first_year(cl, today), today.year + 1)
        return _choices_context(None, [{"link": date_link(year), "title": str(year)} for year in years])
    back = {"link": date_link(*selected[:-1]), "title": _period_title(*selected[:-1])}
    if len(selected) == 3:
        return _choices_context(back, [{"title": _period_title(*selected)}])
    return _choices_context(
        back, [{"link": date_link(*parts), "title": _period_title(*parts)} for parts in _sub_periods(selected, today)]
    )


def _first_year(cl: Any, today: date) -> int:
    first = cl.root_queryset.order_by().aggregate(first=Min(cl.date_hierarchy))["first"]
    return first.year if first else today.year


def _sub_periods(selected: list[int], today: date) -> list[tuple[int, ...]]:
    """The months of a year or the days of a month, without future ones."""
    last = 12 if len(selected) == 1 else monthrange(*selected)[1]
    periods = [(*selected, number) for number in range(1, last + 1)]
    return [period for period in periods if period <= (today.year, today.month, today.day)]


def _period_title(*parts: int) -> str:
    if len(parts) < 2:
        return str(*parts) or "All dates"
    whole = date(*parts, 1) if len(parts) == 2 else date(*parts)
    return date_format(whole, "YEAR_MONTH_FORMAT" if len(parts) == 2 else "MONTH_DAY_FORMAT")


def _choices_context(back: dict[str, str] | None, choices: list[dict[str, str]]) -> dict[str, Any]:
    return {"show": True, "back": back, "choices": choices}
