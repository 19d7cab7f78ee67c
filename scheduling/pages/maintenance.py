"""Pages of maintenance windows: schedule one after a preview of its impact, change its end, cancel it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from acmeweb.common.errors import InvalidField, StateConflict
from jobs.actions import maintenance as maintenance_actions
from jobs.actions.journal import Author
from jobs.core.slurm_notation import format_count
from jobs.models import Cluster, Event, Job, Maintenance, clock
from jobs.queries import drain_impact
from jobs.queries.drain_impact import AffectedJob, MaintenanceImpact
from jobs.web.page import MAX_EVENTS, posted_text
from scheduling.engine.blockers import capitalize_first
from scheduling.engine.run_time_estimates import predicted_end
from scheduling.pages.maintenance_forms import MaintenanceEndForm, MaintenanceForm

OPERATE_PERMISSION = "jobs.operate_cluster"
MAX_WINDOWS_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class MaintenanceRow:
    row: Maintenance
    phase: str
    nodes: int
    closed: int


def maintenance_rows(cluster: Cluster, now: datetime) -> list[MaintenanceRow]:
    rows = Maintenance.objects.open().filter(cluster=cluster).select_related("cluster")[:MAX_WINDOWS_SHOWN]
    return [
        MaintenanceRow(row=row, phase=row.phase(now), nodes=row.affected_nodes().count(), closed=row.closed.count())
        for row in rows
    ]


@dataclass(frozen=True, kw_only=True)
class VisibleImpact:
    """The impact of a maintenance window for one user: `hidden` counts the affected jobs they may not see.

    `running` has each visible job with its expected end, which is None without a predicted run time.
    """

    ahead: MaintenanceImpact
    running: list[tuple[AffectedJob, datetime | None]]
    hidden: int
    expected_text: str


def _visible_impact(request: HttpRequest, ahead: MaintenanceImpact, start: datetime, now: datetime) -> VisibleImpact:
    ends = {affected.job.pk: _expected_end(affected, now) for affected in ahead.running}
    early = sum(end is not None and end <= start for end in ends.values())
    ids = [affected.job.pk for affected in ahead.running]
    visible = set(Job.objects.visible_to(request.user).filter(pk__in=ids).values_list("pk", flat=True))
    running = [(affected, ends[affected.job.pk]) for affected in ahead.running if affected.job.pk in visible]
    expected = f"By predicted run times, {early} of {format_count(len(ids), 'running job')} will have ended by then."
    return VisibleImpact(
        ahead=ahead, running=running, hidden=len(ids) - len(running), expected_text=expected if early else ""
    )


def _expected_end(affected: AffectedJob, now: datetime) -> datetime | None:
    job, started_at = affected.job, affected.started_at
    if job.predicted_s is None or started_at is None:
        return None
    predicted_s = affected.slowdown * (job.trees_predicted_s or job.predicted_s)
    return predicted_end(predicted_s, now=now, started_at=started_at, limit=job.time_limit)


@require_http_methods(["GET", "HEAD", "POST"])
@permission_required(OPERATE_PERMISSION, raise_exception=True)
def declare(request: HttpRequest, cluster: str) -> HttpResponse:
    """Preview the impact, then schedule the window once the user has confirmed exactly these values."""
    row, now = get_object_or_404(Cluster, name=cluster), clock.now()
    form = MaintenanceForm(request.POST or None)
    impact, mark = None, ""
    if request.method == "POST" and form.is_valid():
        mark = _form_fingerprint(form)
        try:
            asked = form.maintenance_request(now)
            ahead = maintenance_actions.preview_maintenance(row, asked, now)
            impact = _visible_impact(request, ahead, asked.start_at, now)
            if request.POST.get("confirm") == mark:
                window = maintenance_actions.schedule_maintenance(
                    row, form.maintenance_request(now), author=Author.of(request), now=now
                )
                messages.success(request, f"{window} was scheduled. {impact.ahead.effect}")
                return redirect("maintenance", row.name, window.pk)
        except InvalidField as error:
            form.add_error(error.field if error.field in form.fields else None, f"{capitalize_first(error.why)}.")
    context = {"now": now, "cluster": row, "form": form, "impact": impact if not form.errors else None, "mark": mark}
    return render(request, "scheduling/declare.html", context, status=400 if form.errors else 200)


def _form_fingerprint(form: MaintenanceForm) -> str:
    """Return a mark of the form's values. If a value changes after the preview, the preview is shown again."""
    return "|".join(str(form.cleaned_data[name]) for name in form.fields)


@require_safe
def maintenance(request: HttpRequest, cluster: str, number: int) -> HttpResponse:
    window, now = _get_window(cluster, number), clock.now()
    context = {
        "now": now,
        "window": window,
        "cluster": window.cluster,
        "phase": window.phase(now),
        "is_pending": window.is_pending(now),
        "end_label": "End now" if window.is_in_progress(now) else "Cancel maintenance",
        "impact": cache(lambda: _visible_impact(request, _window_impact(window, now), window.start_at, now)),
        "nodes": cache(lambda: list(window.affected_nodes().order_by("name")[:200])),
        "events": cache(lambda: list(_events(window))),
        "form": MaintenanceEndForm(initial={"end_at": window.end_at}),
        "may_operate": request.user.has_perm(OPERATE_PERMISSION),
    }
    return render(request, "scheduling/maintenance.html", context)


def _get_window(cluster: str, number: int) -> Maintenance:
    return get_object_or_404(Maintenance.objects.select_related("cluster"), cluster__name=cluster, pk=number)


def _window_impact(window: Maintenance, now: datetime) -> MaintenanceImpact:
    return drain_impact.maintenance_impact(
        list(window.affected_nodes()),
        start=window.start_at,
        end=window.end_at,
        mode=window.mode,
        lead_time=window.lead_time,
        now=now,
        whole=window.whole_cluster,
    )


def _events(window: Maintenance) -> Any:
    rows = Event.objects.filter(cluster=window.cluster_id, type__startswith="maintenance.")
    return rows.filter(detail__maintenance=window.pk).order_by("-id")[:MAX_EVENTS]


@require_POST
@permission_required(OPERATE_PERMISSION, raise_exception=True)
def move_end(request: HttpRequest, cluster: str, number: int) -> HttpResponse:
    window, form = _get_window(cluster, number), MaintenanceEndForm(request.POST)
    if not form.is_valid():
        messages.error(request, f"Nothing was changed: {' '.join(str(errors[0]) for errors in form.errors.values())}")
        return redirect("maintenance", cluster, number)
    data = form.cleaned_data
    try:
        maintenance_actions.change_maintenance_end(
            window, data["end_at"], author=Author.of(request), why=data["why"], now=clock.now()
        )
    except InvalidField as error:
        messages.error(request, f"Nothing was changed: the end {error.why}.")
    except StateConflict as error:
        messages.error(request, f"Nothing was changed: {error}.")
    else:
        messages.success(request, f"{window} now ends on {window.end_at:%Y-%m-%d %H:%M} UTC.")
    return redirect("maintenance", cluster, number)


@require_POST
@permission_required(OPERATE_PERMISSION, raise_exception=True)
def cancel(request: HttpRequest, cluster: str, number: int) -> HttpResponse:
    window, why = _get_window(cluster, number), posted_text(request)
    try:
        maintenance_actions.cancel(window, author=Author.of(request), why=why, now=clock.now())
    except StateConflict as error:
        messages.error(request, f"Nothing was changed: {error}.")
        return redirect("maintenance", cluster, number)
    messages.success(
        request, f"{window} was cancelled. Nodes that it closed accept jobs again from the next scheduling turn."
    )
    return redirect(f"{reverse('queue')}?cluster={window.cluster.name}")
