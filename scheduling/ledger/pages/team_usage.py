"""The page Team usage: what teams use of a cluster now, and one team's GPU-hours, quota and decayed usage over time."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_safe

from acmeweb.common.errors import InvalidField
from jobs.core.lifecycle import JobKind
from jobs.core.parsing import choice_reader
from jobs.models import Cluster, Team, clock
from jobs.models.permissions import Caller
from jobs.web.page import PageQuery, bad_request, render_page, requested_cluster
from scheduling.core.charts import BarSeries, ColumnChart, Curve, LineChart, draw
from scheduling.ledger.reads.team_usage import TeamUsage, UsageDay, team_standings, team_usage
from scheduling.ledger.rules import report_rows
from scheduling.ledger.rules.report_rows import Period

KIND_STYLES = {kind: style for style, kind in enumerate(JobKind, 1)}
QUOTA_STYLE, TEAM_STYLE, SHARE_STYLE = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What the address selects among what the user may see. `team` None: there is no team to show."""

    clusters: Sequence[Cluster]
    cluster: Cluster | None
    teams: Sequence[Team]
    team: Team | None
    period: Period

    def url(self, route: str = "team-usage", **changes: str) -> str:
        chosen = {"cluster": self.cluster.name if self.cluster else "", "team": self.team.name if self.team else ""}
        period = {} if {"days", "month"} & changes.keys() else self.period.params
        return f"{reverse(route)}?{urlencode({**chosen, **period, **changes})}"


@require_safe
def usage_page(request: HttpRequest) -> HttpResponse:
    address, now = PageQuery(request.GET), clock.now()
    chosen = _selection(request, address)
    context: dict[str, Any] = {
        "now": now,
        "chosen": chosen,
        "clusters": [(one, chosen.url(cluster=one.name)) for one in chosen.clusters],
        "periods": [
            (name, chosen.url(days=days), chosen.period.params == {"days": days})
            for days, name in report_rows.PERIOD_TITLES.items()
        ],
        "months": report_rows.months(now),
        "csv_url": chosen.url("team-usage-csv"),
    }
    if chosen.cluster:
        names = [team.name for team in chosen.teams]
        standings = team_standings(chosen.cluster, names, now)
        context["standings"] = [(one, chosen.url(team=one.team)) for one in standings]
    if chosen.cluster and chosen.team:
        found = team_usage(chosen.cluster, chosen.team, chosen.period.since, chosen.period.until, now)
        context |= {"usage": found, "columns": draw(_columns(found)), "curves": draw(_curves(found))}
    return render_page(request, "reports/team_usage.html", context, wrong=address.wrong)


@require_safe
def usage_csv(request: HttpRequest) -> HttpResponse:
    """The days of the page, in GPU-hours."""
    address = PageQuery(request.GET)
    chosen = _selection(request, address)
    if address.wrong or not (chosen.cluster and chosen.team):
        return bad_request(address.wrong or [InvalidField("team", "there is no team or no cluster to show")])
    found = team_usage(chosen.cluster, chosen.team, chosen.period.since, chosen.period.until, clock.now())
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    name = f"usage-of-{chosen.team.name}-on-{chosen.cluster.name}.csv"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    kinds = [kind.value for kind in JobKind]
    rows = csv.writer(response)
    rows.writerow(["start", "end", *kinds, "total", "quota", "decayed_usage_at_end", "fair_share_at_end"])
    rows.writerows(_csv_row(day, kinds) for day in found.days)
    return response


def _csv_row(day: UsageDay, kinds: Sequence[str]) -> list[str | float]:
    quota = "" if day.quota_gpu_hours is None else round(day.quota_gpu_hours, 4)
    hours = [round(day.gpu_hours.get(kind, 0.0), 4) for kind in kinds]
    times = [f"{moment:%Y-%m-%dT%H:%M:%SZ}" for moment in (day.start, day.end)]
    return [*times, *hours, round(day.total, 4), quota, round(day.usage, 4), round(day.fair_share, 4)]


def _selection(request: HttpRequest, address: PageQuery) -> Selection:
    clusters, cluster = requested_cluster(address)
    teams = list(Caller(user=request.user).teams().order_by("name"))
    name = address.read("team", choice_reader([team.name for team in teams]))
    team = next((one for one in teams if one.name == name), teams[0] if teams else None)
    return Selection(clusters=clusters, cluster=cluster, teams=teams, team=team, period=_period(address))


def _period(address: PageQuery) -> Period:
    try:
        return report_rows.parse_period(address.text("days"), address.text("month"), clock.now())
    except InvalidField as error:
        address.wrong.append(error)
        return report_rows.parse_period("", "", clock.now())


# --- charts


def _columns(found: TeamUsage) -> ColumnChart:
    present = {kind for day in found.days for kind in day.gpu_hours}
    quota = [(number, day.quota_gpu_hours) for number, day in enumerate(found.days)]
    return ColumnChart(
        title="GPU-hours per day",
        y_label="GPU-hours",
        labels=[f"{day.start.day} {day.start:%b}" for day in found.days],
        series=[
            BarSeries(name=str(kind), style=style, values=[day.gpu_hours.get(kind.value, 0.0) for day in found.days])
            for kind, style in KIND_STYLES.items()
            if kind.value in present
        ],
        line=Curve(name="quota", style=QUOTA_STYLE, points=[(x, y) for x, y in quota if y is not None])
        if quota and quota[0][1] is not None
        else None,
    )


def _curves(found: TeamUsage) -> LineChart:
    first = found.days[0].end
    xs = [(day.end - first).total_seconds() for day in found.days]
    return LineChart(
        title="Decayed usage",
        x_label="",
        y_label="GPU-hours, halved every half-life",
        x_labels=[(x, f"{day.end.day} {day.end:%b}") for x, day in zip(xs, found.days, strict=True)],
        curves=[
            Curve(
                name="team", style=TEAM_STYLE, points=[(x, day.usage) for x, day in zip(xs, found.days, strict=True)]
            ),
            Curve(
                name="fair share",
                style=SHARE_STYLE,
                points=[(x, day.fair_share) for x, day in zip(xs, found.days, strict=True)],
            ),
        ],
    )
