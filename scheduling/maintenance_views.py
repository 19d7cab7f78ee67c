"""Maintenance on pages: asked, shown with what it means, confirmed; then its end may be moved, or it is called off."""

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

from jobs import clock, consequences, maintenance_actions
from jobs.consequences import Ahead, Touched
from jobs.journal import Author
from jobs.maintenance_actions import MaintenanceError
from jobs.models import Cluster, Event, Job, Maintenance
from jobs.pages import MOST_EVENTS, said
from scheduling.engine.blockers import capital
from scheduling.forms import EndForm, MaintenanceForm

MAY_OPERATE = "jobs.operate_cluster"
MOST_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class Shown:
    row: Maintenance
    phase: str
    nodes: int
    closed: int


def shown(cluster: Cluster, now: datetime) -> list[Shown]:
    rows = Maintenance.objects.open().filter(cluster=cluster).select_related("cluster")[:MOST_SHOWN]
    return [
        Shown(row=row, phase=row.phase(now), nodes=row.covered().count(), closed=row.closed.count()) for row in rows
    ]


@dataclass(frozen=True, kw_only=True)
class Meant:
    """What it means, to somebody who may not know every job."""

    ahead: Ahead
    running: list[Touched]
    hidden: int


def _meant(request: HttpRequest, ahead: Ahead) -> Meant:
    ids = [one.job.pk for one in ahead.running]
    visible = set(Job.objects.visible_to(request.user).filter(pk__in=ids).values_list("pk", flat=True))
    mine = [one for one in ahead.running if one.job.pk in visible]
    return Meant(ahead=ahead, running=mine, hidden=len(ids) - len(mine))


@require_http_methods(["GET", "HEAD", "POST"])
@permission_required(MAY_OPERATE, raise_exception=True)
def declare(request: HttpRequest, cluster: str) -> HttpResponse:
    """Nothing is declared before what it means was shown for exactly this."""
    row, now = get_object_or_404(Cluster, name=cluster), clock.now()
    form = MaintenanceForm(request.POST or None)
    meant, mark = None, ""
    if request.method == "POST" and form.is_valid():
        mark = _mark(form)
        try:
            meant = _meant(request, maintenance_actions.ahead(row, form.wanted(now), now))
            if request.POST.get("confirm") == mark:
                window = maintenance_actions.declare(row, form.wanted(now), author=Author.of(request), now=now)
                messages.success(request, f"{window} is declared: {meant.ahead.effect}")
                return redirect("maintenance", row.name, window.pk)
        except MaintenanceError as error:
            form.add_error(error.field if error.field in form.fields else None, f"{capital(str(error))}.")
    context = {"now": now, "cluster": row, "form": form, "meant": meant if not form.errors else None, "mark": mark}
    return render(request, "scheduling/declare.html", context, status=400 if form.errors else 200)


def _mark(form: MaintenanceForm) -> str:
    """What was asked when it was shown; who changes a field afterwards is shown anew."""
    return "|".join(str(form.cleaned_data[name]) for name in form.fields)


@require_safe
def maintenance(request: HttpRequest, cluster: str, number: int) -> HttpResponse:
    window, now = _window(cluster, number), clock.now()
    context = {
        "now": now,
        "window": window,
        "cluster": window.cluster,
        "phase": window.phase(now),
        "meant": cache(lambda: _meant(request, _ahead(window, now))),
        "nodes": cache(lambda: list(window.covered().order_by("name")[:200])),
        "events": cache(lambda: list(_events(window))),
        "form": EndForm(initial={"end_at": window.end_at}),
        "may_operate": request.user.has_perm(MAY_OPERATE),
    }
    return render(request, "scheduling/maintenance.html", context)


def _window(cluster: str, number: int) -> Maintenance:
    return get_object_or_404(Maintenance.objects.select_related("cluster"), cluster__name=cluster, pk=number)


def _ahead(window: Maintenance, now: datetime) -> Ahead:
    return consequences.of_maintenance(
        list(window.covered()),
        start=window.start_at,
        end=window.end_at,
        mode=window.mode,
        lead=window.lead,
        now=now,
        whole=window.whole_cluster,
    )


def _events(window: Maintenance) -> Any:
    rows = Event.objects.filter(cluster=window.cluster_id, what__startswith="maintenance.")
    return rows.filter(detail__maintenance=window.pk).order_by("-id")[:MOST_EVENTS]


@require_POST
@permission_required(MAY_OPERATE, raise_exception=True)
def move_end(request: HttpRequest, cluster: str, number: int) -> HttpResponse:
    window, form = _window(cluster, number), EndForm(request.POST)
    if not form.is_valid():
        messages.error(request, f"Nothing was changed: {' '.join(str(one[0]) for one in form.errors.values())}")
        return redirect("maintenance", cluster, number)
    given = form.cleaned_data
    try:
        maintenance_actions.move_end(
            window, given["end_at"], author=Author.of(request), why=given["why"], now=clock.now()
        )
    except MaintenanceError as error:
        messages.error(request, f"Nothing was changed: {'the end ' if error.field else ''}{error}.")
    else:
        messages.success(request, f"{window} ends {window.end_at:%d %b %Y %H:%M} UTC.")
    return redirect("maintenance", cluster, number)


@require_POST
@permission_required(MAY_OPERATE, raise_exception=True)
def cancel(request: HttpRequest, cluster: str, number: int) -> HttpResponse:
    window, why = _window(cluster, number), said(request)
    try:
        maintenance_actions.cancel(window, author=Author.of(request), why=why, now=clock.now())
    except MaintenanceError as error:
        messages.error(request, f"Nothing was changed: {error}.")
        return redirect("maintenance", cluster, number)
    messages.success(request, f"{window} is called off; nodes that it closed take work again with the next turn.")
    return redirect(f"{reverse('queue')}?cluster={window.cluster.name}")
