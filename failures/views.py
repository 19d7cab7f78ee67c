"""The pages of failures: what went wrong, one incident, why one job failed, and a log that somebody pastes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from failures import (
    actions,
    alike,
    decision_actions,
    decision_views,
    forms,
    rights,
    sign_views,
    stack_views,
    statistics,
    story,
)
from failures.diagnosis import engine
from failures.diagnosis.labels import LABELS
from failures.grouping import Scope
from failures.models import Diagnosis, Incident, ModelOpinion, Standing
from failures.models.diagnosis import look
from jobs import clock
from jobs.journal import Author
from jobs.models import Cluster, Job
from jobs.pages import PLACE, Address, answer, cluster_name, said
from jobs.readers import BadSpec
from jobs.rights import Caller

PAGE = 25
MOST_BARS = 10

# --- the list, and the figures of a period

STATES: dict[str, tuple[str, ...]] = {
    "unresolved": (Standing.OPEN, Standing.ACKNOWLEDGED),
    "undecided": tuple(Standing.values),
    "open": (Standing.OPEN,),
    "acknowledged": (Standing.ACKNOWLEDGED,),
    "resolved": (Standing.RESOLVED,),
    "all": tuple(Standing.values),
}
STATE_WORDS = {"undecided": "awaits a decision"}
REACH: dict[str, tuple[str, ...]] = {
    "everything": tuple(Scope),
    "platform": (Scope.NODE, Scope.SERVICE),
    "programs": (Scope.JOB,),
}
PERIODS = {"1": "24 hours", "7": "7 days", "30": "30 days", "90": "90 days", "365": "a year"}


@require_safe
def failures(request: HttpRequest) -> HttpResponse:
    caller, now = rights.of_user(request.user), clock.now()
    address = Address(request.GET)
    days = {name: address.read(name, forms.day) for name in ("from", "to")}
    asked = _asked(address) | {name: f"{day:%Y-%m-%d}" if day else "" for name, day in days.items()}
    since, until = _period(address, days, asked["days"], now)
    before = address.read("before", PLACE)
    figures = cache(lambda: _figures(asked, since, until, caller))
    context = {
        "now": now,
        "asked": asked,
        "incidents": cache(lambda: _page(caller, asked, before, now)),
        "states": [_choice("state", name, asked, STATE_WORDS.get(name, name)) for name in STATES],
        "reaches": [_choice("reach", name, asked) for name in REACH],
        "periods": [_choice("days", days, asked, words) for days, words in PERIODS.items()],
        "views": [_choice("by", name, asked) for name in statistics.BY],
        "clusters": cache(lambda: list(Cluster.objects.all())),
        "figures": figures,
        "since": since,
        "until": until,
        "is_first": before is None,
        "here": request.get_full_path(),
        "csv_url": _csv(asked, since, until),
    }
    fragments = {"incidents": "failures/_incidents.html", "figures": "failures/_figures.html"}
    return answer(request, "failures/failures.html", context, fragments, address.wrong)


def _asked(address: Address) -> dict[str, str]:
    known: dict[str, tuple[Sequence[str], str]] = {
        "state": (list(STATES), "unresolved"),
        "reach": (list(REACH), "everything"),
        "days": (list(PERIODS), "30"),
        "by": (statistics.BY, "cause"),
    }
    words = {name: address.one_of(name, choices, usual) for name, (choices, usual) in known.items()}
    return words | {"cluster": address.read("cluster", cluster_name, "")}


def _period(
    address: Address, named: Mapping[str, datetime | None], days: str, now: datetime
) -> tuple[datetime, datetime]:
    """Whole days from a calendar win over "the last so many days"."""
    since, until = named["from"], named["to"]
    end, last = min(until + timedelta(days=1), now) if until else now, min(until or now, now)
    if since and since >= end:
        address.wrong.append(BadSpec("from", f"{since:%Y-%m-%d} is after the end of the period, {last:%Y-%m-%d}"))
        since = None
    return since or end - timedelta(days=int(days)), end


@dataclass(frozen=True, kw_only=True)
class Choice:
    name: str
    url: str
    is_on: bool


def _choice(field: str, value: str, asked: Mapping[str, str], words: str = "") -> Choice:
    kept = {name: text for name, text in asked.items() if text}
    if field == "days":
        kept = {name: text for name, text in kept.items() if name not in ("from", "to")}
    is_on = asked[field] == value and not (field == "days" and (asked["from"] or asked["to"]))
    return Choice(name=words or value, url="?" + urlencode(kept | {field: value}), is_on=is_on)


@dataclass(frozen=True, kw_only=True)
class Page:
    rows: list[Incident]
    older: str


def _page(caller: Caller, asked: Mapping[str, str], before: int | None, now: datetime) -> Page:
    rows = rights.incidents(caller).filter(state__in=STATES[asked["state"]], scope__in=REACH[asked["reach"]])
    if asked["state"] == "undecided":
        rows = rows.filter(pk__in=rights.decisions(caller).waiting_for_a_yes(now).values("incident"))
    if asked["cluster"]:
        rows = rows.filter(cluster__name=asked["cluster"])
    if before is not None:
        rows = rows.filter(pk__lt=before)
    found = list(rows.select_related("cluster").prefetch_related("nodes").order_by("-pk")[: PAGE + 1])
    named = dict(caller.jobs().filter(public_id__in=[row.subject for row in found]).values_list("public_id", "name"))
    for row in found:
        row.look = look(row.root_cause, row.category)
        row.job_name = named.get(row.subject, "")
    kept = {name: text for name, text in asked.items() if text}
    older = urlencode(kept | {"before": found[PAGE - 1].pk}) if len(found) > PAGE else ""
    return Page(rows=found[:PAGE], older=older)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One step of the Pareto chart: shares are in percent of all GPU-hours."""

    name: str
    look: Any
    hours: float
    share: float
    up_to: float


@dataclass(frozen=True, kw_only=True)
class Figures:
    table: statistics.Table
    by: str
    bars: list[Bar]
    nodes: list[statistics.Row]
    most_of_a_node: int


def _figures(asked: Mapping[str, str], since: datetime, until: datetime, caller: Caller) -> Figures:
    teams = rights.teams_counted(caller)
    causes = statistics.table("cause", since, until, teams)
    nodes = sorted(statistics.table("node", since, until, teams).rows, key=lambda row: -row.num)[:MOST_BARS]
    by = asked["by"]
    table = causes if by == "cause" else statistics.table(by, since, until, teams)
    most = max((row.num for row in nodes), default=1)
    return Figures(table=table, by=by, bars=_bars(causes), nodes=nodes, most_of_a_node=most)


def _bars(causes: statistics.Table) -> list[Bar]:
    bars, up_to = [], 0.0
    for row in causes.rows[:MOST_BARS]:
        up_to += row.gpu_time_share_pct
        bars.append(
            Bar(
                name=row.reason,
                look=look(row.reason, row.category),
                hours=row.gpu_hours,
                share=row.gpu_time_share_pct,
                up_to=min(100.0, up_to),
            )
        )
    return bars


def _csv(asked: Mapping[str, str], since: datetime, until: datetime) -> str:
    wanted = {"by": asked["by"], "from": since.isoformat(), "to": until.isoformat(), "format": "csv"}
    return f"/api/v1/failures/statistics/?{urlencode(wanted)}"


# --- one incident


@require_safe
def incident(request: HttpRequest, number: int) -> HttpResponse:
    caller, now = rights.of_user(request.user), clock.now()
    row = _incident(caller, number)
    seen = list(
        rights.diagnoses(caller)
        .filter(incident=row)
        .select_related("attempt__job__team", "attempt__job__user", "reviewed_by")
        .defer("bundle")
        .order_by("failed_at", "pk")[:100]
    )
    leading = next((one for one in seen if one.pk == row.lead_id), seen[0] if seen else None)
    context = {
        "now": now,
        "incident": row,
        "look": look(row.root_cause, row.category),
        "topic": f"incident:{row.pk}",
        "label": LABELS.get(row.root_cause),
        "named": next((one.attempt.job.name for one in seen if one.attempt.job.public_id == row.subject), ""),
        "moments": cache(lambda: story.of(row, seen)),
        "seen": seen,
        "hidden": max(0, row.attempts - len(seen)),
        "may_handle": rights.may_handle(caller, row),
        "signs": cache(lambda: sign_views.of_incident(row)),
        "dumps": cache(lambda: stack_views.of_incident(row, caller)),
        "recovery": cache(lambda: decision_views.shown(row, caller)),
        **(_shown(leading, caller) if leading else {}),
    }
    return answer(request, "failures/incident.html", context, {"incident": "failures/_incident.html"})


def _incident(caller: Caller, number: int) -> Incident:
    rows = rights.incidents(caller).select_related("cluster").prefetch_related("nodes__cluster")
    return get_object_or_404(rows, pk=number)


HANDLE: dict[str, Callable[..., None]] = {"acknowledge": actions.acknowledge, "resolve": actions.resolve}


@require_POST
def incident_verb(request: HttpRequest, number: int, verb: str) -> HttpResponse:
    if verb not in HANDLE:
        raise Http404("no such verb")
    caller = rights.of_user(request.user)
    row = _incident(caller, number)
    if not rights.may_handle(caller, row):
        messages.error(request, "Not allowed: operators and the owners of its jobs do that.")
        return redirect("incident", number)
    row = Incident.objects.select_related("lead__attempt__job").get(pk=row.pk)
    try:
        HANDLE[verb](row, author=Author.of(request), now=clock.now(), why=said(request))
    except actions.Moved as moved:
        messages.error(request, f"Conflict, nothing was changed: {moved}.")
    else:
        messages.success(request, f"Incident {number}: {verb}d.")
    return redirect("incident", number)


# --- why one job failed


@require_safe
def job_diagnosis(request: HttpRequest, public_id: str) -> HttpResponse:
    job = get_object_or_404(Job.objects.visible_to(request.user), public_id=public_id)
    context = panel(request, job) | {"now": clock.now()}
    return answer(request, "failures/job.html", context, {"diagnosis": "failures/_diagnosis.html"})


def panel(request: HttpRequest, job: Job) -> dict[str, Any]:
    """The newest attempt that failed. The viewer may see the job."""
    rows = Diagnosis.objects.filter(attempt__job=job).select_related("attempt", "reviewed_by").defer("bundle")
    newest = rows.order_by("-attempt__number").first()
    found = {"job": job, "topic": f"job:{job.public_id}", "url": reverse("job-diagnosis", args=[job.public_id])}
    if newest is None:
        return found | {"diagnosis": None}
    newest.attempt.job = job
    return found | _shown(newest, rights.of_user(request.user))


def _shown(row: Diagnosis, caller: Caller) -> dict[str, Any]:
    job = row.attempt.job
    others = [one for one in row.alternatives if one["root_cause"] != row.root_cause]
    return {
        "diagnosis": row,
        "job": job,
        "verdict": row,
        "verdict_look": row.badge,
        "log_url": f"{reverse('log', args=[job.public_id])}?attempt={row.attempt.number}",
        "may_review": row.judged_at is not None and caller.may_change(job),
        "others": others,
        "alike": cache(lambda: alike.seen_before(row, caller)),
        "opinion": ModelOpinion.objects.filter(diagnosis=row).first(),
        "labels": [name for name in LABELS if name != row.root_cause],
    }


@require_POST
def review(request: HttpRequest, attempt: str) -> HttpResponse:
    """Confirm, or correct: one click here, after one that opened the choice."""
    caller = rights.of_user(request.user)
    rows = rights.diagnoses(caller).select_related("attempt__job").defer("bundle")
    row = get_object_or_404(rows, attempt__key=attempt)
    cause, note = request.POST.get("root_cause", ""), said(request, "note")
    if not caller.may_change(row.attempt.job):
        messages.error(request, "Not allowed: its owner and the operators of its team judge a diagnosis.")
    elif cause not in LABELS:
        messages.error(request, "Nothing was changed: choose a root cause from the list.")
    else:
        _review(request, row, cause, note)
    number = request.POST.get("incident", "")
    if number.isdecimal() and str(row.incident_id) == number:
        return redirect("incident", row.incident_id)
    return redirect("job", row.attempt.job.public_id)


def _review(request: HttpRequest, row: Diagnosis, cause: str, note: str) -> None:
    try:
        decision_actions.correct(row, cause, author=Author.of(request), now=clock.now(), note=note.replace("\x00", ""))
    except actions.Moved as moved:
        messages.error(request, f"Conflict, nothing was changed: {moved}.")
    else:
        messages.success(request, f"{row.attempt}: {row.review} as {row.root_cause}.")


# --- a log that somebody pastes


@require_http_methods(["GET", "HEAD", "POST"])
def paste(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        return render(request, "failures/paste.html", {"form": forms.PasteForm()})
    form = forms.PasteForm(request.POST, request.FILES)
    if not forms.may_paste(request):
        form.add_error(None, "That were many logs in one minute; wait a moment.")
    if not form.is_valid():
        return render(request, "failures/paste.html", {"form": form}, status=422)
    said = engine.diagnose_text(form.log(), form.ending())
    verdict = actions.storable(asdict(said))
    context = {"form": form, "verdict": verdict, "verdict_look": look(said.root_cause, said.category)}
    return render(request, "failures/paste.html", context | {"percent": round(said.confidence * 100)})
