"""Settings of clusters: how each is reached, a test that explains what is wrong, and how far Acme goes on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from jobs import clock
from jobs.journal import Author
from jobs.models import Cluster, Event
from jobs.settings_views import plain
from scheduling import cluster_actions, probing
from scheduling.cluster_actions import ClusterError
from scheduling.probing import Asked, Step

MOST_CHANGES = 20
OPERATE, ADD, CHANGE = "jobs.operate_cluster", "jobs.add_cluster", "jobs.change_cluster"
REACHED_BY = ("address", "api_user", "token_file", "metrics_address", "log_root")


class ClusterForm(forms.ModelForm):
    class Meta:
        model = Cluster
        fields = ("title", *REACHED_BY, "mode", "checkpoint_signal", "burn_in_minutes", "gpu_hour_price")
        labels = {"api_user": "User there", "metrics_address": "Telemetry", "log_root": "Job logs"}

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        for name, value in cleaned.items():
            if isinstance(value, str):
                try:
                    plain(value)
                except forms.ValidationError as error:
                    self.add_error(name, error)
        return cleaned

    def columns(self) -> dict[str, Any]:
        said = {name: self.cleaned_data[name] for name in self.Meta.fields if name in self.cleaned_data}
        # A number left out stays, but for the price: without one there is none
        return {name: value for name, value in said.items() if value is not None or name == "gpu_hour_price"}

    def asked(self) -> Asked:
        return Asked(**{name: self.cleaned_data[name] for name in REACHED_BY})


class NewClusterForm(ClusterForm):
    class Meta(ClusterForm.Meta):
        fields = ("name", *ClusterForm.Meta.fields)  # type: ignore[assignment]


def _may(request: HttpRequest, *any_of: str) -> None:
    if not any(request.user.has_perm(one) for one in any_of):
        raise PermissionDenied


@require_safe
def clusters(request: HttpRequest) -> HttpResponse:
    _may(request, OPERATE, ADD, CHANGE)
    now = clock.now()
    rows = [(row, row.is_silent(now)) for row in Cluster.objects.all()]
    return render(request, "settings/clusters.html", {"now": now, "rows": rows})


@require_http_methods(["GET", "HEAD", "POST"])
def add(request: HttpRequest) -> HttpResponse:
    """`do=test` tries what the form says; anything else enters it, whether it answers or not: it may come up later."""
    _may(request, ADD)
    form = NewClusterForm(request.POST or None)
    if request.method == "POST" and form.is_valid() and request.POST.get("do") != "test":
        columns = form.columns()
        name = columns.pop("name")
        try:
            cluster_actions.add(name, columns, author=Author.of(request))
        except ClusterError as error:
            form.add_error("name", str(error).capitalize() + ".")
        else:
            messages.success(request, f"{name} is entered; its nodes appear with the first look, within seconds.")
            return redirect("cluster", name)
    return _page(request, form, None)


@require_http_methods(["GET", "HEAD", "POST"])
def cluster(request: HttpRequest, name: str) -> HttpResponse:
    _may(request, OPERATE, CHANGE)
    row = get_object_or_404(Cluster, name=name)
    stored = {field: getattr(row, field) for field in ClusterForm.Meta.fields}
    form = ClusterForm(request.POST or None, initial=stored)
    if request.method == "POST" and form.is_valid() and request.POST.get("do") != "test":
        _may(request, CHANGE)
        try:
            changed = cluster_actions.change(row, form.columns(), author=Author.of(request))
        except ClusterError as error:
            messages.error(request, f"Nothing was changed: {error}.")
        else:
            messages.success(request, f"Changed: {', '.join(changed)}. It counts from the next turn on.")
        return redirect("cluster", row.name)
    if request.method == "POST" and form.is_valid() and not request.user.has_perm(CHANGE):
        form = ClusterForm(stored)  # who may only operate tries what is written down, and nothing of their own
        form.is_valid()
    return _page(request, form, row)


def _page(request: HttpRequest, form: ClusterForm, row: Cluster | None) -> HttpResponse:
    now = clock.now()
    steps: Sequence[Step] = probing.probe(form.asked(), now) if _is_test(request, form) else ()
    told = Event.objects.filter(cluster=row, what__in=("cluster.added", "cluster.changed"))
    context = {
        "now": now,
        "cluster": row,
        "silent": bool(row and row.is_silent(now)),
        "form": form,
        "steps": steps,
        "works": probing.works(steps),
        "may_change": request.user.has_perm(CHANGE if row else ADD),
        "events": list(told.order_by("-id")[:MOST_CHANGES]) if row else [],
    }
    return render(request, "settings/cluster.html", context, status=422 if form.errors else 200)


def _is_test(request: HttpRequest, form: ClusterForm) -> bool:
    return request.method == "POST" and request.POST.get("do") == "test" and not form.errors
