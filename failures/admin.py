"""Verdicts and incidents in the console of last resort: to be read, and judged with a reason; never edited."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString

from failures.actions import decisions as decision_actions
from failures.actions import incidents as incident_actions
from failures.actions import rules as rule_actions
from failures.diagnosis.labels import LABELS
from failures.models import (
    Cadence,
    Channel,
    Decision,
    Diagnosis,
    Incident,
    IncidentState,
    LearnedRule,
    Notice,
    Order,
    RuleState,
    Sign,
    StackDump,
)
from jobs.admin import formatting
from jobs.admin.record import IsOpenFilter, RecordAdmin
from jobs.admin.verbs import AdminAction, AdminActionInput, AdminActionRefused, AdminActionsMixin, count_text
from jobs.models import clock


def _confirm(row: Diagnosis, asked: AdminActionInput) -> None:
    _review_diagnosis(row, row.root_cause, asked)


def _correct(row: Diagnosis, asked: AdminActionInput) -> None:
    _review_diagnosis(row, asked.value, asked)


def _review_diagnosis(row: Diagnosis, root_cause: str, asked: AdminActionInput) -> None:
    try:
        decision_actions.correct_diagnosis(row, root_cause, author=asked.author, now=clock.now(), note=asked.why)
    except incident_actions.FailureStateConflict as moved:
        raise AdminActionRefused(str(moved)) from None


def _resolve(row: Incident, asked: AdminActionInput) -> None:
    _apply_verb(incident_actions.resolve, row, asked)


def _acknowledge(row: Incident, asked: AdminActionInput) -> None:
    _apply_verb(incident_actions.acknowledge, row, asked)


def _apply_verb(act: Any, row: Incident, asked: AdminActionInput) -> None:
    try:
        act(row, author=asked.author, now=clock.now(), why=asked.why)
    except incident_actions.FailureStateConflict as moved:
        raise AdminActionRefused(str(moved)) from None


def _confirm_effect(rows: Sequence[Diagnosis]) -> str:
    return f"What is said of {count_text(len(rows), 'failure')} is right; your name will stand under it."


def _correct_effect(rows: Sequence[Diagnosis]) -> str:
    return f"The root cause of {count_text(len(rows), 'failure')} becomes another; what the engine said is kept."


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
    effect=lambda rows: f"Others see that you are at {count_text(len(rows), 'incident')}.",
    fits=lambda row: row.state == IncidentState.OPEN,
)
RESOLVE = AdminAction(
    name="resolve",
    label="Resolve",
    act=_resolve,
    effect=lambda rows: f"{count_text(len(rows), 'incident').capitalize()} over; what fails from now on is another.",
    fits=lambda row: row.state != IncidentState.RESOLVED,
)


class PendingDiagnosisFilter(IsOpenFilter):
    """Whether there is work left: no verdict yet, or no bundle."""

    title = "work left"
    parameter_name = "open"
    ends = "kept_at"


@admin.register(Diagnosis)
class DiagnosisAdmin(AdminActionsMixin, RecordAdmin):
    list_display = ("id", "cause", "job", "cluster", "sure", "review", "reviewed_by", "failed", "incident")
    list_select_related = ("attempt__job", "cluster", "reviewed_by", "incident")
    list_filter = (PendingDiagnosisFilter, "category", "review", "engine", "cluster")
    date_hierarchy = "failed_at"
    search_fields = ("attempt__key__startswith", "root_cause__exact")
    search_help_text = "Begin of a job id, or a root cause."
    fields = (
        *("attempt", "cluster", "cause", "said", "sure", "engine", "rules_version", "restart_helps", "action"),
        *("review", "reviewed_by", "reviewed_at", "review_note", "incident", "gpus", "ran", "lost"),
        *("failed", "judged_at", "kept_at", "tries", "trouble", "lines", "size", "details", "evidence_bundle"),
    )
    verbs = (CONFIRM, CORRECT)
    verb_permission = "failures.change_diagnosis"
    touched_columns = ("Failure", "Job")

    def touched_cells(self, row: Diagnosis) -> tuple[Any, ...]:
        return formatting.badge(row.badge), formatting.link(row.attempt.job)

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).defer("bundle")

    @admin.display(description="root cause", ordering="root_cause")
    def cause(self, row: Diagnosis) -> SafeString:
        return formatting.long_badge(row.badge)

    @admin.display(description="job")
    def job(self, row: Diagnosis) -> SafeString | str:
        return formatting.link(row.attempt.job)

    @admin.display(description="sure")
    def sure(self, row: Diagnosis) -> str:
        return f"{row.percent} %"

    @admin.display(description="failed")
    def failed(self, row: Diagnosis) -> SafeString | str:
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
    list_display = ("id", "standing", "root_cause", "subject", "cluster", "attempts", "lost", "first", "last")
    list_select_related = ("cluster", "lead__attempt__job")
    list_filter = (UnresolvedIncidentFilter, "scope", "category", "cluster")
    date_hierarchy = "first_symptom_at"
    search_fields = ("subject__startswith", "root_cause__exact")
    search_help_text = "Begin of a node's name or of a job id, or a root cause."
    fields = (
        *("standing", "root_cause", "category", "scope", "subject", "cluster", "nodes", "lead"),
        *("attempts", "lost", "first_symptom_at", "last_symptom_at", "opened_at"),
        *("acknowledged_at", "acknowledged_by", "resolved_at", "resolved_by", "resolved_why"),
    )
    verbs = (ACKNOWLEDGE, RESOLVE)
    verb_permission = "failures.change_incident"
    touched_columns = ("Incident", "Cause", "About")

    def touched_cells(self, row: Incident) -> tuple[Any, ...]:
        return row, row.root_cause, row.subject

    @admin.display(description="state", ordering="state")
    def standing(self, row: Incident) -> SafeString:
        return formatting.long_badge(row.badge)

    @admin.display(description="GPU-hours lost")
    def lost(self, row: Incident) -> str:
        return f"{row.gpu_hours_lost:,.1f}"

    @admin.display(description="first symptom", ordering="first_symptom_at")
    def first(self, row: Incident) -> SafeString | str:
        return formatting.relative_time(row.first_symptom_at)

    @admin.display(description="last", ordering="last_symptom_at")
    def last(self, row: Incident) -> SafeString | str:
        return formatting.relative_time(row.last_symptom_at)


def _adopt(row: LearnedRule, asked: AdminActionInput) -> None:
    _apply_verb(rule_actions.adopt, row, asked)


def _retire(row: LearnedRule, asked: AdminActionInput) -> None:
    _apply_verb(rule_actions.retire, row, asked)


ADOPT = AdminAction(
    name="adopt",
    label="Adopt",
    act=_adopt,
    effect=lambda rows: f"{count_text(len(rows), 'rule').capitalize()} from now on in every verdict.",
    fits=lambda row: row.state == RuleState.SHADOW,
)
RETIRE = AdminAction(
    name="retire",
    label="Retire",
    act=_retire,
    effect=lambda rows: f"{count_text(len(rows), 'rule').capitalize()} no more; verdicts that were given stay.",
    fits=lambda row: row.state != RuleState.RETIRED,
)


@admin.register(LearnedRule)
class LearnedRuleAdmin(AdminActionsMixin, RecordAdmin):
    list_display = ("name", "standing", "kind", "label", "hits", "owner", "proposed_at")
    list_select_related = ("owner", "source__attempt__job")
    list_filter = ("state", "kind", "origin")
    search_fields = ("name__startswith", "label__exact")
    fields = (
        *("name", "standing", "kind", "label", "pattern", "example", "origin", "source", "owner", "hits", "replay"),
        *("proposed_at", "adopted_at", "adopted_by", "retired_at", "retired_by", "retired_why"),
    )
    verbs = (ADOPT, RETIRE)
    verb_permission = "failures.change_learnedrule"
    touched_columns = ("Rule", "Names")

    def touched_cells(self, row: LearnedRule) -> tuple[Any, ...]:
        return row.name, row.label or "routine"

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).counted()

    @admin.display(description="state", ordering="state")
    def standing(self, row: LearnedRule) -> SafeString:
        return formatting.badge(row.badge)

    @admin.display(description="hits, right, wrong")
    def hits(self, row: Any) -> str:
        return f"{row.hit_count}, {row.right}, {row.wrong}"


@admin.register(Decision)
class DecisionAdmin(RecordAdmin):
    list_display = ("id", "at", "attempt", "action", "mode", "standing", "said_by", "incident")
    list_select_related = ("attempt__job", "incident")
    list_filter = ("course", "mode", "action", "cluster")
    date_hierarchy = "at"
    search_fields = ("attempt__key__startswith",)
    search_help_text = "Begin of a job id."

    @admin.display(description="course", ordering="course")
    def standing(self, row: Decision) -> SafeString:
        return formatting.long_badge(row.badge)


@admin.register(Sign)
class SignAdmin(RecordAdmin):
    list_display = ("id", "since", "symptom", "severity", "node", "attempt", "why", "ended_at", "incident")
    list_select_related = ("attempt__job", "node", "incident")
    list_filter = ("symptom", "severity", "cluster")
    date_hierarchy = "since"
    search_fields = ("node__name__startswith", "attempt__key__startswith")
    search_help_text = "Begin of a node's name or of a job id."


@admin.register(Order)
class OrderAdmin(RecordAdmin):
    list_display = ("id", "at", "job", "node", "by", "why", "lifted_at", "lifted_by")
    list_select_related = ("job", "node")
    list_filter = ("cluster",)
    search_fields = ("job__public_id__startswith", "node__name__startswith")
    search_help_text = "Begin of a job id or of a node's name."


@admin.register(Channel)
class ChannelAdmin(RecordAdmin):
    list_display = ("id", "team", "kind", "target", "scope", "least_gpu_hours", "is_on", "created_by")
    list_select_related = ("team",)
    list_filter = ("kind", "team")
    exclude = ("secret",)
    search_fields = ("target__startswith",)
    search_help_text = "Begin of an address."


@admin.register(Notice)
class NoticeAdmin(RecordAdmin):
    list_display = ("id", "channel", "incident", "update", "sent_at", "failures", "given_up_at", "trouble")
    list_select_related = ("channel__team", "incident")
    list_filter = ("channel",)


@admin.register(StackDump)
class StackDumpAdmin(RecordAdmin):
    list_display = ("id", "attempt", "incident", "ranks", "asked", "closed_at")
    list_select_related = ("attempt", "incident")
    list_filter = ("asked_at",)
    search_fields = ("attempt__key__exact",)
    search_help_text = "The key of an attempt."
    ordering = ("-pk",)
    exclude = ("packed",)

    @admin.display(description="asked")
    def asked(self, dump: StackDump) -> str:
        return formatting.relative_time(dump.asked_at)


@admin.register(Cadence)
class CadenceAdmin(RecordAdmin):
    list_display = ("attempt", "read", "looked_at")
    list_select_related = ("attempt",)
    ordering = ("-pk",)
    list_filter = ("looked_at",)
    search_fields = ("attempt__key__exact",)
    search_help_text = "The key of an attempt."
