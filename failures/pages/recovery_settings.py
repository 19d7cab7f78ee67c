"""Settings of recovery: the mode by team, cluster and action, and who set it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from failures.models import permissions as failure_permissions
from failures.queries import spare_nodes
from failures.recovery.rules.remedies import CORDON_ACTIONS, RecoveryAction
from jobs.actions import recovery as recovery_actions
from jobs.actions.journal import Author
from jobs.core.lifecycle import StatusBadge
from jobs.models import Cluster, Event, RecoveryMode, Team, TeamRole, clock
from jobs.models.permissions import Caller
from jobs.web.form_fields import limit_to_administered_teams

MAX_CHANGES = 20
ACTION_CHOICES = [
    ("", "every action"),
    *((one.value, one.value) for one in RecoveryAction if one is not RecoveryAction.NOTHING),
]


class RecoveryModeForm(forms.Form):
    team = forms.ModelChoiceField(queryset=Team.objects.none(), required=False)
    cluster = forms.ModelChoiceField(queryset=Cluster.objects.all(), required=False, empty_label="every cluster")
    action = forms.ChoiceField(choices=ACTION_CHOICES, required=False)
    mode = forms.ChoiceField(choices=RecoveryMode.Reach.choices, initial=RecoveryMode.Reach.PROPOSE)

    def __init__(self, caller: Caller, *arguments: Any) -> None:
        super().__init__(*arguments)
        limit_to_administered_teams(self.fields["team"], caller)


def _may_change_mode(caller: Caller, row: RecoveryMode) -> bool:
    """Whether the caller may change this mode: team administrators for their team, operators for every team."""
    return caller.acts_for_all_teams or (row.team_id is not None and caller.has(TeamRole.ADMIN, row.team_id))


MODE_STYLES: dict[Any, tuple[str, str]] = {
    RecoveryMode.Reach.ACT: ("running", "▶"),
    RecoveryMode.Reach.PROPOSE: ("warn", "?"),
}


def mode_badge(mode: str) -> StatusBadge:
    tone, icon = MODE_STYLES.get(mode, ("quiet", "◌"))
    return StatusBadge(tone=tone, icon=icon, label=mode)


@dataclass(frozen=True, kw_only=True)
class RecoveryModeRow:
    """A mode as the page shows it. `note` says what else the mode of a team needs."""

    setting: RecoveryMode
    badge: StatusBadge
    note: str
    may_change: bool

    @classmethod
    def of(cls, setting: RecoveryMode, may_change: bool) -> RecoveryModeRow:
        drains = bool(setting.team_id) and setting.action in CORDON_ACTIONS
        note = "drains nodes, so an operator setting is required too" if drains else ""
        return cls(setting=setting, badge=mode_badge(setting.mode), note=note, may_change=may_change)


@require_safe
def recovery_modes(request: HttpRequest) -> HttpResponse:
    caller = failure_permissions.caller_of_user(request.user)
    return _render_modes(request, caller, RecoveryModeForm(caller))


def _render_modes(request: HttpRequest, caller: Caller, form: RecoveryModeForm) -> HttpResponse:
    modes = RecoveryMode.objects.select_related("team", "cluster")
    rows = list(modes.order_by("team__name", "cluster__name", "action"))
    events = Event.objects.filter(type="recovery.mode_changed").order_by("-id")
    context = {
        "now": clock.now(),
        "rows": [RecoveryModeRow.of(row, _may_change_mode(caller, row)) for row in rows],
        "reaches": [(str(mode), str(mode)) for mode in RecoveryMode.Reach.values],
        "form": form if caller.acts_for_all_teams or caller.teams(TeamRole.ADMIN).exists() else None,
        "events": list(events[:MAX_CHANGES]),
        "reserves": spare_nodes.spare_reserves(clock.now()),
        "confidence": f"{spare_nodes.CONFIDENCE:.0%}",
        "window": spare_nodes.WINDOW.days,
    }
    return render(request, "settings/recovery.html", context, status=422 if form.errors else 200)


def _mode_message(row: RecoveryMode) -> str:
    text = f"{row}. The mode applies from the next decision."
    return text[:1].upper() + text[1:]  # capitalize() would change the case of team and cluster names


@require_POST
def set_mode(request: HttpRequest) -> HttpResponse:
    caller = failure_permissions.caller_of_user(request.user)
    form = RecoveryModeForm(caller, request.POST)
    if not form.is_valid():
        return _render_modes(request, caller, form)
    requested = form.cleaned_data
    row = recovery_actions.set_recovery_mode(
        requested["mode"],
        author=Author.of(request),
        team_id=requested["team"].pk if requested["team"] else None,
        cluster_id=requested["cluster"].pk if requested["cluster"] else None,
        action=requested["action"],
    )
    messages.success(request, _mode_message(row))
    return redirect("recovery-modes")


@require_POST
def change_mode(request: HttpRequest, number: int) -> HttpResponse:
    """Change the mode of an existing setting; `none` removes it."""
    caller = failure_permissions.caller_of_user(request.user)
    row = get_object_or_404(RecoveryMode.objects.select_related("team", "cluster"), pk=number)
    if not _may_change_mode(caller, row):
        raise PermissionDenied
    mode = request.POST.get("mode", "")
    if mode == "none":
        recovery_actions.clear_recovery_mode(row, author=Author.of(request))
        messages.success(request, "The setting was removed. The more general setting applies.")
    elif mode in RecoveryMode.Reach.values:
        where = {"team_id": row.team_id, "cluster_id": row.cluster_id, "action": row.action}
        changed = recovery_actions.set_recovery_mode(mode, author=Author.of(request), **where)
        messages.success(request, _mode_message(changed))
    else:
        messages.error(request, "Nothing was changed. The mode must be observe, propose or act.")
    return redirect("recovery-modes")
