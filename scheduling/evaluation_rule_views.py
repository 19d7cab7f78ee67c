"""Rules of evaluation: what watches which directory, made by form, switched off and removed by a click."""

from __future__ import annotations

from functools import cache

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_http_methods, require_POST
from rest_framework.exceptions import PermissionDenied

from jobs import clock
from jobs.api.submitting import Places
from jobs.journal import Author
from jobs.pages import answer
from jobs.readers import BadSpec
from jobs.rights import Caller
from scheduling import evaluating
from scheduling import evaluation_rule_actions as actions
from scheduling.evaluation_actions import Gone
from scheduling.forms import EvaluationRuleForm
from scheduling.models import EvaluationRule

MOST = 100


@require_http_methods(["GET", "HEAD", "POST"])
def rules(request: HttpRequest) -> HttpResponse:
    caller = Caller(user=request.user)
    places = Places(caller)
    names = list(evaluating.suites(caller).order_by("name").values_list("name", flat=True).distinct())
    form = EvaluationRuleForm(request.POST or None, places=places, suites=names)
    if request.method == "POST" and form.is_valid() and _made(request, form, places):
        return redirect("evaluation-rules")
    context = {
        "now": clock.now(),
        "form": form,
        "suites": names,
        "may_ask": bool(form.fields["team"].choices),  # type: ignore[attr-defined]
        "rows": cache(lambda: _rows(caller)),
    }
    fragments = {"evaluation-rules": "scheduling/_evaluation_rules.html"}
    response = answer(request, "scheduling/evaluation_rules.html", context, fragments)
    response.status_code = 400 if form.errors else 200
    return response


def _rows(caller: Caller) -> list[EvaluationRule]:
    found = list(evaluating.rules(caller).select_related("team", "user", "cluster")[:MOST])
    for row in found:
        row.may_change = caller.may_change(row)  # type: ignore[attr-defined]
    return found


def _made(request: HttpRequest, form: EvaluationRuleForm, places: Places) -> bool:
    """False if it cannot be; the form then says why."""
    try:
        evaluating.make_rule(form.asked(), places, Author.of(request))
    except BadSpec as bad:
        form.add_error(bad.field if bad.field in form.fields else None, bad.why)
    except PermissionDenied as refused:
        form.add_error(None, str(refused))
    else:
        messages.success(request, "What appears there from now on is evaluated.")
        return True
    return False


VERBS = {
    "on": (lambda row, author: actions.change(row, {"is_on": True}, author=author), "is on."),
    "off": (lambda row, author: actions.change(row, {"is_on": False}, author=author), "is off."),
    "remove": (lambda row, author: actions.remove(row, author=author), "is removed; its campaigns stay."),
}


@require_POST
def change(request: HttpRequest, pk: int, verb: str) -> HttpResponse:
    caller = Caller(user=request.user)
    row = get_object_or_404(evaluating.rules(caller).select_related("team", "cluster"), pk=pk)
    name = f"The rule for {row.directory}"
    if not caller.may_change(row):
        messages.error(request, caller.why_not(row, name))
        return redirect("evaluation-rules")
    do, said = VERBS[verb]
    try:
        do(row, Author.of(request))
    except Gone as gone:
        messages.error(request, str(gone))
    else:
        messages.success(request, f"{name} {said}")
    return redirect("evaluation-rules")
