"""Pages of cluster settings: connection, connection test and control mode."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from acmeweb.common.errors import InvalidField, StateConflict
from jobs.actions.journal import Author
from jobs.core.lifecycle import StatusBadge
from jobs.models import Cluster, ClusterMode, Event, SleepMode, clock
from jobs.models.cluster import CONNECTION_FIELDS, DRIVE_EXPLANATION, SubmitIdentity
from jobs.pages.settings import printable_text
from scheduling.actions import clusters as cluster_actions
from scheduling.actions.clusters import ConnectionTests
from scheduling.clusters import circuit_breaker, connection_test
from scheduling.clusters.connection_test import ConnectionSettings, ConnectionTestStep
from scheduling.models import PowerCapMode
from scheduling.pages.gpu_speeds import speed_context
from scheduling.power.budget_states import budget_states
from scheduling.power.loops.sleep_webhooks import sleep_webhook_secret
from scheduling.power.pages.budgets import budget_places

MAX_CHANGES_SHOWN = 20
NULLABLE_COLUMNS = (
    "gpu_hour_price",
    "kwh_price",
    "co2_g_per_kwh",
    "min_preemptions_per_day",
    "max_preemptions_per_day",
)
OPERATE_PERMISSION, ADD_PERMISSION, CHANGE_PERMISSION = (
    "jobs.operate_cluster",
    "jobs.add_cluster",
    "jobs.change_cluster",
)


class IndentedJson(json.JSONEncoder):
    """Shows an object in lines that people can edit."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"indent": 2})


SETTING_GROUPS = (
    ("Connection and mode", ("title", *CONNECTION_FIELDS, "checkpoint_root", "mode", "checkpoint_signal")),
    ("Prices", ("gpu_hour_price", "kwh_price", "co2_g_per_kwh")),
    ("Scheduling", ("usage_half_life_hours", "gpu_share_kinds", "burn_in_minutes")),
    (
        "Preemption",
        (
            *("min_exempt_minutes", "max_exempt_minutes", "checkpoint_clause"),
            *("min_preemptions_per_day", "max_preemptions_per_day"),
        ),
    ),
    ("Deadlines", ("unlikely_deadlines", "min_deadline_percent")),
    (
        "Sleeping nodes",
        (
            *("sleep_mode", "sleep_reserve_nodes", "min_awake_minutes", "min_asleep_minutes", "max_wakes_per_day"),
            *("boot_minutes", "sleep_webhook"),
        ),
    ),
)
CONFIRMATIONS = ("confirm_drive", "confirm_address")


class ClusterSettingsForm(forms.ModelForm):
    """The cluster settings. A save that needs a confirmation is refused first, with the consequence and a checkbox."""

    confirm_drive = forms.BooleanField(required=False, label="Switch this cluster to mode drive")
    confirm_address = forms.BooleanField(required=False, label="Send the token to the new address")

    class Meta:
        model = Cluster
        fields = [name for _, names in SETTING_GROUPS for name in names]
        widgets = {
            "workload_owners": forms.Textarea(attrs={"rows": 3}),
            "pod_template": forms.Textarea(attrs={"rows": 8, "spellcheck": "false"}),
        }
        labels = {
            "api_user": "API user",
            "submit_as": "Jobs run as",
            "user_token_directory": "User token directory",
            "metrics_address": "Telemetry address",
            "log_root": "Job log directory",
            "workload_owners": "Users and teams of workloads",
            "pod_template": "Pods of jobs",
            "checkpoint_root": "Checkpoint directory",
        }

    def __init__(self, *args: Any, row: Cluster | None = None, **kwargs: Any) -> None:
        # A copy: validation assigns the submitted values to the instance
        super().__init__(*args, instance=copy(row) if row else None, **kwargs)
        self.row = row
        self.fields["submit_as"].required = False
        self.fields["sleep_mode"].required = False
        self.fields["pod_template"].encoder = IndentedJson
        for name in CONNECTION_FIELDS if row and row.is_bundled else ():
            self.fields[name].disabled = True
            self.fields[name].help_text = "Set by Acme at each start."

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
        """Keep the current value if the field was not submitted."""
        return self.cleaned_data["submit_as"] or (self.row.submit_as if self.row else str(SubmitIdentity.SERVICE))

    def clean_sleep_mode(self) -> str:
        """Keep the current value if the field was not submitted."""
        return self.cleaned_data["sleep_mode"] or (self.row.sleep_mode if self.row else str(SleepMode.OFF))

    def clean_workload_owners(self) -> dict[str, Any]:
        return self._submitted_object("workload_owners")

    def clean_pod_template(self) -> dict[str, Any]:
        return self._submitted_object("pod_template")

    def _submitted_object(self, name: str) -> dict[str, Any]:
        """The submitted value; the current one if the field was not submitted."""
        if name not in self.data:
            return getattr(self.row, name) if self.row else {}
        return self.cleaned_data[name] or {}

    def require_confirmations(self) -> None:
        """Add an error for each missing confirmation. Connection tests do not need any."""
        data = self.cleaned_data
        if data.get("mode") == ClusterMode.DRIVE and (self.row is None or self.row.mode != ClusterMode.DRIVE):
            self._require_confirmation("confirm_drive", DRIVE_EXPLANATION)
        token, address = data.get("token_file"), data.get("address")
        if self.row and token and token == self.row.token_file and address != self.row.address:
            self._require_confirmation("confirm_address", f"The token in {token} would be sent to {address}.")

    def _require_confirmation(self, name: str, consequence: str) -> None:
        if not self.cleaned_data[name]:
            self.add_error(name, consequence)

    def groups(self) -> list[tuple[str, list[forms.BoundField]]]:
        """The titles of the panels with their fields. A confirmation is shown when it is needed, below the mode."""
        names = {title: list(names) for title, names in SETTING_GROUPS}
        first = names[SETTING_GROUPS[0][0]]
        first[:0] = ["name"] if "name" in self.fields else []
        first += [name for name in CONFIRMATIONS if self[name].errors or self[name].value()]
        return [(title, [self[name] for name in group]) for title, group in names.items()]

    def columns(self) -> dict[str, Any]:
        """Return the columns to save."""
        values = {name: self.cleaned_data[name] for name in self.Meta.fields if name in self.cleaned_data}
        # An empty number keeps the current value, unless empty is a value of its own: no price, no limit
        return {name: value for name, value in values.items() if value is not None or name in NULLABLE_COLUMNS}

    def refuse(self, error: InvalidField | StateConflict) -> None:
        if isinstance(error, InvalidField):
            for name, sentences in error.by_field.items():
                self.add_error(name if name in self.fields else None, sentences)
        else:
            self.add_error("name" if "name" in self.fields else None, str(error).capitalize() + ".")

    def connection_settings(self) -> ConnectionSettings:
        values = {name: self.cleaned_data[name] for name in CONNECTION_FIELDS}
        return ConnectionSettings(**values, is_bundled=bool(self.row and self.row.is_bundled))


class NewClusterForm(ClusterSettingsForm):
    class Meta(ClusterSettingsForm.Meta):
        fields = ["name", *ClusterSettingsForm.Meta.fields]


def _require_permission(request: HttpRequest, *any_of: str) -> None:
    if not any(request.user.has_perm(name) for name in any_of):
        raise PermissionDenied


def contact_badge(cluster: Cluster, now: datetime) -> StatusBadge:
    """Whether the cluster answers, or when it last did."""
    if not cluster.is_silent(now):
        return StatusBadge(tone="good", icon="✓", label="yes")
    return StatusBadge(tone="bad", icon="⚡", label="never", since=cluster.last_contact_at)


@dataclass(frozen=True, kw_only=True)
class ClusterRow:
    cluster: Cluster
    contact: StatusBadge

    @property
    def problem(self) -> str:
        return self.cluster.problem

    @property
    def problem_class(self) -> str:
        return "c-why" if self.problem else "c-why none"


@require_safe
def clusters(request: HttpRequest) -> HttpResponse:
    _require_permission(request, OPERATE_PERMISSION, ADD_PERMISSION, CHANGE_PERMISSION)
    now = clock.now()
    rows = [ClusterRow(cluster=row, contact=contact_badge(row, now)) for row in Cluster.objects.all()]
    return render(request, "settings/clusters.html", {"now": now, "rows": rows})


@require_http_methods(["GET", "HEAD", "POST"])
def add(request: HttpRequest) -> HttpResponse:
    """Add a cluster, or with `do=test` only test the connection. An unreachable cluster can be added: it may come up
    later."""
    _require_permission(request, ADD_PERMISSION)
    form = NewClusterForm(request.POST or None)
    if _is_save(request, form):
        columns = form.columns()
        name = columns.pop("name")
        try:
            cluster_actions.add(name, columns, author=Author.of(request))
        except (InvalidField, StateConflict) as error:
            form.refuse(error)
        else:
            messages.success(request, f"{name} was added. Its nodes appear within seconds.")
            return redirect("cluster", name)
    return _render_cluster_page(request, form, None)


@require_http_methods(["GET", "HEAD", "POST"])
def cluster(request: HttpRequest, name: str) -> HttpResponse:
    _require_permission(request, OPERATE_PERMISSION, CHANGE_PERMISSION)
    row = get_object_or_404(Cluster, name=name)
    form = ClusterSettingsForm(request.POST or None, row=row)
    if request.method == "POST" and request.POST.get("do") == "test" and not request.user.has_perm(CHANGE_PERMISSION):
        # Operators without the change permission may only test the saved connection
        return _render_cluster_page(request, ClusterSettingsForm(row=row), row, lambda: ConnectionSettings.of(row))
    if request.method == "POST" and request.POST.get("do") != "test":
        _require_permission(request, CHANGE_PERMISSION)
    if _is_save(request, form):
        try:
            changed = cluster_actions.change(row, form.columns(), author=Author.of(request))
        except InvalidField as error:
            form.refuse(error)
            return _render_cluster_page(request, form, row)
        except StateConflict as error:
            messages.error(request, f"Nothing was changed: {error}.")
        else:
            messages.success(request, f"Changed: {', '.join(changed)}. Takes effect in the next scheduling turn.")
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
    settings: Callable[[], ConnectionSettings] | None = None,
) -> HttpResponse:
    now = clock.now()
    is_test = request.method == "POST" and request.POST.get("do") == "test"
    steps = _run_form_test(request, form, row, settings or form.connection_settings, now) if is_test else ()
    events = Event.objects.filter(cluster=row, type__in=("cluster.added", "cluster.changed"))
    context = {
        "now": now,
        "cluster": row,
        "is_silent": bool(row and row.is_silent(now)),
        "is_failing": bool(row and row.is_failing(now)),
        "circuits": circuit_breaker.open_circuits(row) if row else (),
        "form": form,
        "steps": steps,
        "works": connection_test.all_steps_passed(steps),
        "sleep_secret": sleep_webhook_secret(row) if row and row.sleep_webhook else "",
        **(_power_context(request, row, now) | speed_context(row) if row else {}),
        "may_change": request.user.has_perm(CHANGE_PERMISSION if row else ADD_PERMISSION),
        "events": list(events.order_by("-id")[:MAX_CHANGES_SHOWN]) if row else [],
    }
    return render(request, "settings/cluster.html", context, status=422 if form.errors else 200)


def _power_context(request: HttpRequest, row: Cluster, now: datetime) -> dict[str, Any]:
    may_operate = request.user.has_perm(OPERATE_PERMISSION)
    return {
        "power_states": budget_states(row, now),
        "power_places": budget_places(row) if may_operate else (),
        "power_cap_modes": PowerCapMode.choices,
        "may_operate": may_operate,
    }


def _run_form_test(
    request: HttpRequest,
    form: ClusterSettingsForm,
    row: Cluster | None,
    settings: Callable[[], ConnectionSettings],
    now: datetime,
) -> Sequence[ConnectionTestStep]:
    """Return the steps of the connection test. Return none, with an error on the page, if the form is invalid, if a
    saved token would be sent to another address, or after too many tests."""
    if form.is_bound and not form.is_valid():
        return ()
    connection = settings()
    try:
        cluster_actions.refuse_token_for_other_address(connection.address, connection.tokens)
    except InvalidField as error:
        form.refuse(error)
        return ()
    if not ConnectionTests().allow_request(request, None):
        messages.error(request, f"At most {ConnectionTests.most} connection tests per minute. Try again in a minute.")
        return ()
    return cluster_actions.run_connection_test(connection, now, row)
