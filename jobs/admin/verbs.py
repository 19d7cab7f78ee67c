"""Admin actions with a confirmation page that shows the effect and asks for a reason.

Each row is processed in its own transaction. A refused row produces a message; the other rows are still processed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import models
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from acmeweb.common.errors import StateConflict
from jobs.actions.journal import Author

log = logging.getLogger(__name__)

MAX_ROWS = 500


@dataclass(frozen=True, kw_only=True)
class AdminActionInput:
    """The values entered on the confirmation page, and their author."""

    author: Author
    why: str
    value: Any = None


@dataclass(frozen=True, kw_only=True)
class AdminAction:
    name: str
    label: str
    act: Callable[[Any, AdminActionInput], None]
    effect: Callable[[Sequence[Any]], str]  # what happens to these rows, as text
    fits: Callable[[Any], bool]  # whether the page of a row offers the action
    needs_reason: bool = False
    value: forms.Field | None = None  # an input besides the reason

    def form(self, data: Any = None) -> forms.Form:
        """The confirmation form: the action's own input, if any, and the reason."""
        form = ReasonForm(data)
        form.fields["why"].required = self.needs_reason
        if self.value:
            form.fields["value"] = self.value
            form.order_fields(["value", "why"])
        return form


class ReasonForm(forms.Form):
    why = forms.CharField(
        label="Reason",
        max_length=500,
        help_text="Stored in the event with your name. Your colleagues and the owner can read it.",
        widget=forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField", "autofocus": True}),
    )


class AdminActionsMixin(admin.ModelAdmin):
    """Adds `verbs` to a ModelAdmin, as actions of the list and as buttons on the page of a row."""

    verbs: tuple[AdminAction, ...] = ()
    verb_permission = ""
    touched_columns: tuple[str, ...] = ("",)

    def may_use_actions(self, request: HttpRequest) -> bool:
        return request.user.has_perm(self.verb_permission)

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        actions = super().get_actions(request)
        if self.may_use_actions(request):
            actions |= {
                verb.name: (partial(_confirm_selected, verb), verb.name, f"{verb.label}…") for verb in self.verbs
            }
        return actions

    def get_urls(self) -> list[Any]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_verb"
        wrapped = self.admin_site.admin_view(self.action_view)
        return [path("verb/<slug:name>/", wrapped, name=name), *super().get_urls()]

    def render_change_form(self, request: HttpRequest, context: dict, *args: Any, **kwargs: Any) -> HttpResponse:
        row = kwargs.get("obj")
        if row is not None and self.may_use_actions(request):
            context["verb_buttons"] = [
                (v.label, f"{self._action_url(v)}?id={row.pk}") for v in self.verbs if v.fits(row)
            ]
        return super().render_change_form(request, context, *args, **kwargs)

    def _action_url(self, verb: AdminAction) -> str:
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_verb", args=[verb.name])

    def action_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """GET shows the confirmation page for one row (button); POST performs the action on the confirmed rows."""
        verb = next((verb for verb in self.verbs if verb.name == name), None)
        if verb is None:
            raise Http404
        if not self.may_use_actions(request):
            raise PermissionDenied
        if request.method != "POST":
            return self.ask(
                request, verb, self._selected_rows(request, [request.GET.get("id", "")]), verb.form(), alone=True
            )
        rows = self._selected_rows(request, request.POST.getlist(ACTION_CHECKBOX_NAME))
        alone = "alone" in request.POST
        form = verb.form(request.POST)
        if not form.is_valid():
            return self.ask(request, verb, rows, form, alone=alone)
        values = AdminActionInput(
            author=Author.of(request), why=form.cleaned_data["why"], value=form.cleaned_data.get("value")
        )
        self._run_action(request, verb, rows, values)
        return HttpResponseRedirect(self._return_url(rows if alone else []))

    def _selected_rows(self, request: HttpRequest, keys: list[str]) -> list[Any]:
        ids = [int(unquote(key)) for key in keys if unquote(key).isdecimal()][:MAX_ROWS]
        rows = list(self.actionable_rows(request).filter(pk__in=ids))
        if not rows:
            raise Http404("rows not found")
        return rows

    def actionable_rows(self, request: HttpRequest) -> models.QuerySet[Any]:
        """The rows that the list shows to this user."""
        rows = self.get_queryset(request).order_by("pk")
        return rows.select_related(*self.list_select_related) if self.list_select_related else rows

    def _return_url(self, rows: list[Any]) -> str:
        base = f"admin:{self.opts.app_label}_{self.opts.model_name}"
        return reverse(f"{base}_change", args=[rows[0].pk]) if rows else reverse(f"{base}_changelist")

    def ask(
        self, request: HttpRequest, verb: AdminAction, rows: Sequence[Any], form: forms.Form, *, alone: bool = False
    ) -> HttpResponse:
        context = self.admin_site.each_context(request) | {
            "title": f"{verb.label}: {_rows_text(rows)}",
            "opts": self.opts,
            "media": self.media,
            "verb": verb,
            "verb_url": self._action_url(verb),
            "effect": verb.effect(rows),
            "columns": self.touched_columns,
            "rows": [self.confirmation_cells(row) for row in rows],
            "keys": [row.pk for row in rows],
            "form": form,
            "alone": alone,
            "back": self._return_url(list(rows) if alone else []),
            "checkbox": ACTION_CHECKBOX_NAME,
        }
        return TemplateResponse(request, "admin/jobs/ask_reason.html", context)

    def confirmation_cells(self, row: Any) -> tuple[Any, ...]:
        """The cells of a row on the confirmation page, one per column of `touched_columns`."""
        return (row,)

    def _run_action(
        self, request: HttpRequest, verb: AdminAction, rows: Sequence[Any], values: AdminActionInput
    ) -> None:
        refusals = [refusal for row in rows if (refusal := _run_on_row(verb, row, values))]
        if done := len(rows) - len(refusals):
            what = self.opts.verbose_name if done == 1 else self.opts.verbose_name_plural
            messages.success(request, f"{verb.label}: done for {done} {what}.")
        for refusal in refusals:
            messages.warning(request, f"{verb.label} refused: {refusal}")


def _run_on_row(verb: AdminAction, row: Any, values: AdminActionInput) -> str:
    """Perform the action on one row; returns an error message, or "" on success."""
    try:
        verb.act(row, values)
    except StateConflict as refusal:
        return f"{refusal}."
    except Exception:  # one failing row must not stop the others
        log.exception("%s of %s failed (request %s)", verb.name, row, values.author.request_id)
        return f"{row}: internal error. See the log entry of request {values.author.request_id}."
    return ""


def _confirm_selected(
    verb: AdminAction, model_admin: Any, request: HttpRequest, queryset: models.QuerySet[Any]
) -> HttpResponse | None:
    """Show the confirmation page for a list action; refuses more than MAX_ROWS rows ("select all")."""
    keys = list(queryset.order_by("pk").values_list("pk", flat=True)[: MAX_ROWS + 1])
    if len(keys) > MAX_ROWS:
        messages.error(request, f"More than {MAX_ROWS} rows are selected. Filter the list first.")
        return None
    rows = list(model_admin.actionable_rows(request).filter(pk__in=keys))
    return model_admin.ask(request, verb, rows, verb.form())


def _rows_text(rows: Sequence[models.Model]) -> str:
    return count_text(len(rows), str(rows[0]._meta.verbose_name))


def count_text(count: int, noun: str, does: str = "") -> str:
    """`3 jobs finish`, `1 job finishes`: `does` is the plural of a regular verb."""
    if count == 1:
        return f"1 {noun} {does and does + ('es' if does.endswith(('sh', 'o')) else 's')}".rstrip()
    return f"{count} {noun}s {does}".rstrip()
