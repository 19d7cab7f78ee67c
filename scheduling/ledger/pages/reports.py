"""Pages of reports: the GPU-hours of a period by use, and allocated GPUs that were idle, by user."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from django.contrib.staticfiles import finders
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_safe

from acmeweb.common.errors import InvalidField
from failures.models import permissions as failure_permissions
from jobs.models import Cluster, clock
from jobs.models.permissions import Caller
from jobs.web.page import PageQuery, bad_request, render_page
from scheduling.ledger.reads import figures as ledger_figures
from scheduling.ledger.reads import gpu_usage
from scheduling.ledger.reads import table as ledger_table
from scheduling.ledger.reads.table import PeriodLedgers, kwh
from scheduling.ledger.rules import report_rows, waste
from scheduling.ledger.rules.buckets import Bucket
from scheduling.ledger.rules.parts import US_PER_HOUR
from scheduling.ledger.rules.report_rows import BUCKET_GROUPS, Period, ReportRow
from scheduling.power.reads.energy import energy_document
from scheduling.power.rules.energy_use import EnergyUse

MAX_USERS_SHOWN = 100
ENERGY_COLUMNS = ("kwh", "estimated_kwh", "host_kwh", "energy_cost", "co2_kg")


@dataclass(frozen=True, kw_only=True)
class LinkChoice:
    name: str
    url: str
    is_enabled: bool


@require_safe
def reports(request: HttpRequest) -> HttpResponse:
    address = PageQuery(request.GET)
    period, by = _requested_period(address)
    context = _report_context(request, period, ledger_table.period_ledgers(period.since, period.until), by) | {
        "now": clock.now(),
        "periods": [
            _period_choice(period, by, {"days": days}, name) for days, name in report_rows.PERIOD_TITLES.items()
        ],
        "months": report_rows.months(clock.now()),
        "views": [
            LinkChoice(name=name, url=_url(period.params, name), is_enabled=name == by)
            for name in ledger_table.GROUPINGS
        ],
        "csv_url": f"{reverse('report-csv')}?{urlencode({**period.params, 'by': by})}",
        "export_url": f"{reverse('report-export')}?{urlencode(period.params)}",
    }
    return render_page(request, "reports/reports.html", context, wrong=address.wrong)


def _requested_period(address: PageQuery) -> tuple[Period, str]:
    by = address.choice_value("by", ledger_table.GROUPINGS, ledger_table.GROUPINGS[0])
    try:
        return report_rows.parse_period(address.text("days"), address.text("month"), clock.now()), by
    except InvalidField as error:
        address.wrong.append(error)
        return report_rows.parse_period("", "", clock.now()), by


def _period_choice(period: Period, by: str, params: Mapping[str, str], name: str) -> LinkChoice:
    return LinkChoice(name=name, url=_url(params, by), is_enabled=period.params == params)


def _url(params: Mapping[str, str], by: str) -> str:
    return f"?{urlencode({**params, 'by': by})}"


def _table(caller: Caller, ledgers: PeriodLedgers, by: str) -> ledger_table.LedgerTable:
    return ledger_table.table_of(ledgers, by, failure_permissions.counted_team_ids(caller))


def _rows(table: ledger_table.LedgerTable, by: str) -> list[ReportRow]:
    """Return the rows of the ledger. The row without a name is split: allocated to other teams, and unallocated."""
    rows = []
    for row in table.rows:
        if row.name or by in ("day", "cluster"):
            rows.append(report_rows.report_row(row.name, row.gpu_us, row.goodput, row.costs, kwh(row.energy.all)))
            continue
        held, unallocated = report_rows.split_held_sizes(row.gpu_us)
        paid, unused = report_rows.split_held_sizes(row.costs)
        if any(held.values()):
            rows.append(report_rows.report_row("other teams", held, row.goodput, paid, kwh(row.energy.held)))
        idle_kwh = kwh(row.energy.unallocated)
        rows.append(report_rows.report_row("unallocated", unallocated, None, unused, idle_kwh))
    return rows


def _report_context(request: HttpRequest, period: Period, ledgers: PeriodLedgers, by: str) -> dict[str, Any]:
    caller = Caller(user=request.user)
    table = _table(caller, ledgers, by)
    users = cache(lambda: waste.waste_per_user(gpu_usage.gpu_uses(caller, period.since, period.until)))
    return {
        "period": period,
        "by": by,
        "groups": BUCKET_GROUPS,
        "table": table,
        "whole": report_rows.report_row("all", table.gpu_us, table.goodput, table.costs, kwh(table.energy)),
        "rows": _rows(table, by),
        "lost": [
            (ledger_table.cause_label(cause), part / US_PER_HOUR, kwh(table.lost_energy.get(cause)))
            for cause, part in table.lost.items()
        ],
        "closed": [(ledger_table.reason_label(reason), part / US_PER_HOUR) for reason, part in table.closed.items()],
        "people": lambda: users()[:MAX_USERS_SHOWN],
        "more_people": lambda: max(0, len(users()) - MAX_USERS_SHOWN),
        "idle_below": waste.IDLE_BELOW,
        "measured_by": gpu_usage.resolution(period.since, period.until).label.lower().replace("_", " "),
        "sees_all": failure_permissions.counted_team_ids(caller) is None,
    }


@require_safe
def usage_bar_fragment(request: HttpRequest) -> HttpResponse:
    """The usage bar of the overview page: the last 24 hours of all clusters, as a loop has computed them. It is the
    same for all users, because it contains no names."""
    day = ledger_figures.last_day(Cluster.objects.values_list("name", flat=True))
    whole = report_rows.report_row("all", day.gpu_us, day.goodput.last_day) if day else None
    return render_page(request, "reports/_bar.html", {"now": clock.now(), "day": day, "whole": whole})


@require_safe
def report_csv(request: HttpRequest) -> HttpResponse:
    """The report as CSV, with one column per bucket, in GPU-hours, and the energy."""
    address = PageQuery(request.GET)
    period, by = _requested_period(address)
    if address.wrong:
        return bad_request(address.wrong)
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="gpu-hours-by-{by}-{_label(period)}.csv"'
    table = _table(Caller(user=request.user), ledger_table.period_ledgers(period.since, period.until), by)
    csv.writer(response).writerows(_csv_rows(table, by))
    return response


def _csv_rows(table: ledger_table.LedgerTable, by: str) -> list[Sequence[Any]]:
    lines: list[Sequence[Any]] = [(by, *(bucket.value for bucket in Bucket), "goodput", "cost", *ENERGY_COLUMNS)]
    for row in table.rows:
        sizes = (round(row.gpu_us.get(bucket, 0) / US_PER_HOUR, 4) for bucket in Bucket)
        cost = report_rows.total_cost(row.costs)
        ratios = ("" if row.goodput is None else round(row.goodput, 4), "" if cost is None else round(cost, 2))
        lines.append((row.name, *sizes, *ratios, *_energy_cells(row.energy.all)))
    return lines


def _energy_cells(use: EnergyUse | None) -> Sequence[Any]:
    document = energy_document(use)
    return [round(cell, 4) if isinstance(cell, float) else cell or "" for cell in map(document.get, ENERGY_COLUMNS)]


@require_safe
def export(request: HttpRequest) -> HttpResponse:
    """The report as one self-contained HTML file, to archive, send or print."""
    address = PageQuery(request.GET)
    period, _ = _requested_period(address)
    if address.wrong:
        return bad_request(address.wrong)
    ledgers, caller = ledger_table.period_ledgers(period.since, period.until), Caller(user=request.user)
    context = _report_context(request, period, ledgers, "team") | {"now": clock.now(), "style": _style_sheet()}
    context["days"] = _rows(_table(caller, ledgers, "day"), "day")
    context["kinds"] = _rows(_table(caller, ledgers, "kind"), "kind")
    response = HttpResponse(render_to_string("reports/export.html", context, request))
    response["Content-Disposition"] = f'attachment; filename="acme-report-{_label(period)}.html"'
    return response


def _label(period: Period) -> str:
    return period.params.get("month") or f"{period.until:%Y-%m-%d}-{period.params['days']}d"


@cache
def _style_sheet() -> str:
    """Return the style sheet of the pages, which is embedded in the exported file."""
    return Path(str(finders.find("app.css"))).read_text()
