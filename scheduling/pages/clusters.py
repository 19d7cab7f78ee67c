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

from jobs.actions.journal import Author
from jobs.models import Cluster, ClusterMode, Event, clock
from jobs.models.cluster import DRIVE_EXPLANATION, SubmitIdentity
from jobs.pages.settings import printable_text
from scheduling.actions import clusters as cluster_actions
from scheduling.actions.clusters import CONNECTION_COLUMNS, ClusterError, ConnectionTests, InvalidClusterFields
from scheduling.clusters import circuit_breaker, connection_test
from scheduling.clusters.connection_test import ConnectionSettings, ConnectionTestStep

MAX_CHANGES_SHOWN = 20
OPERATE_PERMISSION, ADD_PERMISSION, CHANGE_PERMISSION = (
    "jobs.operate_cluster",
    "jobs.add_cluster",
    "jobs.change_cluster",
)


class ClusterSettingsForm(forms.ModelForm):
    """The two confirmations are shown once they are needed: the first save then explains what it would mean."""

    confirm_drive = forms.BooleanField(required=False, label="Yes, drive this cluster")
    confirm_address = forms.BooleanField(required=False, label="Yes, send the token to the new address")

    class Meta:
        model = Cluster
        fields = (
            *("title", *CONNECTION_COLUMNS, "checkpoint_root"),
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
        for name in CONNECTION_COLUMNS if row and row.is_bundled else ():
            self.fields[name].disabled = True
            self.fields[name].help_text = "Acme sets this itself at each start."

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        for name, value in cleaned.items():
            if isinstance(value, str):
                try:
                    printable_text(value)
                except forms.ValidationError as error:
                    self.add_error(name, error)
        return cleaned

    def clean_submit_as(self) -> str:
        """Left out, it stays."""
        return self.cleaned_data["submit_as"] or (self.row.submit_as if self.row else str(SubmitIdentity.SERVICE))

    def require_confirmations(self) -> None:
        """Adds an error for each confirmation that is missing; a test of the connection needs none."""
        given = self.cleaned_data
        if given.get("mode") == ClusterMode.DRIVE and (self.row is None or self.row.mode != ClusterMode.DRIVE):
            self._require_confirmation("confirm_drive", DRIVE_EXPLANATION)
        token, address = given.get("token_file"), given.get("address")
        if self.row and token and token == self.row.token_file and address != self.row.address:
            self._require_confirmation("confirm_address", f"The token in {token} would be sent to {address}.")

    def _require_confirmation(self, name: str, meaning: str) -> None:
        if not self.cleaned_data[name]:
            self.add_error(name, meaning)

    def shown_fields(self) -> list[forms.BoundField]:
        return [one for one in self if not one.name.startswith("confirm_") or one.errors or one.value()]

    def columns(self) -> dict[str, Any]:
        said = {name: self.cleaned_data[name] for name in self.Meta.fields if name in self.cleaned_data}
        # A number left out stays, but for the price: without one there is none
        return {name: value for name, value in said.items() if value is not None or name == "gpu_hour_price"}

    def refuse(self, error: ClusterError) -> None:
        if isinstance(error, InvalidClusterFields):
            for name, said in error.errors.items():
                self.add_error(name if name in self.fields else None, said)
        else:
            self.add_error("name" if "name" in self.fields else None, str(error).capitalize() + ".")

    def asked(self) -> ConnectionSettings:
        connection = {name: self.cleaned_data[name] for name in CONNECTION_COLUMNS}
        return ConnectionSettings(**connection, is_bundled=bool(self.row and self.row.is_bundled))


class NewClusterForm(ClusterSettingsForm):
    class Meta(ClusterSettingsForm.Meta):
        fields = ("name", *ClusterSettingsForm.Meta.fields)  # type: ignore[assignment]


def _require_permission(request: HttpRequest, *any_of: str) -> None:
    if not any(request.user.has_perm(one) for one in any_of):
        raise PermissionDenied


@require_safe
def clusters(request: HttpRequest) -> HttpResponse:
    _require_permission(request, OPERATE_PERMISSION, ADD_PERMISSION, CHANGE_PERMISSION)
    now = clock.now()
    rows = [(row, row.is_silent(now)) for row in Cluster.objects.all()]
    return render(request, "settings/clusters.html", {"now": now, "rows": rows})


@require_http_methods(["GET", "HEAD", "POST"])
def add(request: HttpRequest) -> HttpResponse:
    """`do=test` tries what the form says; anything else enters it, whether it answers or not: it may come up later."""
    _require_permission(request, ADD_PERMISSION)
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
    return _render_cluster_page(request, form, None)


@require_http_methods(["GET", "HEAD", "POST"])
def cluster(request: HttpRequest, name: str) -> HttpResponse:
    _require_permission(request, OPERATE_PERMISSION, CHANGE_PERMISSION)
    row = get_object_or_404(Cluster, name=name)
    form = ClusterSettingsForm(request.POST or None, row=row)
    if request.method == "POST" and request.POST.get("do") == "test" and not request.user.has_perm(CHANGE_PERMISSION):
        # Operators test what is saved, and nothing of their own
        return _render_cluster_page(request, ClusterSettingsForm(row=row), row, lambda: ConnectionSettings.of(row))
    if request.method == "POST" and request.POST.get("do") != "test":
        _require_permission(request, CHANGE_PERMISSION)
    if _is_save(request, form):
        try:
            changed = cluster_actions.change(row, form.columns(), author=Author.of(request))
        except InvalidClusterFields as bad:
            form.refuse(bad)
            return _render_cluster_page(request, form, row)
        except ClusterError as error:
            messages.error(request, f"Nothing was changed: {error}.")
        else:
            messages.success(request, f"Changed: {', '.join(changed)}. It counts from the next turn on.")
        return redirect("cluster", row.name)
    return _render_cluster_page(request, form, row)


def _is_save(request: HttpRequest, form: ClusterSettingsForm) -> bool:
    if request.method != "POST" or request.POST.get("do") == "test" or not form.is_valid():
        return False
    form.require_confirmations()
    return not form.errors


def _render_cluster_page(
    request: HttpRequest,
    form: ClusterSettingsForm,
    row: Cluster | None,
    wanted: Callable[[], ConnectionSettings] | None = None,
) -> HttpResponse:
    now = clock.now()
    is_test = request.method == "POST" and request.POST.get("do") == "test"
    steps = _run_form_test(request, form, row, wanted or form.asked, now) if is_test else ()
    told = Event.objects.filter(cluster=row, what__in=("cluster.added", "cluster.changed"))
    context = {
        "now": now,
        "cluster": row,
        "silent": bool(row and row.is_silent(now)),
        "failing": bool(row and row.is_failing(now)),
        "circuits": circuit_breaker.open_circuits(row) if row else (),
        "form": form,
        "steps": steps,
        "works": connection_test.all_steps_passed(steps),
        "may_change": request.user.has_perm(CHANGE_PERMISSION if row else ADD_PERMISSION),
        "events": list(told.order_by("-id")[:MAX_CHANGES_SHOWN]) if row else [],
    }
    return render(request, "settings/cluster.html", context, status=422 if form.errors else 200)


def _run_form_test(
    request: HttpRequest,
    form: ClusterSettingsForm,
    row: Cluster | None,
    wanted: Callable[[], ConnectionSettings],
    now: datetime,
) -> Sequence[ConnectionTestStep]:
    """Nothing where the form is wrong, where it would send a token elsewhere, or after too many tests."""
    if form.is_bound and not form.is_valid():
        return ()
    asked = wanted()
    try:
        cluster_actions.refuse_token_for_other_address(asked.address, asked.tokens)
    except InvalidClusterFields as bad:
        form.refuse(bad)
        return ()
    if not ConnectionTests().allow_request(request, None):
        messages.error(request, f"At most {ConnectionTests.most} connection tests per minute. Try again in a minute.")
        return ()
    return cluster_actions.run_connection_test(asked, now, row)
