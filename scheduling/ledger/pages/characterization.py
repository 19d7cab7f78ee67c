"""The page Characterization: a period of the own history, next to the published figures of the Acme study.

Like the report, it counts the jobs of all teams without names. Causes of failures are those of the viewer's teams.
Their MTTF needs the ledger, which takes seconds, so it comes with a fragment after the page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_safe

from acmeweb.common.errors import InvalidField
from failures.models import permissions as failure_permissions
from jobs.core.lifecycle import JobKind
from jobs.models import Cluster, clock
from jobs.models.permissions import Caller
from jobs.web.page import PageQuery, bad_request, read_cluster_name, render_page
from scheduling.core.charts import ChartDrawing, draw
from scheduling.core.number_texts import duration_text
from scheduling.ledger.reads import characterization as queries
from scheduling.ledger.rules import characterization as study
from scheduling.ledger.rules import report_rows
from scheduling.ledger.rules.characterization import StudyPlot
from scheduling.ledger.rules.report_rows import Period
from scheduling.pages.chart_files import CHART_FORMS, chart_file
from scheduling.whatif.replay.acme_study import study_figures

DEFAULT_DAYS = "30"
JOB_PLOTS = ("run-time", "queue-wait", "gpus", "gpu-time-by-kind", "gpu-time-by-state")
PLOTS = (*JOB_PLOTS, "utilization", "failures")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What the address selects. None: all clusters, all kinds."""

    period: Period
    cluster: Cluster | None
    kind: JobKind | None

    @property
    def params(self) -> dict[str, str]:
        chosen = {"cluster": self.cluster.name if self.cluster else "", "kind": str(self.kind or "")}
        return {**self.period.params, **{name: value for name, value in chosen.items() if value}}

    def url(self, **changes: str) -> str:
        return f"{reverse('characterization')}?{urlencode({**self.params, **changes})}"


@dataclass(frozen=True, kw_only=True)
class PlotPanel:
    plot: StudyPlot
    drawing: ChartDrawing
    svg_url: str
    csv_url: str


@require_safe
def characterization(request: HttpRequest) -> HttpResponse:
    address, now = PageQuery(request.GET), clock.now()
    selection = _selection(address, now)
    form = address.choice_value("export", CHART_FORMS, CHART_FORMS[0])
    key = address.choice_value("plot", PLOTS, PLOTS[0])
    caller = Caller(user=request.user)
    if "export" in request.GET:
        if address.wrong:
            return bad_request(address.wrong)
        return chart_file(_plot(key, selection, caller).chart, f"{key}-{_period_name(selection.period)}", form)
    with_mttf = key == "failures"
    counts = queries.job_counts(selection.cluster, selection.period.since, selection.period.until)
    plots = [*_job_plots(counts, selection.kind).values(), _utilization_plot(selection)]
    context = {
        "now": now,
        "selection": selection,
        "period": selection.period,
        "periods": [
            (name, _with_period(selection, {"days": days}), selection.period.params == {"days": days})
            for days, name in report_rows.PERIOD_TITLES.items()
        ],
        "months": report_rows.months(now),
        "clusters": list(Cluster.objects.order_by("name")),
        "kinds": list(JobKind),
        "counts": counts,
        "panels": [_panel(plot, selection) for plot in plots],
        "failures_url": selection.url(plot="failures"),
        "failures": lambda: _panel(_failures_plot(selection, caller, with_mttf=with_mttf), selection),
        "awaits_mttf": not with_mttf,
        "sees_all": failure_permissions.counted_team_ids(caller) is None,
    }
    fragments = {"failures-plot": "reports/_failures_plot.html"}
    return render_page(request, "reports/characterization.html", context, fragments, wrong=address.wrong)


def _selection(address: PageQuery, now: datetime) -> Selection:
    name = address.read("cluster", read_cluster_name)
    kind = address.choice_value("kind", list(JobKind))
    return Selection(
        period=_period(address, now),
        cluster=Cluster.objects.filter(name=name).first() if name else None,
        kind=JobKind(kind) if kind else None,
    )


def _period(address: PageQuery, now: datetime) -> Period:
    try:
        days = address.text("days") or DEFAULT_DAYS
        return report_rows.parse_period(days, address.text("month"), now)
    except InvalidField as error:
        address.wrong.append(error)
        return report_rows.parse_period(DEFAULT_DAYS, "", now)


def _with_period(selection: Selection, period: dict[str, str]) -> str:
    others = {name: value for name, value in selection.params.items() if name not in ("days", "month")}
    return f"?{urlencode({**period, **others})}"


def _period_name(period: Period) -> str:
    return period.params.get("month") or f"{period.until:%Y-%m-%d}-{period.params['days']}d"


def _panel(plot: StudyPlot, selection: Selection) -> PlotPanel:
    return PlotPanel(
        plot=plot,
        drawing=draw(plot.chart),
        svg_url=selection.url(plot=plot.key, export="svg"),
        csv_url=selection.url(plot=plot.key, export="csv"),
    )


# --- plots


def _plot(key: str, selection: Selection, caller: Caller) -> StudyPlot:
    """Return one plot, with the queries of this plot only."""
    others: dict[str, Callable[[], StudyPlot]] = {
        "utilization": lambda: _utilization_plot(selection),
        "failures": lambda: _failures_plot(selection, caller, with_mttf=False),
    }
    if key in others:
        return others[key]()
    counts = queries.job_counts(selection.cluster, selection.period.since, selection.period.until)
    return _job_plots(counts, selection.kind)[key]


def _job_plots(counts: queries.JobCounts, kind: JobKind | None) -> dict[str, StudyPlot]:
    """Return the plots of jobs. Those that compare kinds contain all kinds, whichever is selected."""
    of_kind = [cell for cell in counts.cells if kind is None or cell.kind == kind]
    published, all_kinds = study_figures(kind), study_figures(None)
    plots: list[Any] = [
        study.run_time_plot(of_kind, published),
        study.queue_wait_plot(of_kind, published),
        study.gpus_plot(counts.cells, all_kinds),
        study.kinds_plot(counts.cells, all_kinds),
        study.states_plot(counts.cells, all_kinds),
    ]
    return {plot.key: plot for plot in plots}


def _utilization_plot(selection: Selection) -> StudyPlot:
    found = queries.utilization_counts(selection.cluster, selection.period.since, selection.period.until)
    interval = duration_text(found.resolution)
    interval = interval if found.nth == 1 else f"{interval}, one in {found.nth} intervals"
    return study.utilization_plot(found.counts, study_figures(None), interval)


def _failures_plot(selection: Selection, caller: Caller, *, with_mttf: bool) -> StudyPlot:
    teams = failure_permissions.counted_team_ids(caller)
    since, until = selection.period.since, selection.period.until
    causes = queries.cause_figures(selection.cluster, since, until, teams, with_mttf=with_mttf)
    return study.failures_plot(causes, "–" if with_mttf else "…")
