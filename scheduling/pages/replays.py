"""Pages of replays (What if): start a replay, follow it, compare results, download them, manage uploaded traces."""

from __future__ import annotations

import csv
from collections.abc import Iterable
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

from jobs.actions.journal import Author
from jobs.actions.submissions import CallerTargets
from jobs.core.parsing import InvalidField
from jobs.models import Cluster, Job, clock
from jobs.models.permissions import Caller
from jobs.rest.errors import InvalidRequestField
from jobs.web.page import render_page
from scheduling.actions import simulations as simulation_actions
from scheduling.actions import traces as trace_actions
from scheduling.actions.simulations import SimulationStateConflict, TooManySimulations
from scheduling.actions.traces import ParsedTrace
from scheduling.core.replay_comparison import MAX_COMPARED_RUNS, csv_rows, sections
from scheduling.models import Simulation, SimulationState
from scheduling.pages.replay_form import ReplayForm
from scheduling.queries.replays import (
    TraceUploadThrottle,
    read_uploaded_trace,
    replay_params,
    traces,
    visible_simulations,
    wake_simulation_worker,
)

PAGE_SIZE = 25
DEFAULT_REPLAY_VALUES = {"policies": ["acme", "easy"], "jobs": 10_000, "days": 30}


def _default_values(clusters: Iterable[Cluster]) -> dict[str, Any]:
    """The defaults of the form: the history of the first cluster that has one, with its present quotas."""
    for cluster in sorted(clusters, key=lambda cluster: cluster.name):
        if Job.objects.filter(cluster=cluster, ended_at__isnull=False).exists():
            quotas = cluster.quotas.select_related("team")
            lines = [f"{quota.team.name},{quota.kind},{quota.gpus}" for quota in quotas]
            own = {"trace": "history", "cluster": cluster.name, "quota": "\n".join(lines)}
            return DEFAULT_REPLAY_VALUES | own
    return DEFAULT_REPLAY_VALUES


def _request_caller(request: HttpRequest) -> Caller:
    return Caller(user=request.user)


@require_http_methods(["GET", "HEAD", "POST"])
def replays(request: HttpRequest) -> HttpResponse:
    caller = _request_caller(request)
    places = CallerTargets(caller)
    uploads = list(traces(caller)[:PAGE_SIZE])
    form = ReplayForm(
        request.POST or None,
        request.FILES or None,
        places=places,
        uploads=uploads,
        initial=_default_values(places.clusters.values()),
    )
    if request.method == "POST" and form.is_valid() and (simulation := _create_from_form(request, form, places)):
        return redirect("replay", simulation.public_id)
    context = {
        "now": clock.now(),
        "form": form,
        "traces": [(upload, caller.may_change(upload)) for upload in uploads],
        "lost_file": request.FILES["trace_file"].name if form.errors and "trace_file" in request.FILES else "",
        "may_ask": bool(form.fields["team"].choices),  # type: ignore[attr-defined]
        "rows": cache(
            lambda: list(visible_simulations(caller).select_related("user", "team").defer("result")[:PAGE_SIZE])
        ),
    }
    response = render_page(request, "scheduling/replays.html", context, {"replays": "scheduling/_replays.html"})
    response.status_code = 400 if form.errors else 200
    return response


def _create_from_form(request: HttpRequest, form: ReplayForm, places: CallerTargets) -> Simulation | None:
    """Return the new simulation, or None after adding the errors to the form; then an uploaded file is not saved."""
    try:
        upload = _read_upload(request, form.cleaned_data["trace_file"])
        with transaction.atomic():
            simulation = _create_simulation(form, places, upload, Author.of(request))
    except InvalidField as error:
        form.add_error(error.field if error.field in form.fields else None, error.why)
    except (TooManySimulations, PermissionDenied) as error:
        form.add_error(None, str(error))
    except InvalidRequestField as error:
        for field, sentences in dict(error.detail).items():  # type: ignore[arg-type]
            form.add_error(field if field in form.fields else None, [str(sentence) for sentence in sentences])
    else:
        wake_simulation_worker()
        return simulation
    return None


def _create_simulation(
    form: ReplayForm, places: CallerTargets, upload: ParsedTrace | None, author: Author
) -> Simulation:
    trace, policies = form.cleaned_data["trace"], form.cleaned_data["policies"]
    team = places.resolve_team(form.cleaned_data["team"])
    if upload:
        trace = trace_actions.save_trace(upload, team=team, author=author).trace_name
    params = replay_params(trace, policies, form.request_values(trace), places, places.caller)
    return simulation_actions.create_simulation(
        trace=trace, policies=policies, params=params, team=team, author=author, now=clock.now()
    )


def _read_upload(request: HttpRequest, file: UploadedFile | None) -> ParsedTrace | None:
    """Parse the file. This may take seconds, so call it outside a transaction."""
    if file is None:
        return None
    if not TraceUploadThrottle().allow_request(request, None):
        raise InvalidField("trace_file", "Too many uploads in one minute. Try again in a minute.")
    return read_uploaded_trace(file)


@require_POST
def remove_trace(request: HttpRequest, number: int) -> HttpResponse:
    caller = _request_caller(request)
    row = get_object_or_404(traces(caller), pk=number)
    if not caller.may_change(row):
        messages.error(request, caller.denial_reason(row, str(row)))
    else:
        try:
            trace_actions.remove(row, author=Author.of(request))
        except trace_actions.TraceInUse as conflict:
            messages.error(request, str(conflict))
        else:
            messages.success(request, f"{row} was removed.")
    return redirect("replays")


@dataclass(frozen=True, kw_only=True)
class RunColumn:
    """One run with its simulation and the heading of its column."""

    simulation: Simulation
    run: dict[str, Any]
    name: str


def _run_columns(rows: list[Simulation]) -> list[RunColumn]:
    """Return the runs of the simulations. A policy that occurs twice is named with its simulation."""
    runs = [(row, run) for row in rows for run in (row.result or {}).get("runs", ())][:MAX_COMPARED_RUNS]
    policies = [run["policy"] for _, run in runs]
    repeated = {name for name in policies if policies.count(name) > 1}
    return [RunColumn(simulation=row, run=run, name=_column_name(row, run["policy"], repeated)) for row, run in runs]


def _column_name(row: Simulation, policy: str, repeated: set[str]) -> str:
    return f"{policy} {row.public_id}" if policy in repeated else policy


@require_safe
def replay(request: HttpRequest, public_id: str) -> HttpResponse:
    caller = _request_caller(request)
    row = get_object_or_404(visible_simulations(caller).select_related("user", "team"), public_id=public_id)
    others = visible_simulations(caller).filter(state=SimulationState.COMPLETED).exclude(pk=row.pk).defer("result")
    columns = _run_columns([row])
    context = {
        "now": clock.now(),
        "row": row,
        "topic": f"simulation:{row.public_id}",
        "is_open": row.is_open,
        "waits_for_worker": row.state == SimulationState.PENDING,
        "may_cancel": row.is_open and caller.may_change(row),
        "parameters": {name: value for name, value in row.params.items() if name != "teams"}.items(),
        "columns": columns,
        "sections": sections([column.run for column in columns]) if columns else [],
        "of": row.public_id,
        "others": cache(lambda: list(others[:PAGE_SIZE])) if len(columns) < MAX_COMPARED_RUNS else [],
    }
    return render_page(request, "scheduling/replay.html", context, {"replay": "scheduling/_replay.html"})


def _requested_simulations(request: HttpRequest) -> list[Simulation]:
    """Return the simulations named in the address, in that order. 404 if one does not exist or is not visible."""
    names = list(dict.fromkeys(",".join(request.GET.getlist("of")).replace("\x00", "").split(",")))[:MAX_COMPARED_RUNS]
    rows = {
        row.public_id: row
        for row in visible_simulations(_request_caller(request)).filter(public_id__in=names).select_related("team")
    }
    if not names or any(name not in rows for name in names):
        raise Http404("no such simulation")
    return [rows[name] for name in names]


@require_safe
def compare(request: HttpRequest) -> HttpResponse:
    rows = _requested_simulations(request)
    columns = _run_columns(rows)
    context = {
        "now": clock.now(),
        "simulations": rows,
        "columns": columns,
        "sections": sections([column.run for column in columns]) if columns else [],
        "of": ",".join(row.public_id for row in rows),
    }
    return render_page(request, "scheduling/compare.html", context)


@require_safe
def export(request: HttpRequest, form: str) -> HttpResponse:
    columns = _run_columns(_requested_simulations(request))
    name = "-".join(dict.fromkeys(column.simulation.public_id for column in columns)) or "nothing"
    if form == "json":
        runs = [{"simulation": c.simulation.public_id, "name": c.name, **c.run} for c in columns]
        response: HttpResponse = JsonResponse({"runs": runs})
    else:
        response = HttpResponse(content_type="text/csv; charset=utf-8")
        tables = sections([column.run for column in columns]) if columns else []
        csv.writer(response).writerows(csv_rows([column.name for column in columns], tables))
    response["Content-Disposition"] = f'attachment; filename="what-if-{name}.{form}"'
    return response


@require_POST
def cancel(request: HttpRequest, public_id: str) -> HttpResponse:
    caller = _request_caller(request)
    row = get_object_or_404(visible_simulations(caller), public_id=public_id)
    if not caller.may_change(row):
        messages.error(request, caller.denial_reason(row, str(row)))
    else:
        try:
            simulation_actions.cancel(row, author=Author.of(request), now=clock.now())
        except SimulationStateConflict as conflict:
            messages.error(request, str(conflict))
        else:
            messages.success(request, f"{row} was cancelled.")
    return redirect("replay", row.public_id)
