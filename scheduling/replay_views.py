"""What if: ask for a replay, watch it, compare what came out, take it along."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from rest_framework.exceptions import PermissionDenied

from jobs import clock
from jobs.api.submitting import Places
from jobs.door.errors import BadField
from jobs.journal import Author
from jobs.pages import answer
from jobs.readers import BadSpec
from jobs.rights import Caller
from scheduling import simulation_actions as actions
from scheduling import trace_actions
from scheduling.comparing import MOST_RUNS, lines, sections
from scheduling.forms import ReplayForm
from scheduling.models import UNFINISHED, Simulation, SimulationState
from scheduling.replays import Uploads, checked, read_file, theirs, traces, wake
from scheduling.simulation_actions import Gone, TooMany
from scheduling.trace_actions import Brought

PAGE = 25
USUAL = {"policies": ["acme", "easy"], "jobs": 10_000, "days": 30}


def _caller(request: HttpRequest) -> Caller:
    return Caller(user=request.user)


@require_http_methods(["GET", "HEAD", "POST"])
def replays(request: HttpRequest) -> HttpResponse:
    caller = _caller(request)
    places = Places(caller)
    brought = list(traces(caller)[:PAGE])
    form = ReplayForm(request.POST or None, request.FILES or None, places=places, brought=brought, initial=USUAL)
    if request.method == "POST" and form.is_valid() and (made := _asked(request, form, places)):
        return redirect("replay", made.public_id)
    context = {
        "now": clock.now(),
        "form": form,
        "traces": [(one, caller.may_change(one)) for one in brought],
        "lost_file": request.FILES["trace_file"].name if form.errors and "trace_file" in request.FILES else "",
        "may_ask": bool(form.fields["team"].choices),  # type: ignore[attr-defined]
        "rows": cache(lambda: list(theirs(caller).select_related("user", "team").defer("result")[:PAGE])),
    }
    response = answer(request, "scheduling/replays.html", context, {"replays": "scheduling/_replays.html"})
    response.status_code = 400 if form.errors else 200
    return response


def _asked(request: HttpRequest, form: ReplayForm, places: Places) -> Simulation | None:
    """None if it cannot be; the form then says why, and no file is kept."""
    try:
        brought = _read(request, form.cleaned_data["trace_file"])
        with transaction.atomic():
            made = _made(form, places, brought, Author.of(request))
    except BadSpec as bad:
        form.add_error(bad.field if bad.field in form.fields else None, bad.why)
    except (TooMany, PermissionDenied) as refused:
        form.add_error(None, str(refused))
    except BadField as bad:
        for field, sentences in dict(bad.detail).items():  # type: ignore[arg-type]
            form.add_error(field if field in form.fields else None, [str(one) for one in sentences])
    else:
        wake()
        return made
    return None


def _made(form: ReplayForm, places: Places, brought: Brought | None, author: Author) -> Simulation:
    trace, policies = form.cleaned_data["trace"], form.cleaned_data["policies"]
    team = places.team_of(form.cleaned_data["team"])
    if brought:
        trace = trace_actions.keep(brought, team=team, author=author).called
    params = checked(trace, policies, form.asked(trace), places, places.caller)
    return actions.ask(trace=trace, policies=policies, params=params, team=team, author=author, now=clock.now())


def _read(request: HttpRequest, file: UploadedFile | None) -> Brought | None:
    """Before anything is written: it may take seconds."""
    if file is None:
        return None
    if not Uploads().allow_request(request, None):
        raise BadSpec("trace_file", "That were many traces in one minute; wait a moment.")
    return read_file(file)


@require_POST
def remove_trace(request: HttpRequest, number: int) -> HttpResponse:
    caller = _caller(request)
    row = get_object_or_404(traces(caller), pk=number)
    if not caller.may_change(row):
        messages.error(request, caller.why_not(row, str(row)))
    else:
        try:
            trace_actions.remove(row, author=Author.of(request))
        except trace_actions.InUse as used:
            messages.error(request, str(used))
        else:
            messages.success(request, f"{row} is removed.")
    return redirect("replays")


@dataclass(frozen=True, kw_only=True)
class Column:
    """One run, and the simulation it belongs to."""

    simulation: Simulation
    run: dict[str, Any]
    name: str


def _columns(rows: list[Simulation]) -> list[Column]:
    """The names of policies, with the simulation's where the same one was run twice."""
    found = [(row, run) for row in rows for run in (row.result or {}).get("runs", ())][:MOST_RUNS]
    policies = [run["policy"] for _, run in found]
    twice = {name for name in policies if policies.count(name) > 1}
    return [Column(simulation=row, run=run, name=_name(row, run["policy"], twice)) for row, run in found]


def _name(row: Simulation, policy: str, twice: set[str]) -> str:
    return f"{policy} {row.public_id}" if policy in twice else policy


@require_safe
def replay(request: HttpRequest, public_id: str) -> HttpResponse:
    caller = _caller(request)
    row = get_object_or_404(theirs(caller).select_related("user", "team"), public_id=public_id)
    others = theirs(caller).filter(state=SimulationState.COMPLETED).exclude(pk=row.pk).defer("result")
    columns = _columns([row])
    context = {
        "now": clock.now(),
        "row": row,
        "topic": f"simulation:{row.public_id}",
        "is_open": row.state in UNFINISHED,
        "may_cancel": row.state in UNFINISHED and caller.may_change(row),
        "asked": {name: value for name, value in row.params.items() if name != "teams"}.items(),
        "columns": columns,
        "sections": sections([column.run for column in columns]) if columns else [],
        "of": row.public_id,
        "others": cache(lambda: list(others[:PAGE])) if len(columns) < MOST_RUNS else [],
    }
    return answer(request, "scheduling/replay.html", context, {"replay": "scheduling/_replay.html"})


def _chosen(request: HttpRequest) -> list[Simulation]:
    """Those that are named in the address, in its order; one that is not theirs is not there."""
    names = list(dict.fromkeys(",".join(request.GET.getlist("of")).replace("\x00", "").split(",")))[:MOST_RUNS]
    rows = {row.public_id: row for row in theirs(_caller(request)).filter(public_id__in=names).select_related("team")}
    if not names or any(name not in rows for name in names):
        raise Http404("no such simulation")
    return [rows[name] for name in names]


@require_safe
def compare(request: HttpRequest) -> HttpResponse:
    rows = _chosen(request)
    columns = _columns(rows)
    context = {
        "now": clock.now(),
        "simulations": rows,
        "columns": columns,
        "sections": sections([column.run for column in columns]) if columns else [],
        "of": ",".join(row.public_id for row in rows),
    }
    return answer(request, "scheduling/compare.html", context)


@require_safe
def export(request: HttpRequest, form: str) -> HttpResponse:
    columns = _columns(_chosen(request))
    name = "-".join(dict.fromkeys(column.simulation.public_id for column in columns)) or "nothing"
    if form == "json":
        told = [{"simulation": c.simulation.public_id, "name": c.name, **c.run} for c in columns]
        response: HttpResponse = JsonResponse({"runs": told})
    else:
        response = HttpResponse(content_type="text/csv; charset=utf-8")
        found = sections([column.run for column in columns]) if columns else []
        csv.writer(response).writerows(lines([column.name for column in columns], found))
    response["Content-Disposition"] = f'attachment; filename="what-if-{name}.{form}"'
    return response


@require_POST
def cancel(request: HttpRequest, public_id: str) -> HttpResponse:
    caller = _caller(request)
    row = get_object_or_404(theirs(caller), public_id=public_id)
    if not caller.may_change(row):
        messages.error(request, caller.why_not(row, str(row)))
    else:
        try:
            actions.cancel(row, author=Author.of(request), now=clock.now())
        except Gone as gone:
            messages.error(request, str(gone))
        else:
            messages.success(request, f"{row} is cancelled.")
    return redirect("replay", row.public_id)
