"""Evaluations: ask for a campaign, watch its table fill, see where its time went."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_http_methods, require_POST
from rest_framework.exceptions import PermissionDenied

from jobs import clock
from jobs.api.submitting import Places
from jobs.journal import Author
from jobs.pages import answer
from jobs.readers import BadSpec
from jobs.rights import Caller
from scheduling import evaluating
from scheduling import evaluation_actions as actions
from scheduling.evaluating import Drawn, Standing
from scheduling.evaluation_actions import Gone
from scheduling.forms import CampaignForm
from scheduling.models import OPEN, Campaign, CampaignState

PAGE = 25
MOST_FAILED = 10
TONES = {"trial": "waiting", "infer": "running", "score": "good", "stage": "starting"}


def _caller(request: HttpRequest) -> Caller:
    return Caller(user=request.user)


@require_http_methods(["GET", "HEAD", "POST"])
def campaigns(request: HttpRequest) -> HttpResponse:
    caller = _caller(request)
    places = Places(caller)
    names = list(evaluating.suites(caller).order_by("name").values_list("name", flat=True).distinct())
    form = CampaignForm(request.POST or None, places=places, suites=names)
    if request.method == "POST" and form.is_valid() and (made := _asked(request, form, places)):
        return redirect("campaign", made.public_id)
    context = {
        "now": clock.now(),
        "form": form,
        "suites": names,
        "may_ask": bool(form.fields["team"].choices),  # type: ignore[attr-defined]
        "rows": cache(lambda: _rows(caller)),
    }
    response = answer(request, "scheduling/campaigns.html", context, {"campaigns": "scheduling/_campaigns.html"})
    response.status_code = 400 if form.errors else 200
    return response


def _rows(caller: Caller) -> list[Campaign]:
    rows = evaluating.campaigns(caller).select_related("user", "team", "suite", "cluster").defer("plan")
    found = list(rows[:PAGE])
    known = evaluating.standings(found)
    for row in found:
        row.standing = known.get(row.pk, Standing())  # type: ignore[attr-defined]
        row.first = _short(row.checkpoints[0])  # type: ignore[attr-defined]
    return found


def _asked(request: HttpRequest, form: CampaignForm, places: Places) -> Campaign | None:
    """None if it cannot be; the form then says why."""
    try:
        return evaluating.ask(form.asked(), places, Author.of(request), clock.now())
    except BadSpec as bad:
        form.add_error(bad.field if bad.field in form.fields else None, bad.why)
    except PermissionDenied as refused:
        form.add_error(None, str(refused))
    return None


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A bar of a lane, in percent of the chart."""

    tone: str
    start: float
    share: float
    name: str


@require_http_methods(["GET", "HEAD"])
def campaign(request: HttpRequest, public_id: str) -> HttpResponse:
    caller, now = _caller(request), clock.now()
    rows = evaluating.campaigns(caller).select_related("user", "team", "suite", "cluster")
    row = get_object_or_404(rows, public_id=public_id)
    standing = evaluating.standings([row]).get(row.pk, Standing())
    took_s = evaluating.took_s(row, now)
    datasets, lines = evaluating.matrix(row)
    lanes = evaluating.chart(row, now)
    failed = [
        (name, _short(checkpoint)["short"], cell.why)
        for checkpoint, cells in lines
        for name, cell in zip(datasets, cells, strict=True)
        if cell and cell.state == CampaignState.FAILED
    ]
    context = {
        "now": now,
        "row": row,
        "topic": actions.topic(row),
        "is_open": row.state in OPEN,
        "may_change": caller.may_change(row),
        "may_retry": standing.failed and row.state != CampaignState.CANCELLED,
        "standing": standing,
        "took": timedelta(seconds=round(took_s or 0)),
        "makespan": timedelta(seconds=round(row.plan["makespan_s"])) if row.plan else None,
        "bound": timedelta(seconds=round(row.plan["lower_bound_s"])) if row.plan else None,
        "gpu_hours": evaluating.gpu_hours(row, now),
        "over_bound": took_s / row.plan["lower_bound_s"] if row.ended_at and took_s and row.plan else None,
        "checkpoints": [_short(name) for name, _ in lines],
        "table": list(zip(datasets, zip(*(cells for _, cells in lines), strict=True), strict=True)) if lines else [],
        "left_out": len(row.checkpoints) - len(lines),
        "failed": failed[:MOST_FAILED],
        "more_failed": max(0, len(failed) - MOST_FAILED),
        "lanes": _drawn(lanes),
        "whole": timedelta(seconds=round(_ends_s(lanes))),
        "planned": _planned(row),
        "planned_whole": timedelta(seconds=round(_planned_s(row))),
    }
    return answer(request, "scheduling/campaign.html", context, {"campaign": "scheduling/_campaign.html"})


def _short(path: str) -> dict[str, str]:
    """The last two names of a path say which checkpoint it is; the whole of it is in the title."""
    return {"short": "/".join(path.rstrip("/").split("/")[-2:]), "path": path}


def _drawn(lanes: list[tuple[str, list[Drawn]]]) -> list[tuple[str, list[Stretch]]]:
    whole_s = _ends_s(lanes) or 1.0
    return [(name, [_stretch(bar, whole_s) for bar in bars]) for name, bars in lanes]


def _ends_s(lanes: list[tuple[str, list[Drawn]]]) -> float:
    return max((bar.end_s for _, bars in lanes for bar in bars), default=0.0)


def _stretch(bar: Drawn, whole_s: float) -> Stretch:
    start = 100 * max(bar.begin_s, 0.0) / whole_s
    return Stretch(
        tone=TONES[bar.phase],
        start=round(start, 3),
        share=round(max(100 * bar.end_s / whole_s - start, 0.05), 3),
        name=f"{bar.phase} {bar.name}, {bar.end_s - bar.begin_s:.0f} s",
    )


PLAN_TONES = {"infer": "running", "score": "good", "stage": "starting"}


def _planned_bars(row: Campaign) -> list[dict[str, Any]]:
    return (row.plan or {}).get("bars", [])


def _planned_s(row: Campaign) -> float:
    """Of what is drawn: of a large campaign the chart shows the beginning."""
    return max((float(bar["end_s"]) for bar in _planned_bars(row)), default=0.0)


def _planned(row: Campaign) -> list[tuple[str, list[Stretch]]]:
    """The plan in the same shape: what was foreseen for each GPU."""
    bars, whole_s = _planned_bars(row), _planned_s(row) or 1.0
    lanes: dict[tuple[int, int], list[Stretch]] = {}
    for bar in bars:
        start = 100 * bar["begin_s"] / whole_s
        share = 100 * bar["end_s"] / whole_s - start
        lanes.setdefault((bar["node"] if bar["node"] >= 0 else 10**9, bar["gpu"]), []).append(
            Stretch(
                tone=PLAN_TONES.get(bar["phase"], "waiting"),
                start=round(start, 3),
                share=round(max(share, 0.05), 3),
                name=f"{bar['phase']} {bar['name']}".strip(),
            )
        )
    return [
        ("metrics" if gpu < 0 else f"node {node + 1} GPU {gpu % row.plan['slots_per_node']}", bars)
        for (node, gpu), bars in sorted(lanes.items())
    ]


def _changed(request: HttpRequest, public_id: str, verb: Any, said: str) -> HttpResponse:
    caller = _caller(request)
    row = get_object_or_404(evaluating.campaigns(caller).select_related("suite"), public_id=public_id)
    if not caller.may_change(row):
        messages.error(request, caller.why_not(row, str(row)))
        return redirect("campaign", public_id)
    try:
        verb(row, author=Author.of(request), now=clock.now())
    except Gone as gone:
        messages.error(request, str(gone))
    else:
        messages.success(request, f"{row} {said}")
    return redirect("campaign", public_id)


@require_POST
def cancel(request: HttpRequest, public_id: str) -> HttpResponse:
    return _changed(request, public_id, actions.cancel, "is cancelled; its results stay.")


@require_POST
def retry(request: HttpRequest, public_id: str) -> HttpResponse:
    return _changed(request, public_id, actions.retry, "tries again what failed.")
