"""The page of learned rules: what each finds, how often it was right, and one click to adopt or to retire it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from failures import rights, rule_actions
from failures.actions import Moved
from failures.models import LearnedRule, RuleState
from jobs import clock
from jobs.door.rights import Caller
from jobs.journal import Author
from jobs.pages import Address, answer

MOST = 200
STATES: dict[str, tuple[str, ...]] = {
    "running": (RuleState.SHADOW, RuleState.ADOPTED),
    "shadow": (RuleState.SHADOW,),
    "adopted": (RuleState.ADOPTED,),
    "retired": (RuleState.RETIRED,),
}
VERBS: dict[str, Callable[..., None]] = {"adopt": rule_actions.adopt, "retire": rule_actions.retire}
DONE = {"adopt": "adopted", "retire": "retired"}


@require_safe
def rules(request: HttpRequest) -> HttpResponse:
    caller = rights.of_user(request.user)
    asked = Address(request.GET)
    state = asked.one_of("state", list(STATES), "running")
    context = {
        "now": clock.now(),
        "state": state,
        "states": [{"name": one, "url": f"{reverse('rules')}?state={one}", "is_on": one == state} for one in STATES],
        "rows": cache(lambda: _rows(caller, state)),
        "may_keep": rights.may_keep_rules(caller),
        "here": request.get_full_path(),
    }
    return answer(request, "failures/rules.html", context, {"rules": "failures/_rules.html"}, asked.wrong)


def _rows(caller: Caller, state: str) -> list[LearnedRule]:
    """The example is a line of somebody's log: it is shown to those who may see that log."""
    rows = rights.rules(caller).filter(state__in=STATES[state]).counted()
    shown = list(rows.select_related("owner", "source__attempt__job").defer("source__bundle")[:MOST])
    mine = rights.diagnoses(caller).filter(pk__in=[row.source_id for row in shown])
    visible = set(mine.values_list("pk", flat=True))
    for row in shown:
        row.may_see_source = row.source_id in visible
    return shown


@require_POST
def rule_verb(request: HttpRequest, name: str, verb: str) -> HttpResponse:
    if verb not in VERBS:
        raise Http404("no such verb")
    caller = rights.of_user(request.user)
    row = get_object_or_404(rights.rules(caller).select_related("source__attempt__job"), name=name)
    if not rights.may_keep_rules(caller):
        messages.error(request, "Not allowed: operators keep the rulebook.")
        return redirect("rules")
    try:
        VERBS[verb](row, author=Author.of(request), now=clock.now())
    except Moved as moved:
        messages.error(request, f"Conflict, nothing was changed: {moved}.")
    else:
        messages.success(request, f"{name}: {DONE[verb]}.")
    return redirect("rules")
