"""Settings of clusters: how each is reached, a test that explains what is wrong, and how far Acme goes on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from jobs import clock
from jobs.journal import Author
from jobs.models import Cluster, Event, Mode
from jobs.models.cluster import DRIVE_MEANS, SubmitAs
from jobs.settings_views import plain
from scheduling import circuit_breaker, cluster_actions, probing
from scheduling.cluster_actions import CONNECTION, BadCluster, ClusterError, ConnectionTests
from scheduling.probing import Asked, Step

MOST_CHANGES = 20
OPERATE, ADD, CHANGE = "jobs.operate_cluster", "jobs.add_cluster", "jobs.change_cluster"


class ClusterForm(forms.ModelForm):
    """The two confirmations are shown once they are needed: the first save then explains what it would mean."""

    confirm_drive = forms.BooleanField(required=False, label="Yes, drive this cluster")
    confirm_address = forms.BooleanField(required=False, label="Yes, send the token to the new address")

    class Meta:
        model = Cluster
        fields = (
            *("title", *CONNECTION, "checkpoint_root"),
            *("mode", "checkpoint_signal", "burn_in_minutes", "gpu_hour_price"),
        )
        labels = {
            "api_user": "User there",
            "submit_as": "Jobs run as",
            "user_token_directory": "Tokens of users",
            "metrics_address": "Telemetry",
            "log_root": "Job logs",
            "checkpoint_root": "Checkpoints",
        }

    def __init__(self, *given: Any, row: Cluster | None = None, **more: Any) -> None:
        super().__init__(*given, instance=copy(row) if row else None, **more)
        self.row = row
        self.fields["submit_as"].required = False
        for name in CONNECTION if row and row.is_bundled else ():
            self.fields[name].disabled = True
            self.fields[name].help_text = "Acme sets this itself at each start."

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        for name, value in cleaned.items():
            if isinstance(value, str):
                try:
                    plain(value)
                except forms.ValidationError as error:
                    self.add_error(name, error)
        return cleaned

    def clean_submit_as(self) -> str:
        """Left out, it stays."""
        return self.cleaned_data["submit_as"] or (self.row.submit_as if self.row else str(SubmitAs.SERVICE))

    def ask_for_confirmation(self) -> None:
        """Adds an error for each confirmation that is missing; a test of the connection needs none."""
        given = self.cleaned_data
        if given.get("mode") == Mode.DRIVE and (self.row is None or self.row.mode != Mode.DRIVE):
            self._confirm("confirm_drive", DRIVE_MEANS)
        token, address = given.get("token_file"), given.get("address")
        if self.row and token and token == self.row.token_file and address != self.row.address:
            self._confirm("confirm_address", f"The token in {token} would be sent to {address}.")

    def _confirm(self, name: str, meaning: str) -> None:
        if not self.cleaned_data[name]:
            self.add_error(name, meaning)

    def shown_fields(self) -> list[forms.BoundField]:
        return [one for one in self if not one.name.startswith("confirm_") or one.errors or one.value()]

    def columns(self) -> dict[str, Any]:
        said = {name: self.cleaned_data[name] for name in self.Meta.fields if name in self.cleaned_data}
        # A number left out stays, but for the price: without one there is none
        return {name: value for name, value in said.items() if value is not None or name == "gpu_hour_price"}

    def refuse(self, error: ClusterError) -> None:
        if isinstance(error, BadCluster):
            for name, said in error.errors.items():
                self.add_error(name if name in self.fields else None, said)
        else:
            self.add_error("name" if "name" in self.fields else None, str(error).capitalize() + ".")

    def asked(self) -> Asked:
        connection = {name: self.cleaned_data[name] for name in CONNECTION}
        return Asked(**connection, is_bundled=bool(self.row and self.row.is_bundled))


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
    if _is_save(request, form):
        columns = form.columns()
        name = columns.pop("name")
        try:
            cluster_actions.add(name, columns, author=Author.of(request))
        except ClusterError as error:
            form.refuse(error)
        else:
            messages.success(request, f"{name} is entered; its nodes appear with the first look, within seconds.")
            return redirect("cluster", name)
    return _page(request, form, None)


@require_http_methods(["GET", "HEAD", "POST"])
def cluster(request: HttpRequest, name: str) -> HttpResponse:
    _may(request, OPERATE, CHANGE)
    row = get_object_or_404(Cluster, name=name)
    form = ClusterForm(request.POST or None, row=row)
    if request.method == "POST" and request.POST.get("do") == "test" and not request.user.has_perm(CHANGE):
        # Operators test what is saved, and nothing of their own
        return _page(request, ClusterForm(row=row), row, lambda: Asked.of(row))
    if request.method == "POST" and request.POST.get("do") != "test":
        _may(request, CHANGE)
    if _is_save(request, form):
        try:
            changed = cluster_actions.change(row, form.columns(), author=Author.of(request))
        except BadCluster as bad:
            form.refuse(bad)
            return _page(request, form, row)
        except ClusterError as error:
            messages.error(request, f"Nothing was changed: {error}.")
        else:
            messages.success(request, f"Changed: {', '.join(changed)}. It counts from the next turn on.")
        return redirect("cluster", row.name)
    return _page(request, form, row)


def _is_save(request: HttpRequest, form: ClusterForm) -> bool:
    if request.method != "POST" or request.POST.get("do") == "test" or not form.is_valid():
        return False
    form.ask_for_confirmation()
    return not form.errors


def _page(
    request: HttpRequest, form: ClusterForm, row: Cluster | None, wanted: Callable[[], Asked] | None = None
) -> HttpResponse:
    now = clock.now()
    is_test = request.method == "POST" and request.POST.get("do") == "test"
    steps = _tested(request, form, row, wanted or form.asked, now) if is_test else ()
    told = Event.objects.filter(cluster=row, what__in=("cluster.added", "cluster.changed"))
    context = {
        "now": now,
        "cluster": row,
        "silent": bool(row and row.is_silent(now)),
        "failing": bool(row and row.is_failing(now)),
        "circuits": circuit_breaker.open_circuits(row) if row else (),
        "form": form,
        "steps": steps,
        "works": probing.works(steps),
        "may_change": request.user.has_perm(CHANGE if row else ADD),
        "events": list(told.order_by("-id")[:MOST_CHANGES]) if row else [],
    }
    return render(request, "settings/cluster.html", context, status=422 if form.errors else 200)


def _tested(
    request: HttpRequest, form: ClusterForm, row: Cluster | None, wanted: Callable[[], Asked], now: datetime
) -> Sequence[Step]:
    """Nothing where the form is wrong, where it would send a token elsewhere, or after too many tests."""
    if form.is_bound and not form.is_valid():
        return ()
    asked = wanted()
    try:
        cluster_actions.refuse_token_elsewhere(asked.address, asked.tokens)
    except BadCluster as bad:
        form.refuse(bad)
        return ()
    if not ConnectionTests().allow_request(request, None):
        messages.error(request, f"At most {ConnectionTests.most} connection tests per minute. Try again in a minute.")
        return ()
    return cluster_actions.test_connection(asked, now, row)
