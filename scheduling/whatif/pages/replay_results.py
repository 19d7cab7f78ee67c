"""Results of replays (What if): follow one, compare several with the record, download tables and charts."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_safe

from jobs.models import clock
from jobs.web.page import PageQuery, render_page
from scheduling.core.charts import ChartDrawing, draw
from scheduling.core.policy_texts import POLICY_SUMMARIES
from scheduling.models import Simulation, SimulationState
from scheduling.pages.chart_files import chart_file
from scheduling.whatif.comparison.charts import RECORD_STYLE, comparison_charts
from scheduling.whatif.comparison.table import MAX_COMPARED_RUNS, csv_rows, sections
from scheduling.whatif.comparison.verdict import limits, packing_limits, power_limits, verdict
from scheduling.whatif.pages.replays import PAGE_SIZE, request_caller
from scheduling.whatif.reads.simulations import visible_simulations


@dataclass(frozen=True, kw_only=True)
class RunColumn:
    """One run with its simulation, the heading of its column, and the style of its curves."""

    simulation: Simulation
    run: dict[str, Any]
    name: str
    style: int

    @property
    def is_record(self) -> bool:
        return self.style == RECORD_STYLE

    @property
    def summary(self) -> str:
        """One line about the policy."""
        return "" if self.is_record else POLICY_SUMMARIES.get(self.run["policy"], "")


@dataclass(frozen=True, kw_only=True)
class ChartPanel:
    drawing: ChartDrawing
    svg_url: str
    csv_url: str


def run_columns(rows: Sequence[Simulation]) -> list[RunColumn]:
    """Return the records of the simulations, then their runs. A policy that occurs twice is named with its
    simulation."""
    results = [(row, row.result) for row in rows if row.result]
    runs = [(row, run) for row, result in results for run in result["runs"]][:MAX_COMPARED_RUNS]
    records: list[tuple[Simulation, dict[str, Any]]] = []
    for row, result in results:
        # Two replays of the same jobs have the same record
        if (record := result.get("recorded")) and record not in [other for _, other in records]:
            records.append((row, record))
    names = [_run_name(run) for _, run in [*records, *runs]]
    repeated = {name for name in names if names.count(name) > 1}
    styles = [RECORD_STYLE] * len(records) + list(range(1, len(runs) + 1))
    return [
        RunColumn(simulation=row, run=run, name=f"{name} {row.public_id}" if name in repeated else name, style=style)
        for (row, run), name, style in zip([*records, *runs], names, styles, strict=True)
    ]


def _run_name(run: dict[str, Any]) -> str:
    load, budget_kw = run.get("load", 100), (run.get("power") or {}).get("budget_kw")
    named = (f"{load}% load" if load != 100 else "", f"{budget_kw:,g} kW" if budget_kw else "")
    conditions = " and ".join(filter(None, named))
    return run["policy"] + (f" at {conditions}" if conditions else "")


def _results_context(columns: Sequence[RunColumn], of: str, address: PageQuery) -> dict[str, Any]:
    """Return the comparison to the baseline of the address, which is usually the first column."""
    if not columns:
        return {"columns": [], "sections": [], "of": of}
    names, runs = [column.name for column in columns], [column.run for column in columns]
    baseline = names.index(address.choice_value("baseline", names, names[0]))
    has_record = any(column.is_record for column in columns)
    return {
        "columns": columns,
        "baseline": columns[baseline],
        "sections": sections(runs, baseline, names),
        "verdict": verdict(names, runs, baseline),
        "limits": power_limits(runs)
        + packing_limits(runs)
        + limits(
            [column.run.get("load", 100) for column in columns if not column.is_record],
            has_record=has_record,
            has_changed_nodes=any({"nodes", "gpus_per_node"} & set(column.simulation.params) for column in columns),
        ),
        "charts": _chart_panels(columns, of),
        "of": of,
    }


def _chart_panels(columns: Sequence[RunColumn], of: str) -> list[ChartPanel]:
    charts = _charts(columns)
    return [
        ChartPanel(
            drawing=draw(chart),
            svg_url=f"{reverse('replay-chart', args=[key, 'svg'])}?of={of}",
            csv_url=f"{reverse('replay-chart', args=[key, 'csv'])}?of={of}",
        )
        for key, chart in charts.items()
    ]


def _charts(columns: Sequence[RunColumn]) -> dict[str, Any]:
    return dict(
        comparison_charts(
            [column.name for column in columns],
            [column.run for column in columns],
            [column.style for column in columns],
        )
    )


@require_safe
def replay(request: HttpRequest, public_id: str) -> HttpResponse:
    caller, address = request_caller(request), PageQuery(request.GET)
    row = get_object_or_404(visible_simulations(caller).select_related("user", "team"), public_id=public_id)
    others = visible_simulations(caller).filter(state=SimulationState.COMPLETED).exclude(pk=row.pk).defer("result")
    columns = run_columns([row])
    context = {
        "now": clock.now(),
        "row": row,
        "topic": f"simulation:{row.public_id}",
        "is_open": row.is_open,
        "waits_for_worker": row.state == SimulationState.PENDING,
        "may_cancel": row.is_open and caller.may_change(row),
        "parameters": [
            (PARAMETER_TITLES.get(name, name), _parameter_text(value))
            for name, value in row.params.items()
            if name != "teams"
        ],
        "others": cache(lambda: list(others[:PAGE_SIZE])) if len(columns) <= MAX_COMPARED_RUNS else [],
        **_results_context(columns, row.public_id, address),
    }
    fragments = {"replay": "scheduling/_replay.html"}
    return render_page(request, "scheduling/replay.html", context, fragments, wrong=address.wrong)


MAX_LISTED = 30  # entries of a list
PARAMETER_TITLES = {
    "power_budget_kw": "power budget in kW",
    "price_per_kwh": "price of a kWh",
    "sleep": "sleeping nodes",
}


def _parameter_text(value: Any) -> str:
    """Return a parameter of the request as text. Quotas and profiles are lists of objects."""
    if isinstance(value, list):
        if len(value) > MAX_LISTED:
            return f"{len(value):,} rows"
        return ", ".join(_parameter_text(one) for one in value)
    if isinstance(value, dict):
        return " ".join(filter(None, (_parameter_text(part) for part in value.values() if part != "")))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"


def _requested_simulations(request: HttpRequest) -> list[Simulation]:
    """Return the simulations named in the address, in that order. 404 if one does not exist or is not visible."""
    names = list(dict.fromkeys(",".join(request.GET.getlist("of")).replace("\x00", "").split(",")))[:MAX_COMPARED_RUNS]
    rows = {
        row.public_id: row
        for row in visible_simulations(request_caller(request)).filter(public_id__in=names).select_related("team")
    }
    if not names or any(name not in rows for name in names):
        raise Http404("no such simulation")
    return [rows[name] for name in names]


@require_safe
def compare(request: HttpRequest) -> HttpResponse:
    rows, address = _requested_simulations(request), PageQuery(request.GET)
    of = ",".join(row.public_id for row in rows)
    context = {"now": clock.now(), "simulations": rows, **_results_context(run_columns(rows), of, address)}
    return render_page(request, "scheduling/compare.html", context, wrong=address.wrong)


@require_safe
def export(request: HttpRequest, form: str) -> HttpResponse:
    columns = run_columns(_requested_simulations(request))
    if form == "json":
        runs = [{"simulation": c.simulation.public_id, "name": c.name, **c.run} for c in columns]
        response: HttpResponse = JsonResponse({"runs": runs})
    else:
        response = HttpResponse(content_type="text/csv; charset=utf-8")
        tables = sections([column.run for column in columns]) if columns else []
        csv.writer(response).writerows(csv_rows([column.name for column in columns], tables))
    response["Content-Disposition"] = f'attachment; filename="{_file_name(columns)}.{form}"'
    return response


@require_safe
def chart(request: HttpRequest, key: str, form: str) -> HttpResponse:
    """One chart of a comparison as a file."""
    columns = run_columns(_requested_simulations(request))
    if (found := _charts(columns).get(key)) is None:
        raise Http404("no such chart")
    return chart_file(found, f"{_file_name(columns)}-{key}", form)


def _file_name(columns: Sequence[RunColumn]) -> str:
    return "what-if-" + ("-".join(dict.fromkeys(column.simulation.public_id for column in columns)) or "nothing")
