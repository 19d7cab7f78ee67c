"""Pages of evaluation campaigns: the list with the form for a new campaign, and one campaign's results and timeline."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.template.defaultfilters import floatformat
from django.views.decorators.http import require_http_methods, require_POST
from rest_framework.exceptions import PermissionDenied

from acmeweb.common.errors import InvalidField, StateConflict
from jobs.actions.journal import Author
from jobs.actions.submissions import CallerTargets
from jobs.core.charts.timeline import TimelineBar
from jobs.core.deadlines import percent_text
from jobs.models import clock
from jobs.models.permissions import Caller
from jobs.web.page import render_page
from scheduling.evaluation.actions import campaigns as campaign_actions
from scheduling.evaluation.pages.forms import CampaignForm
from scheduling.evaluation.pages.score_history import campaign_scores, regression_text
from scheduling.evaluation.reads import campaigns as campaign_reads
from scheduling.evaluation.reads.campaigns import CampaignProgress, LaneSpan, ResultCell
from scheduling.models import Campaign, CampaignState

PAGE_SIZE = 25
MAX_FAILED_SHOWN = 10
PHASE_TONES = {"trial": "waiting", "infer": "running", "score": "good", "stage": "starting"}


def _request_caller(request: HttpRequest) -> Caller:
    return Caller(user=request.user)


@require_http_methods(["GET", "HEAD", "POST"])
def campaigns(request: HttpRequest) -> HttpResponse:
    caller = _request_caller(request)
    places = CallerTargets(caller)
    form = CampaignForm(request.POST or None, places=places)
    if request.method == "POST" and form.is_valid() and (campaign_row := _create_from_form(request, form, places)):
        return redirect("campaign", campaign_row.public_id)
    context = {
        "now": clock.now(),
        "form": form,
        "suites": form.suites,
        "may_ask": bool(form.teams),
        "rows": cache(lambda: _rows(caller)),
    }
    response = render_page(request, "scheduling/campaigns.html", context, {"campaigns": "scheduling/_campaigns.html"})
    response.status_code = 400 if form.errors else 200
    return response


def _rows(caller: Caller) -> list[Campaign]:
    campaigns = campaign_reads.campaigns(caller).select_related("user", "team", "suite", "cluster").defer("plan")
    rows = list(campaigns[:PAGE_SIZE])
    progress = campaign_reads.campaign_progress(rows)
    for row in rows:
        row.progress = progress.get(row.pk, CampaignProgress())  # type: ignore[attr-defined]
        row.first = _short_path(row.checkpoints[0])  # type: ignore[attr-defined]
    return rows


def _create_from_form(request: HttpRequest, form: CampaignForm, places: CallerTargets) -> Campaign | None:
    """Return the new campaign, or None after adding the errors to the form."""
    try:
        return campaign_actions.create_campaign_from_request(
            form.request_values(), places, Author.of(request), clock.now()
        )
    except InvalidField as error:
        form.add_error(error.field if error.field in form.fields else None, error.why)
    except PermissionDenied as error:
        form.add_error(None, str(error))
    return None


@dataclass(frozen=True, kw_only=True)
class ChartLane:
    name: str
    bars: list[TimelineBar]

    @property
    def label(self) -> str:
        return f"{self.name}: {len(self.bars)} phases"


@require_http_methods(["GET", "HEAD"])
def campaign(request: HttpRequest, public_id: str) -> HttpResponse:
    caller, now = _request_caller(request), clock.now()
    rows = campaign_reads.campaigns(caller).select_related("user", "team", "suite", "cluster")
    row = get_object_or_404(rows, public_id=public_id)
    progress = campaign_reads.campaign_progress([row]).get(row.pk, CampaignProgress())
    share = campaign_reads.campaign_probability(row, progress.percent, now)
    took_s = campaign_reads.took_s(row, now)
    datasets, lines = campaign_reads.result_matrix(row)
    lanes = campaign_reads.chart(row, now)
    failed = [
        (name, _short_path(checkpoint)["short"], cell.why)
        for checkpoint, cells in lines
        for name, cell in zip(datasets, cells, strict=True)
        if cell and cell.state == CampaignState.FAILED
    ]
    context = {
        "now": now,
        "row": row,
        "topic": campaign_actions.campaign_topic(row),
        "is_open": row.is_open,
        "may_cancel": row.is_open and caller.may_change(row),
        "may_retry": progress.failed and row.state != CampaignState.CANCELLED and caller.may_change(row),
        "is_planning": row.state == CampaignState.PENDING,
        "why_tone": "bad" if row.state == CampaignState.FAILED else "",
        "took_label": "Running for" if row.is_open else "Duration",
        "deadline_share": percent_text(share) if share is not None else "",
        "deadline_tone": "bad" if share is not None and 100 * share < row.cluster.min_deadline_percent else "muted",
        "progress": progress,
        "took": timedelta(seconds=round(took_s or 0)),
        "makespan": timedelta(seconds=round(row.plan["makespan_s"])) if row.plan else None,
        "bound": timedelta(seconds=round(row.plan["lower_bound_s"])) if row.plan else None,
        "gpu_hours": campaign_reads.gpu_hours(row, now),
        "over_bound": took_s / row.plan["lower_bound_s"] if row.ended_at and took_s and row.plan else None,
        "checkpoints": [_short_path(name) for name, _ in lines],
        "table_caption": "dataset by checkpoint, Δ vs previous" if len(lines) > 1 else "dataset by checkpoint",
        "table": _result_table(datasets, lines),
        "left_out": len(row.checkpoints) - len(lines),
        "scores": campaign_scores(row),
        "failed": failed[:MAX_FAILED_SHOWN],
        "more_failed": max(0, len(failed) - MAX_FAILED_SHOWN),
        "lanes": _chart_lanes(lanes),
        "whole": timedelta(seconds=round(_last_end_s(lanes))),
        "planned": _planned_lanes(row),
        "planned_whole": timedelta(seconds=round(_planned_end_s(row))),
    }
    return render_page(request, "scheduling/campaign.html", context, {"campaign": "scheduling/_campaign.html"})


@dataclass(frozen=True, kw_only=True)
class ResultText:
    """A cell of the result table as text. `score` is empty until there is a result; then `note` is its state."""

    score: str = ""
    change: str = ""
    drop: str = ""  # empty unless the score fell by more than its sampling error
    note: str
    note_class: str = "muted"
    why: str = ""


CELL_STATES: dict[str, tuple[str, str]] = {
    CampaignState.FAILED: ("✗ failed", "tone bad"),
    CampaignState.RUNNING: ("▶ running", "tone running"),
    CampaignState.CANCELLED: ("■ cancelled", "muted"),
}


def result_text(cell: ResultCell | None) -> ResultText:
    if cell is None or cell.value is None:
        note, note_class = CELL_STATES.get(cell.state if cell else "", ("… waiting", "muted"))
        return ResultText(note=note, note_class=note_class, why=cell.why if cell else "")
    sign = "+" if cell.change is not None and cell.change >= 0 else ""
    return ResultText(
        score=floatformat(cell.value, "4"),
        change="" if cell.change is None else sign + floatformat(cell.change, "4"),
        drop=regression_text(cell.regression) if cell.regression else "",
        note=f"{cell.metric} · reused" if cell.reused else cell.metric,
        why=cell.why,
    )


def _result_table(
    datasets: list[str], lines: list[tuple[str, list[ResultCell | None]]]
) -> list[tuple[str, list[ResultText]]]:
    """Return each dataset with its cells, one per checkpoint."""
    return [(name, [result_text(cells[place]) for _, cells in lines]) for place, name in enumerate(datasets) if lines]


def _short_path(path: str) -> dict[str, str]:
    """Return the last two names of a path, which identify the checkpoint, and the full path for the tooltip."""
    return {"short": "/".join(path.rstrip("/").split("/")[-2:]), "path": path}


def _chart_lanes(lanes: list[tuple[str, list[LaneSpan]]]) -> list[ChartLane]:
    whole_s = _last_end_s(lanes) or 1.0
    return [ChartLane(name=name, bars=[_chart_bar(bar, whole_s) for bar in bars]) for name, bars in lanes]


def _last_end_s(lanes: list[tuple[str, list[LaneSpan]]]) -> float:
    return max((bar.end_s for _, bars in lanes for bar in bars), default=0.0)


def _chart_bar(bar: LaneSpan, whole_s: float) -> TimelineBar:
    start = 100 * max(bar.begin_s, 0.0) / whole_s
    return TimelineBar(
        tone=PHASE_TONES[bar.phase],
        start=round(start, 3),
        share=round(max(100 * bar.end_s / whole_s - start, 0.05), 3),
        name=f"{bar.phase} {bar.name}, {bar.end_s - bar.begin_s:.0f} s",
    )


PLANNED_PHASE_TONES = {"infer": "running", "score": "good", "stage": "starting"}


def _planned_bars(row: Campaign) -> list[dict[str, Any]]:
    return (row.plan or {}).get("bars", [])


def _planned_end_s(row: Campaign) -> float:
    """Return the end of the last planned bar. The plan of a large campaign only stores the first bars."""
    return max((float(bar["end_s"]) for bar in _planned_bars(row)), default=0.0)


def _planned_lanes(row: Campaign) -> list[ChartLane]:
    """Return the planned bars of each GPU, in the form of `_chart_lanes`."""
    bars, whole_s = _planned_bars(row), _planned_end_s(row) or 1.0
    lanes: dict[tuple[int, int], list[TimelineBar]] = {}
    for bar in bars:
        start = 100 * bar["begin_s"] / whole_s
        share = 100 * bar["end_s"] / whole_s - start
        lanes.setdefault((bar["node"] if bar["node"] >= 0 else 10**9, bar["gpu"]), []).append(
            TimelineBar(
                tone=PLANNED_PHASE_TONES.get(bar["phase"], "waiting"),
                start=round(start, 3),
                share=round(max(share, 0.05), 3),
                name=f"{bar['phase']} {bar['name']}".strip(),
            )
        )
    return [
        ChartLane(name="metrics" if gpu < 0 else f"node {node + 1} GPU {gpu % row.plan['slots_per_node']}", bars=bars)
        for (node, gpu), bars in sorted(lanes.items())
    ]


def _apply_campaign_verb(request: HttpRequest, public_id: str, verb: Any, outcome: str) -> HttpResponse:
    caller = _request_caller(request)
    row = get_object_or_404(campaign_reads.campaigns(caller).select_related("suite"), public_id=public_id)
    if not caller.may_change(row):
        messages.error(request, caller.denial_reason(row, str(row)))
        return redirect("campaign", public_id)
    try:
        verb(row, author=Author.of(request), now=clock.now())
    except StateConflict as conflict:
        messages.error(request, str(conflict))
    else:
        messages.success(request, f"{row} {outcome}")
    return redirect("campaign", public_id)


@require_POST
def cancel(request: HttpRequest, public_id: str) -> HttpResponse:
    return _apply_campaign_verb(
        request, public_id, campaign_actions.cancel, "was cancelled. Existing results are kept."
    )


@require_POST
def retry(request: HttpRequest, public_id: str) -> HttpResponse:
    return _apply_campaign_verb(request, public_id, campaign_actions.retry, "is retrying the failed evaluations.")
