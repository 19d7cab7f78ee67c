"""The pages of reports: where the GPU-hours of a period went, and whose GPUs were held and not used."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from django.contrib.staticfiles import finders
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_safe

from failures import rights
from jobs import clock
from jobs.pages import Address, answer, refused
from jobs.readers import BadSpec
from jobs.rights import Caller
from scheduling import accounting, ledger_table, reporting, usage, waste
from scheduling.ledger import Bucket
from scheduling.reporting import GROUPS, Period, Row

MOST_PEOPLE = 100


@dataclass(frozen=True, kw_only=True)
class Choice:
    name: str
    url: str
    is_on: bool


@require_safe
def reports(request: HttpRequest) -> HttpResponse:
    address = Address(request.GET)
    period, by = _asked(address)
    context = _report(request, period, by) | {
        "now": clock.now(),
        "periods": [_choice(period, by, {"days": days}, name) for days, name in reporting.DAYS.items()],
        "months": reporting.months(clock.now()),
        "views": [Choice(name=one, url=_url(period.asked, one), is_on=one == by) for one in ledger_table.BY],
        "csv_url": f"{reverse('report-csv')}?{urlencode({**period.asked, 'by': by})}",
        "export_url": f"{reverse('report-export')}?{urlencode(period.asked)}",
    }
    return answer(request, "reports/reports.html", context, wrong=address.wrong)


def _asked(address: Address) -> tuple[Period, str]:
    by = address.one_of("by", ledger_table.BY, ledger_table.BY[0])
    try:
        return reporting.period(address.text("days"), address.text("month"), clock.now()), by
    except BadSpec as bad:
        address.wrong.append(bad)
        return reporting.period("", "", clock.now()), by


def _choice(period: Period, by: str, asked: Mapping[str, str], name: str) -> Choice:
    return Choice(name=name, url=_url(asked, by), is_on=period.asked == asked)


def _url(asked: Mapping[str, str], by: str) -> str:
    return f"?{urlencode({**asked, 'by': by})}"


def _table(caller: Caller, period: Period, by: str) -> ledger_table.Table:
    return ledger_table.table(by, period.since, period.until, rights.teams_counted(caller))


def _rows(found: ledger_table.Table, by: str) -> list[Row]:
    """As the ledger has them; of those without a name, what others held apart from what nobody did."""
    rows = []
    for one in found.rows:
        if one.name or by in ("day", "cluster"):
            rows.append(reporting.row(one.name, one.gpu_us, one.goodput, one.costs))
            continue
        held, nobodys = reporting.of_nobody(one.gpu_us)
        paid, unused = reporting.of_nobody(one.costs)
        rows += [reporting.row("other teams", held, one.goodput, paid)] if any(held.values()) else []
        rows += [reporting.row("nobody", nobodys, None, unused)]
    return rows


def _report(request: HttpRequest, period: Period, by: str) -> dict[str, Any]:
    caller = Caller(user=request.user)
    found = _table(caller, period, by)
    used = cache(lambda: waste.per_user(usage.uses(caller, period.since, period.until)))
    return {
        "period": period,
        "by": by,
        "groups": GROUPS,
        "table": found,
        "whole": reporting.row("all", found.gpu_us, found.goodput, found.costs),
        "rows": _rows(found, by),
        "lost": [(ledger_table.spoken(cause), part / accounting.US_PER_HOUR) for cause, part in found.lost.items()],
        "people": lambda: used()[:MOST_PEOPLE],
        "more_people": lambda: max(0, len(used()) - MOST_PEOPLE),
        "idle_below": waste.IDLE_BELOW,
        "measured_by": usage.resolution(period.since, period.until).label.lower().replace("_", " "),
        "sees_all": rights.teams_counted(caller) is None,
    }


@require_safe
def bar(request: HttpRequest) -> HttpResponse:
    """The last day of all clusters in one bar, for the first page, which asks for it after it is shown. It names
    nobody, so it is the same for everyone."""
    return answer(request, "reports/_bar.html", {"whole": _day(clock.now().replace(second=0, microsecond=0))})


@lru_cache(maxsize=1)
def _day(now: datetime) -> Row:
    """Once a minute at most in each process, however many look."""
    found = ledger_table.table("cluster", now - timedelta(days=1), now)
    return reporting.row("all", found.gpu_us, found.goodput)


@require_safe
def as_csv(request: HttpRequest) -> HttpResponse:
    """Every bucket for itself, in GPU-hours."""
    address = Address(request.GET)
    period, by = _asked(address)
    if address.wrong:
        return refused(address.wrong)
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="gpu-hours-by-{by}-{_label(period)}.csv"'
    csv.writer(response).writerows(_lines(_table(Caller(user=request.user), period, by), by))
    return response


def _lines(found: ledger_table.Table, by: str) -> list[Sequence[Any]]:
    lines: list[Sequence[Any]] = [(by, *(bucket.value for bucket in Bucket), "goodput", "cost")]
    for row in found.rows:
        sizes = (round(row.gpu_us.get(bucket, 0) / accounting.US_PER_HOUR, 4) for bucket in Bucket)
        cost = reporting.whole(row.costs)
        rest = ("" if row.goodput is None else round(row.goodput, 4), "" if cost is None else round(cost, 2))
        lines.append((row.name, *sizes, *rest))
    return lines


@require_safe
def export(request: HttpRequest) -> HttpResponse:
    """One file that needs nothing else: to be kept, sent, or printed to PDF."""
    address = Address(request.GET)
    period, _ = _asked(address)
    if address.wrong:
        return refused(address.wrong)
    context = _report(request, period, "team") | {"now": clock.now(), "style": _style()}
    by_day = _table(Caller(user=request.user), period, "day")
    context["days"] = _rows(by_day, "day")
    context["kinds"] = _rows(_table(Caller(user=request.user), period, "kind"), "kind")
    response = HttpResponse(render_to_string("reports/export.html", context, request))
    response["Content-Disposition"] = f'attachment; filename="acme-report-{_label(period)}.html"'
    return response


def _label(period: Period) -> str:
    return period.asked.get("month") or f"{period.until:%Y-%m-%d}-{period.asked['days']}d"


@cache
def _style() -> str:
    """The style sheet of the pages, which the file carries in itself."""
    return Path(str(finders.find("app.css"))).read_text()
