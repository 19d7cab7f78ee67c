"""The pages of recovery: decisions on the page of their incident, their answers and replay, overrides, and settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from acmeweb.common.errors import StateConflict
from failures.models import Decision, DecisionState, Incident, ManualOverride
from failures.models import permissions as failure_permissions
from failures.models.decision import OPEN_STATES
from failures.recovery import decisions, reads, spare_nodes, steps
from failures.recovery.rules.remedies import CORDON_ACTIONS, RecoveryAction
from failures.recovery.rules.resizing import JobRequest, apply_changes
from jobs.actions import recovery as recovery_actions
from jobs.actions.journal import Author
from jobs.actions.wake import request_turn
from jobs.core import masking
from jobs.core.checkpoint_interval import CHECKPOINT_TEMPLATE_VARIABLE, resume_variables
from jobs.core.lifecycle import StatusBadge
from jobs.models import Cluster, Event, Job, RecoveryMode, Team, TeamRole, clock
from jobs.models.permissions import Caller
from jobs.web import job_forms
from jobs.web.form_fields import limit_to_administered_teams
from jobs.web.page import posted_text

MAX_DECISIONS = 20
UNDER_WAY_STATES = (*OPEN_STATES, DecisionState.DONE)
MAX_CHANGES = 20
CORDON_NOTE = "drains nodes, so an operator setting is required too"
ACTION_CHOICES = [
    ("", "every action"),
    *((one.value, one.value) for one in RecoveryAction if one is not RecoveryAction.NOTHING),
]


@dataclass(frozen=True, kw_only=True)
class IncidentDecisions:
    decisions: list[Decision]
    hidden: int
    overrides: list[ManualOverride]


def incident_decisions(incident: Incident, caller: Caller) -> IncidentDecisions:
    """The visible decisions of an incident, open ones first, then newest first."""
    rows = failure_permissions.visible_decisions(caller).filter(incident=incident).order_by("-pk")
    rows = rows.select_related("attempt__job__team", "anomaly__node__cluster").prefetch_related("steps__node__cluster")
    shown = list(rows[: MAX_DECISIONS + 1])
    for decision in shown:
        may_decide = failure_permissions.may_decide_on(caller, decision)
        decision.may_answer = may_decide and decision.is_proposed
        decision.may_undo = may_decide and decision.can_be_undone
        decision.has_story = bool(decision.outcome) or bool(decision.steps.all())
        decision.sentence = decisions.decision_summary(decision)
        decision.may_submit_changed = _may_submit_changed(decision, caller)
    shown.sort(key=lambda decision: not decision.is_open)
    return IncidentDecisions(
        decisions=shown[:MAX_DECISIONS],
        hidden=max(0, len(shown) - MAX_DECISIONS),
        overrides=_related_overrides(shown, caller),
    )


def _may_submit_changed(decision: Decision, caller: Caller) -> bool:
    is_visible = decision.attempt is not None and caller.has(TeamRole.VIEWER, decision.attempt.job.team_id)
    return is_visible and bool(decision.change) and decision.state not in UNDER_WAY_STATES


def _related_overrides(decisions: list[Decision], caller: Caller) -> list[ManualOverride]:
    jobs = {decision.attempt.job_id for decision in decisions if decision.attempt}
    nodes = {step.node_id for decision in decisions for step in decision.steps.all() if step.node_id}
    rows = failure_permissions.visible_overrides(caller).select_related("job__team", "node")
    overrides = (
        [*rows.filter(job__in=jobs)[:MAX_DECISIONS], *rows.filter(node__in=nodes)[:MAX_DECISIONS]] if decisions else []
    )
    for override in overrides:
        override.may_lift = failure_permissions.may_lift_override(caller, override)
    return overrides


DECISION_VERBS: dict[str, tuple[Callable[..., None], str]] = {
    "approve": (decisions.approve, "approved"),
    "decline": (decisions.decline, "declined"),
    "undo": (steps.undo, "undone"),
}


@require_POST
def decision_verb(request: HttpRequest, number: int, decision: int, verb: str) -> HttpResponse:
    if verb not in DECISION_VERBS:
        raise Http404("Unknown action.")
    caller = failure_permissions.caller_of_user(request.user)
    row = _get_decision(caller, number, decision)
    act, outcome = DECISION_VERBS[verb]
    if not failure_permissions.may_decide_on(caller, row):
        messages.error(
            request,
            "Not allowed. Operators can do this; if no node is drained, users who can change the job can do this too.",
        )
        return _redirect_back(request, number)
    why = posted_text(request)
    try:
        act(row, author=Author.of(request), now=clock.now(), why=why)
    except StateConflict as conflict:
        messages.error(request, f"Nothing was changed: {conflict}.")
    else:
        request_turn(row.cluster_id)
        messages.success(request, f"{row.action.capitalize()}: {outcome}.")
    return _redirect_back(request, number)


def _redirect_back(request: HttpRequest, number: int) -> HttpResponse:
    """Redirect to the page with the answered form: the home page or that of the incident."""
    return redirect("home") if request.POST.get("from") == "home" else redirect("incident", number)


@require_safe
def decision_replay_page(request: HttpRequest, number: int, decision: int) -> HttpResponse:
    row = _get_decision(failure_permissions.caller_of_user(request.user), number, decision)
    row.sentence = decisions.decision_summary(row)
    context = {"decision": row, "differences": reads.compare_with_replay(row), "number": number}
    return render(request, "failures/replay.html", context)


@require_safe
def changed_job_form(request: HttpRequest, number: int, decision: int) -> HttpResponse:
    """The submit form filled in with the changed request, for a job that is no longer pending."""
    row = _get_decision(failure_permissions.caller_of_user(request.user), number, decision)
    if row.attempt is None or not row.change:
        raise Http404("This decision does not change the request of the job.")
    job = get_object_or_404(Job.objects.visible_to(request.user).select_related("cluster"), pk=row.attempt.job_id)
    initial = job_forms.resubmit_values(job, {}, secrets=job.user_id == request.user.pk)
    try:
        initial |= _changed_initial(row, job, initial, request)
    except StateConflict as conflict:
        messages.info(request, f"The form contains the original job: {conflict}.")
    form = job_forms.SubmitForm(user=request.user, initial=initial)
    page = {"form": form, "may_submit": form.fields["team"].queryset.exists()}
    return render(request, "jobs/submit.html", page)


def _changed_initial(row: Decision, job: Job, initial: dict[str, Any], request: HttpRequest) -> dict[str, Any]:
    """Form values with the changes and the chosen checkpoint. Secrets of other users are left out."""
    is_owner = job.user_id == request.user.pk
    environment = job.environment if is_owner else masking.without_secrets(job.environment)
    previous = JobRequest(command=initial["command"], environment=environment, memory_mb=job.memory_per_node_mb)
    new = apply_changes(row.changes, previous)
    resume = {"path": row.checkpoint_path, "step": row.checkpoint_step} if row.checkpoint_step is not None else {}
    resume_environment = resume_variables(resume, job.environment.get(CHECKPOINT_TEMPLATE_VARIABLE, ""))
    return {
        "command": new.command,
        "environment": job_forms.format_pairs({**new.environment, **resume_environment}),
        "memory_per_node": f"{new.memory_mb}M" if new.memory_mb else "",
    }


@require_POST
def lift_override(request: HttpRequest, override: int) -> HttpResponse:
    caller = failure_permissions.caller_of_user(request.user)
    row = get_object_or_404(
        failure_permissions.visible_overrides(caller).select_related("job__team", "node"), pk=override
    )
    if not failure_permissions.may_lift_override(caller, row):
        messages.error(request, "Not allowed. Operators and users who can change the job can lift this override.")
    else:
        try:
            decisions.lift_override(row, author=Author.of(request), now=clock.now())
            messages.success(request, f"Recovery can act on {row.subject} again.")
        except StateConflict as conflict:
            messages.error(request, f"Nothing was changed: {conflict}.")
    back = request.POST.get("incident", "")
    return redirect("incident", int(back)) if back.isdecimal() and len(back) < 18 else redirect("failures")


def _get_decision(caller: Caller, number: int, decision: int) -> Decision:
    rows = failure_permissions.visible_decisions(caller).select_related(
        "attempt__job__team", "attempt__job__cluster", "incident", "anomaly__node"
    )
    return get_object_or_404(rows, pk=decision, incident_id=number)


# --- settings: the mode by team, cluster and action, and who set it


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


@require_safe
def recovery_modes(request: HttpRequest) -> HttpResponse:
    caller = failure_permissions.caller_of_user(request.user)
    return _render_modes(request, caller, RecoveryModeForm(caller))


def _render_modes(request: HttpRequest, caller: Caller, form: RecoveryModeForm) -> HttpResponse:
    modes = RecoveryMode.objects.select_related("team", "cluster")
    rows = list(modes.order_by("team__name", "cluster__name", "action"))
    for row in rows:
        row.badge, row.may_change = mode_badge(row.mode), _may_change_mode(caller, row)
        row.note = CORDON_NOTE if row.team_id and row.action in CORDON_ACTIONS else ""
    events = Event.objects.filter(type="recovery.mode_changed").order_by("-id")
    context = {
        "now": clock.now(),
        "rows": rows,
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
