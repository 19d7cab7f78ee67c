"""The Django admin of failures: read-only records, with a few actions that require a reason."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString

from failures.actions import incidents as incident_actions
from failures.actions import rules as rule_actions
from failures.diagnosis.labels import LABELS
from failures.models import (
    Anomaly,
    Channel,
    Decision,
    Diagnosis,
    Incident,
    IncidentState,
    LearnedRule,
    LogReadState,
    ManualOverride,
    Notice,
    RuleState,
    StackDump,
)
from failures.recovery import decisions
from jobs.admin import formatting
from jobs.admin.record import IsOpenFilter, RecordAdmin
from jobs.admin.verbs import AdminAction, AdminActionInput, AdminActionsMixin, count_text
from jobs.models import clock


def _confirm(row: Diagnosis, inputs: AdminActionInput) -> None:
    _review_diagnosis(row, row.root_cause, inputs)


def _correct(row: Diagnosis, inputs: AdminActionInput) -> None:
    _review_diagnosis(row, inputs.value, inputs)


def _review_diagnosis(row: Diagnosis, root_cause: str, inputs: AdminActionInput) -> None:
    decisions.correct_diagnosis(row, root_cause, author=inputs.author, now=clock.now(), note=inputs.why)


def _resolve(row: Incident, inputs: AdminActionInput) -> None:
    _apply_verb(incident_actions.resolve, row, inputs)


def _acknowledge(row: Incident, inputs: AdminActionInput) -> None:
    _apply_verb(incident_actions.acknowledge, row, inputs)


def _apply_verb(act: Any, row: Incident, inputs: AdminActionInput) -> None:
    act(row, author=inputs.author, now=clock.now(), why=inputs.why)


def _confirm_effect(rows: Sequence[Diagnosis]) -> str:
    return f"The diagnosis of {count_text(len(rows), 'failure')} will be confirmed in your name."


def _correct_effect(rows: Sequence[Diagnosis]) -> str:
    return f"The root cause of {count_text(len(rows), 'failure')} will be changed. The diagnosis of the engine is kept."


CONFIRM = AdminAction(
    name="confirm", label="Confirm", act=_confirm, effect=_confirm_effect, fits=lambda row: not row.review
)
CORRECT = AdminAction(
    name="correct",
    label="Correct",
    act=_correct,
    effect=_correct_effect,
    fits=lambda row: row.judged_at is not None,
    value=forms.ChoiceField(label="Root cause", choices=[(name, name) for name in LABELS]),
)
ACKNOWLEDGE = AdminAction(
    name="acknowledge",
    label="Acknowledge",
    act=_acknowledge,
    effect=lambda rows: f"{count_text(len(rows), 'incident').capitalize()} will be acknowledged in your name.",
    fits=lambda row: row.state == IncidentState.OPEN,
)
RESOLVE = AdminAction(
    name="resolve",
    label="Resolve",
    act=_resolve,
    effect=lambda rows: (
        f"{count_text(len(rows), 'incident').capitalize()} will be closed. New failures open new incidents."
    ),
    fits=lambda row: row.state != IncidentState.RESOLVED,
)


class PendingDiagnosisFilter(IsOpenFilter):
    """Filter for diagnoses whose verdict or bundle is missing."""

    title = "pending work"
    parameter_name = "open"
    ends = "bundle_stored_at"


@admin.register(Diagnosis)
class DiagnosisAdmin(AdminActionsMixin, RecordAdmin):
    list_display = ("id", "cause", "job", "cluster", "sure", "review", "reviewed_by", "failure_time", "incident")
    list_select_related = ("attempt__job", "cluster", "reviewed_by", "incident")
    list_filter = (PendingDiagnosisFilter, "category", "review", "engine", "cluster")
    date_hierarchy = "failed_at"
    search_fields = ("attempt__key__startswith", "root_cause__exact")
    search_help_text = "Start of a job id, or a root cause."
    fields = (
        *(
            "attempt",
            "cluster",
            "cause",
            "engine_root_cause",
            "sure",
            "engine",
            "rules_version",
            "restart_helps",
            "action",
        ),
        *("review", "reviewed_by", "reviewed_at", "review_note", "incident", "gpus", "ran", "lost"),
        *(
            "failure_time",
            "judged_at",
            "bundle_stored_at",
            "tries",
            "last_error",
            "lines",
            "size",
            "details",
            "evidence_bundle",
        ),
    )
    verbs = (CONFIRM, CORRECT)
    verb_permission = "failures.change_diagnosis"
    touched_columns = ("Failure", "Job")

    def confirmation_cells(self, row: Diagnosis) -> tuple[Any, ...]:
        return formatting.badge(row.badge), formatting.link(row.attempt.job)

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).defer("bundle")

    @admin.display(description="root cause", ordering="root_cause")
    def cause(self, row: Diagnosis) -> SafeString:
        return formatting.long_badge(row.badge)

    @admin.display(description="job")
    def job(self, row: Diagnosis) -> SafeString | str:
        return formatting.link(row.attempt.job)

    @admin.display(description="confidence")
    def sure(self, row: Diagnosis) -> str:
        return f"{row.percent}%"

    @admin.display(description="failed")
    def failure_time(self, row: Diagnosis) -> SafeString | str:
        return formatting.relative_time(row.failed_at)

    @admin.display(description="evidence")
    def details(self, row: Diagnosis) -> SafeString | str:
        shown = {name: getattr(row, name) for name in ("evidence", "chain", "suspect_nodes", "suspect_gpus", "notes")}
        return formatting.block(json.dumps(shown, indent=2))

    @admin.display(description="bundle")
    def evidence_bundle(self, row: Diagnosis) -> SafeString | str:
        return formatting.block(row.bundle_text) if row.bundle_size else formatting.MISSING_TEXT


class UnresolvedIncidentFilter(IsOpenFilter):
    title = "unresolved"
    parameter_name = "open"
    ends = "resolved_at"


@admin.register(Incident)
class IncidentAdmin(AdminActionsMixin, RecordAdmin):
    list_display = ("id", "active", "root_cause", "subject", "cluster", "attempts", "gpu_hours", "first", "last")
    list_select_related = ("cluster", "lead__attempt__job")
    list_filter = (UnresolvedIncidentFilter, "scope", "category", "cluster")
    date_hierarchy = "first_symptom_at"
    search_fields = ("subject__startswith", "root_cause__exact")
    search_help_text = "Start of a node name or of a job id, or a root cause."
    fields = (
        *("active", "root_cause", "category", "scope", "subject", "cluster", "nodes", "lead"),
        *("attempts", "gpu_hours", "first_symptom_at", "last_symptom_at", "opened_at"),
        *("acknowledged_at", "acknowledged_by", "resolved_at", "resolved_by", "resolved_why"),
    )
    verbs = (ACKNOWLEDGE, RESOLVE)
    verb_permission = "failures.change_incident"
    touched_columns = ("Incident", "Cause", "About")

    def confirmation_cells(self, row: Incident) -> tuple[Any, ...]:
        return row, row.root_cause, row.subject

    @admin.display(description="state", ordering="state")
    def active(self, row: Incident) -> SafeString:
        return formatting.long_badge(row.badge)

    @admin.display(description="GPU-hours lost")
    def gpu_hours(self, row: Incident) -> str:
        return f"{row.gpu_hours_lost:,.1f}"

    @admin.display(description="first symptom", ordering="first_symptom_at")
    def first(self, row: Incident) -> SafeString | str:
        return formatting.relative_time(row.first_symptom_at)

    @admin.display(description="last symptom", ordering="last_symptom_at")
    def last(self, row: Incident) -> SafeString | str:
        return formatting.relative_time(row.last_symptom_at)


def _adopt(row: LearnedRule, inputs: AdminActionInput) -> None:
    _apply_verb(rule_actions.adopt, row, inputs)


def _retire(row: LearnedRule, inputs: AdminActionInput) -> None:
    _apply_verb(rule_actions.retire, row, inputs)


ADOPT = AdminAction(
    name="adopt",
    label="Adopt",
    act=_adopt,
    effect=lambda rows: f"{count_text(len(rows), 'rule').capitalize()} will be used in every new diagnosis.",
    fits=lambda row: row.state == RuleState.SHADOW,
)
RETIRE = AdminAction(
    name="retire",
    label="Retire",
    act=_retire,
    effect=lambda rows: (
        f"{count_text(len(rows), 'rule').capitalize()} will be retired. Existing diagnoses do not change."
    ),
    fits=lambda row: row.state != RuleState.RETIRED,
)


@admin.register(LearnedRule)
class LearnedRuleAdmin(AdminActionsMixin, RecordAdmin):
    list_display = ("name", "active", "kind", "label", "hits", "owner", "proposed_at")
    list_select_related = ("owner", "source__attempt__job")
    list_filter = ("state", "kind", "origin")
    search_fields = ("name__startswith", "label__exact")
    fields = (
        *("name", "active", "kind", "label", "pattern", "example", "origin", "source", "owner", "hits", "replay"),
        *("proposed_at", "adopted_at", "adopted_by", "retired_at", "retired_by", "retired_why"),
    )
    verbs = (ADOPT, RETIRE)
    verb_permission = "failures.change_learnedrule"
    touched_columns = ("Rule", "Root cause")

    def confirmation_cells(self, row: LearnedRule) -> tuple[Any, ...]:
        return row.name, row.label or "routine"

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).with_hit_counts()

    @admin.display(description="state", ordering="state")
    def active(self, row: LearnedRule) -> SafeString:
        return formatting.badge(row.badge)

    @admin.display(description="hits, right, wrong")
    def hits(self, row: Any) -> str:
        return f"{row.hit_count}, {row.right}, {row.wrong}"


@admin.register(Decision)
class DecisionAdmin(RecordAdmin):
    list_display = ("id", "at", "attempt", "action", "mode", "active", "answered_by", "incident")
    list_select_related = ("attempt__job", "incident")
    list_filter = ("state", "mode", "action", "cluster")
    date_hierarchy = "at"
    search_fields = ("attempt__key__startswith",)
    search_help_text = "Start of a job id."

    @admin.display(description="state", ordering="state")
    def active(self, row: Decision) -> SafeString:
        return formatting.long_badge(row.badge)


@admin.register(Anomaly)
class AnomalyAdmin(RecordAdmin):
    list_display = ("id", "since", "symptom", "severity", "node", "attempt", "why", "ended_at", "incident")
    list_select_related = ("attempt__job", "node", "incident")
    list_filter = ("symptom", "severity", "cluster")
    date_hierarchy = "since"
    search_fields = ("node__name__startswith", "attempt__key__startswith")
    search_help_text = "Start of a node name or of a job id."


@admin.register(ManualOverride)
class ManualOverrideAdmin(RecordAdmin):
    list_display = ("id", "at", "job", "node", "by", "why", "lifted_at", "lifted_by")
    list_select_related = ("job", "node")
    list_filter = ("cluster",)
    search_fields = ("job__public_id__startswith", "node__name__startswith")
    search_help_text = "Start of a job id or of a node name."


@admin.register(Channel)
class ChannelAdmin(RecordAdmin):
    list_display = ("id", "team", "kind", "target", "scope", "min_gpu_hours", "is_enabled", "created_by")
    list_select_related = ("team",)
    list_filter = ("kind", "team")
    exclude = ("secret",)
    search_fields = ("target__startswith",)
    search_help_text = "Start of an address."


@admin.register(Notice)
class NoticeAdmin(RecordAdmin):
    list_display = ("id", "channel", "incident", "update", "sent_at", "failures", "given_up_at", "last_error")
    list_select_related = ("channel__team", "incident")
    list_filter = ("channel",)


@admin.register(StackDump)
class StackDumpAdmin(RecordAdmin):
    list_display = ("id", "attempt", "incident", "ranks", "request_time", "closed_at")
    list_select_related = ("attempt", "incident")
    list_filter = ("requested_at",)
    search_fields = ("attempt__key__exact",)
    search_help_text = "Attempt id."
    ordering = ("-pk",)
    exclude = ("packed",)

    @admin.display(description="requested")
    def request_time(self, dump: StackDump) -> str:
        return formatting.relative_time(dump.requested_at)


@admin.register(LogReadState)
class LogReadStateAdmin(RecordAdmin):
    list_display = ("attempt", "read", "looked_at", "steps_read", "steps_read_at")
    list_select_related = ("attempt",)
    ordering = ("-pk",)
    list_filter = ("looked_at",)
    exclude = ("seam", "state")
    search_fields = ("attempt__key__exact",)
    search_help_text = "Attempt id."
