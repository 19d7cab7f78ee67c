"""The page of learned rules: what each matches, how often it was right, and buttons to adopt or retire it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from acmeweb.common.errors import StateConflict
from failures.actions import rules as rule_actions
from failures.models import LearnedRule, RuleState
from failures.models import permissions as failure_permissions
from jobs.actions.journal import Author
from jobs.models import clock
from jobs.rest.permissions import Caller
from jobs.web.page import PageQuery, render_page

MAX_RULES = 200
RULE_STATE_FILTERS: dict[str, tuple[str, ...]] = {
    "running": (RuleState.SHADOW, RuleState.ADOPTED),
    "shadow": (RuleState.SHADOW,),
    "adopted": (RuleState.ADOPTED,),
    "retired": (RuleState.RETIRED,),
}
RULE_VERBS: dict[str, Callable[..., None]] = {"adopt": rule_actions.adopt, "retire": rule_actions.retire}
VERB_RESULTS = {"adopt": "adopted", "retire": "retired"}


@require_safe
def rule_list(request: HttpRequest) -> HttpResponse:
    caller = failure_permissions.caller_of_user(request.user)
    query = PageQuery(request.GET)
    state = query.choice_value("state", list(RULE_STATE_FILTERS), "running")
    context = {
        "now": clock.now(),
        "state": state,
        "states": [
            {"name": name, "url": f"{reverse('rules')}?state={name}", "is_enabled": name == state}
            for name in RULE_STATE_FILTERS
        ],
        "rows": cache(lambda: _visible_rule_rows(caller, state)),
        "may_keep": failure_permissions.may_manage_rules(caller),
        "here": request.get_full_path(),
    }
    return render_page(request, "failures/rules.html", context, {"rules": "failures/_rules.html"}, query.wrong)


def _visible_rule_rows(caller: Caller, state: str) -> list[LearnedRule]:
    """The rules that the caller may see. The example is a line of a log, shown only to users with access to the log."""
    rows = failure_permissions.visible_rules(caller).filter(state__in=RULE_STATE_FILTERS[state]).with_hit_counts()
    rules = list(rows.select_related("owner", "source__attempt__job").defer("source__bundle")[:MAX_RULES])
    readable = failure_permissions.visible_diagnoses(caller).filter(pk__in=[row.source_id for row in rules])
    visible = set(readable.values_list("pk", flat=True))
    for row in rules:
        row.may_see_source = row.source_id in visible
        row.shown_text = row.example if row.may_see_source else row.pattern
    return rules


@require_POST
def rule_verb(request: HttpRequest, name: str, verb: str) -> HttpResponse:
    if verb not in RULE_VERBS:
        raise Http404("Unknown action.")
    caller = failure_permissions.caller_of_user(request.user)
    row = get_object_or_404(failure_permissions.visible_rules(caller).select_related("source__attempt__job"), name=name)
    if not failure_permissions.may_manage_rules(caller):
        messages.error(request, "Not allowed. Operators manage the learned rules.")
        return redirect("rules")
    try:
        RULE_VERBS[verb](row, author=Author.of(request), now=clock.now())
    except StateConflict as conflict:
        messages.error(request, f"Nothing was changed: {conflict}.")
    else:
        messages.success(request, f"{name}: {VERB_RESULTS[verb]}.")
    return redirect("rules")
