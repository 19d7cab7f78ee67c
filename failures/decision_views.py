"""Decisions on the page of their incident: for and against, a person's yes or no, and what today's rules would do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from failures import decision_actions, rights
from failures import replay as replaying
from failures.actions import Moved
from failures.models import Course, Decision, Incident, Order
from failures.models.decision import OPEN
from failures.recovery.resizing import Asked, Differs, applied
from jobs import clock, forms, masking
from jobs.journal import Author
from jobs.models import Job, Role
from jobs.node_actions import NodeError
from jobs.pages import said
from jobs.resuming import TEMPLATE, resuming
from jobs.rights import Caller
from jobs.wishes import want_turn

MOST = 20
UNDER_WAY = (*OPEN, Course.DONE)


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
        one.may_ask_anew = _may_ask_anew(one, caller)
    found.sort(key=lambda one: not one.is_open)
    return Shown(decisions=found[:MOST], hidden=max(0, len(found) - MOST), orders=_orders(found, caller))


def _may_ask_anew(one: Decision, caller: Caller) -> bool:
    known = one.attempt is not None and caller.has(Role.VIEWER, one.attempt.job.team_id)
    return known and bool(one.change) and one.course not in UNDER_WAY


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


@require_safe
def new_job(request: HttpRequest, number: int, decision: int) -> HttpResponse:
    """The form of a new job that asks for what the decision says, filled in: for a job that does not wait any more."""
    row = _decision(rights.of_user(request.user), number, decision)
    if row.attempt is None or not row.change:
        raise Http404("nothing would be asked for instead")
    job = get_object_or_404(Job.objects.visible_to(request.user).select_related("cluster"), pk=row.attempt.job_id)
    initial = forms.again(job, secrets=job.user_id == request.user.pk)
    try:
        initial |= _asked_instead(row, job, initial, request)
    except Differs as other:
        messages.info(request, f"The job is filled in as it was: {other}.")
    form = forms.SubmitForm(user=request.user, initial=initial)
    page = {"form": form, "may_submit": form.fields["team"].queryset.exists()}
    return render(request, "jobs/submit.html", page)


def _asked_instead(row: Decision, job: Job, initial: dict[str, Any], request: HttpRequest) -> dict[str, Any]:
    """With the checkpoint that was chosen; secrets of others are left out, as wherever a job is asked for once more."""
    own = job.user_id == request.user.pk
    environment = job.environment if own else masking.without_secrets(job.environment)
    asked = Asked(command=initial["command"], environment=environment, memory_mb=job.memory_per_node_mb)
    new = applied(row.changes, asked)
    resume = {"path": row.checkpoint_path, "step": row.checkpoint_step} if row.checkpoint_step is not None else {}
    told = resuming(resume, job.environment.get(TEMPLATE, ""))
    return {
        "command": new.command,
        "environment": forms.lines({**new.environment, **told}),
        "memory_per_node": f"{new.memory_mb}M" if new.memory_mb else "",
    }


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
