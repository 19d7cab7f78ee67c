"""Decisions on the page of their incident: for and against, a person's yes or no, and what today's rules would do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from failures import decision_actions, rights
from failures import replay as replaying
from failures.actions import Moved
from failures.models import Decision, Incident, Order
from jobs import clock
from jobs.journal import Author
from jobs.node_actions import NodeError
from jobs.pages import said
from jobs.rights import Caller
from jobs.wishes import want_turn

MOST = 20


@dataclass(frozen=True, kw_only=True)
class Shown:
    decisions: list[Decision]
    hidden: int
    orders: list[Order]


def shown(incident: Incident, caller: Caller) -> Shown:
    """The open ones first, then the newest."""
    rows = rights.decisions(caller).filter(incident=incident).order_by("-pk")
    rows = rows.select_related("attempt__job__team", "sign__node__cluster").prefetch_related("steps__node__cluster")
    found = list(rows[: MOST + 1])
    for one in found:
        one.may_decide = rights.may_decide(caller, one)
        one.sentence = decision_actions.sentence(one)
    found.sort(key=lambda one: not one.is_open)
    return Shown(decisions=found[:MOST], hidden=max(0, len(found) - MOST), orders=_orders(found, caller))


def _orders(decisions: list[Decision], caller: Caller) -> list[Order]:
    jobs = {one.attempt.job_id for one in decisions if one.attempt}
    nodes = {step.node_id for one in decisions for step in one.steps.all() if step.node_id}
    rows = rights.orders(caller).select_related("job__team", "node")
    found = [*rows.filter(job__in=jobs)[:MOST], *rows.filter(node__in=nodes)[:MOST]] if decisions else []
    for one in found:
        one.may_lift = rights.may_lift(caller, one)
    return found


VERBS: dict[str, tuple[Callable[..., None], str]] = {
    "approve": (decision_actions.approve, "approved"),
    "decline": (decision_actions.decline, "declined"),
    "undo": (decision_actions.undo, "undone"),
}


@require_POST
def verb(request: HttpRequest, number: int, decision: int, verb: str) -> HttpResponse:
    if verb not in VERBS:
        raise Http404("no such verb")
    caller = rights.of_user(request.user)
    row = _decision(caller, number, decision)
    act, told = VERBS[verb]
    if not rights.may_decide(caller, row):
        messages.error(
            request, "Not allowed: operators do that, and whoever may change the job where no node is closed."
        )
        return redirect("incident", number)
    why = said(request)
    try:
        act(row, author=Author.of(request), now=clock.now(), why=why)
    except (Moved, NodeError) as moved:
        messages.error(request, f"Conflict, nothing was changed: {moved}.")
    else:
        want_turn(row.cluster_id)
        messages.success(request, f"{row.action.capitalize()}: {told}.")
    return redirect("incident", number)


@require_safe
def replay(request: HttpRequest, number: int, decision: int) -> HttpResponse:
    row = _decision(rights.of_user(request.user), number, decision)
    row.sentence = decision_actions.sentence(row)
    context = {"decision": row, "differences": replaying.compared(row), "number": number}
    return render(request, "failures/replay.html", context)


@require_POST
def lift(request: HttpRequest, order: int) -> HttpResponse:
    caller = rights.of_user(request.user)
    row = get_object_or_404(rights.orders(caller).select_related("job__team", "node"), pk=order)
    if not rights.may_lift(caller, row):
        messages.error(request, "Not allowed: operators, and whoever may change the job, do that.")
    else:
        try:
            decision_actions.lift(row, author=Author.of(request), now=clock.now())
            messages.success(request, f"Recovery may decide about {row.subject} again.")
        except Moved as moved:
            messages.error(request, f"Conflict, nothing was changed: {moved}.")
    back = request.POST.get("incident", "")
    return redirect("incident", int(back)) if back.isdecimal() and len(back) < 18 else redirect("failures")


def _decision(caller: Caller, number: int, decision: int) -> Decision:
    rows = rights.decisions(caller).select_related(
        "attempt__job__team", "attempt__job__cluster", "incident", "sign__node"
    )
    return get_object_or_404(rows, pk=decision, incident_id=number)
