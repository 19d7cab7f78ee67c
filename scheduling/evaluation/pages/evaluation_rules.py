"""Page of evaluation rules: list, add, enable, disable and remove rules."""

from __future__ import annotations

from functools import cache

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_http_methods, require_POST
from rest_framework.exceptions import PermissionDenied

from acmeweb.common.errors import InvalidField, StateConflict
from jobs.actions.journal import Author
from jobs.actions.submissions import CallerTargets
from jobs.models import clock
from jobs.models.permissions import Caller
from jobs.web.page import render_page
from scheduling.evaluation.actions import evaluation_rules as rule_actions
from scheduling.evaluation.pages.forms import EvaluationRuleForm
from scheduling.evaluation.reads import campaigns as campaign_reads
from scheduling.models import EvaluationRule

MAX_RULES_SHOWN = 100


@require_http_methods(["GET", "HEAD", "POST"])
def rules(request: HttpRequest) -> HttpResponse:
    caller = Caller(user=request.user)
    places = CallerTargets(caller)
    form = EvaluationRuleForm(request.POST or None, places=places)
    if request.method == "POST" and form.is_valid() and _create_from_form(request, form, places):
        return redirect("evaluation-rules")
    context = {
        "now": clock.now(),
        "form": form,
        "suites": form.suites,
        "may_ask": bool(form.teams),
        "rows": cache(lambda: _rows(caller)),
    }
    fragments = {"evaluation-rules": "scheduling/_evaluation_rules.html"}
    response = render_page(request, "scheduling/evaluation_rules.html", context, fragments)
    response.status_code = 400 if form.errors else 200
    return response


def _rows(caller: Caller) -> list[EvaluationRule]:
    rows = list(campaign_reads.rules(caller).select_related("team", "user", "cluster")[:MAX_RULES_SHOWN])
    for row in rows:
        row.may_change = caller.may_change(row)  # type: ignore[attr-defined]
    return rows


def _create_from_form(request: HttpRequest, form: EvaluationRuleForm, places: CallerTargets) -> bool:
    """Return whether the rule was created. If not, the form contains the errors."""
    try:
        rule_actions.create_rule_from_request(form.request_values(), places, Author.of(request))
    except InvalidField as error:
        form.add_error(error.field if error.field in form.fields else None, error.why)
    except PermissionDenied as error:
        form.add_error(None, str(error))
    else:
        messages.success(request, "The rule was added. New checkpoints in the directory are evaluated from now on.")
        return True
    return False


RULE_VERBS = {
    "on": (lambda row, author: rule_actions.change(row, {"is_enabled": True}, author=author), "was enabled."),
    "off": (lambda row, author: rule_actions.change(row, {"is_enabled": False}, author=author), "was disabled."),
    "remove": (lambda row, author: rule_actions.remove(row, author=author), "was removed. Its campaigns are kept."),
}


@require_POST
def change(request: HttpRequest, pk: int, verb: str) -> HttpResponse:
    caller = Caller(user=request.user)
    row = get_object_or_404(campaign_reads.rules(caller).select_related("team", "cluster"), pk=pk)
    name = f"The rule for {row.directory}"
    if not caller.may_change(row):
        messages.error(request, caller.denial_reason(row, name))
        return redirect("evaluation-rules")
    apply, outcome = RULE_VERBS[verb]
    try:
        apply(row, Author.of(request))
    except StateConflict as conflict:
        messages.error(request, str(conflict))
    else:
        messages.success(request, f"{name} {outcome}")
    return redirect("evaluation-rules")
