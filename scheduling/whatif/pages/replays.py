"""Pages of replays (What if): start a replay, cancel it, manage uploaded traces. `replay_results` shows the results."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_http_methods, require_POST
from rest_framework.exceptions import PermissionDenied

from acmeweb.common.errors import InvalidField, StateConflict
from jobs.actions.journal import Author
from jobs.actions.submissions import CallerTargets
from jobs.models import Cluster, Job, clock
from jobs.models.permissions import Caller
from jobs.web.page import render_page
from scheduling.models import Simulation, UploadedTrace
from scheduling.whatif.actions import simulations as simulation_actions
from scheduling.whatif.actions import traces as trace_actions
from scheduling.whatif.pages.replay_form import ReplayForm, linked_values
from scheduling.whatif.reads.simulations import replay_params, traces, visible_simulations
from scheduling.whatif.reads.traces import TraceUploadThrottle, read_uploaded_trace
from scheduling.whatif.tasks import wake_simulation_worker

PAGE_SIZE = 25
DEFAULT_REPLAY_VALUES = {"policies": ["acme", "easy"], "load": 100, "jobs": 10_000, "days": 30}


def _initial_values(request: HttpRequest, clusters: Iterable[Cluster]) -> dict[str, Any]:
    """The defaults of the form, replaced by what the address contains."""
    linked = linked_values(request.GET)
    named = [cluster for cluster in clusters if cluster.name == linked.get("cluster")]
    values = _default_values(named or clusters)
    return values | _price_of_cluster(values.get("cluster", ""), named or clusters) | linked


def _price_of_cluster(name: str, clusters: Iterable[Cluster]) -> dict[str, float]:
    """The price of energy in the settings of this cluster, or of the first one if none is named."""
    chosen = next((cluster for cluster in clusters if name in ("", cluster.name)), None)
    return {} if chosen is None or chosen.kwh_price is None else {"price_per_kwh": chosen.kwh_price}


def _default_values(clusters: Iterable[Cluster]) -> dict[str, Any]:
    """The history of the first cluster that has one, with its present quotas."""
    for cluster in sorted(clusters, key=lambda cluster: cluster.name):
        if Job.objects.filter(cluster=cluster, ended_at__isnull=False).exists():
            quotas = cluster.quotas.filter(gpu_model="").select_related("team")  # nodes of replays have no model
            lines = [f"{quota.team.name},{quota.kind},{quota.gpus}" for quota in quotas]
            own = {"trace": "history", "cluster": cluster.name, "quota": "\n".join(lines)}
            return DEFAULT_REPLAY_VALUES | own
    return DEFAULT_REPLAY_VALUES


def request_caller(request: HttpRequest) -> Caller:
    return Caller(user=request.user)


@require_http_methods(["GET", "HEAD", "POST"])
def replays(request: HttpRequest) -> HttpResponse:
    caller = request_caller(request)
    places = CallerTargets(caller)
    uploads = list(traces(caller)[:PAGE_SIZE])
    form = ReplayForm(
        request.POST or None,
        request.FILES or None,
        places=places,
        uploads=uploads,
        initial=_initial_values(request, places.clusters.values()),
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
    except (StateConflict, PermissionDenied) as error:
        form.add_error(None, str(error))
    else:
        wake_simulation_worker()
        return simulation
    return None


def _create_simulation(
    form: ReplayForm, places: CallerTargets, upload: UploadedTrace | None, author: Author
) -> Simulation:
    trace, policies = form.cleaned_data["trace"], form.cleaned_data["policies"]
    team = places.resolve_team(form.cleaned_data["team"])
    if upload:
        trace_actions.save_trace(upload, team=team, author=author)
        trace = upload.trace_name
    params = replay_params(trace, policies, form.request_values(trace), places, places.caller)
    return simulation_actions.create_simulation(
        trace=trace, policies=policies, params=params, team=team, author=author, now=clock.now()
    )


def _read_upload(request: HttpRequest, file: UploadedFile | None) -> UploadedTrace | None:
    """Parse the file. This may take seconds, so call it outside a transaction."""
    if file is None:
        return None
    if not TraceUploadThrottle().allow_request(request, None):
        raise InvalidField("trace_file", "Too many uploads in one minute. Try again in a minute.")
    return read_uploaded_trace(file)


@require_POST
def remove_trace(request: HttpRequest, number: int) -> HttpResponse:
    caller = request_caller(request)
    row = get_object_or_404(traces(caller), pk=number)
    if not caller.may_change(row):
        messages.error(request, caller.denial_reason(row, str(row)))
    else:
        try:
            trace_actions.remove(row, author=Author.of(request))
        except StateConflict as conflict:
            messages.error(request, str(conflict))
        else:
            messages.success(request, f"{row} was removed.")
    return redirect("replays")


@require_POST
def cancel(request: HttpRequest, public_id: str) -> HttpResponse:
    caller = request_caller(request)
    row = get_object_or_404(visible_simulations(caller), public_id=public_id)
    if not caller.may_change(row):
        messages.error(request, caller.denial_reason(row, str(row)))
    else:
        try:
            simulation_actions.cancel(row, author=Author.of(request), now=clock.now())
        except StateConflict as conflict:
            messages.error(request, str(conflict))
        else:
            messages.success(request, f"{row} was cancelled.")
    return redirect("replay", row.public_id)
