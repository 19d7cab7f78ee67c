"""Who may see and judge what: a log's words belong to its team, an incident to everybody whom it touches.

Whoever operates clusters sees every incident, its nodes and its cost, and whose jobs were in it; what a log said, only
who may see the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import Q, QuerySet

from failures.models import Decision, Diagnosis, Incident, LearnedRule, Order
from jobs.models.permissions import Caller


def caller_of_user(user: Any) -> Caller:
    """Somebody at a page: no token narrows what they may do."""
    return Caller(user=user)


def visible_diagnoses(caller: Caller) -> QuerySet[Diagnosis]:
    rows = Diagnosis.objects.all()
    return rows if caller.is_site_admin else rows.filter(attempt__job__team_id__in=sorted(caller.roles))


def visible_incidents(caller: Caller) -> QuerySet[Incident]:
    if caller.is_site_admin or caller.may_operate_clusters:
        return Incident.objects.all()
    return Incident.objects.affecting_jobs(caller.jobs())


def may_handle_incident(caller: Caller, incident: Incident) -> bool:
    """Acknowledge, resolve: who operates the machines, or may change a job that was in it."""
    if caller.may_operate_clusters or caller.is_site_admin:
        return True
    inside = visible_diagnoses(caller).filter(incident=incident).select_related("attempt__job")[:50]
    return any(caller.may_change(row.attempt.job) for row in inside)


def visible_decisions(caller: Caller) -> QuerySet[Decision]:
    """Whoever operates machines decides about nodes of any team's job."""
    rows = Decision.objects.all()
    return (
        rows
        if caller.is_site_admin or caller.may_operate_clusters
        else rows.filter(attempt__job__team_id__in=sorted(caller.roles))
    )


def visible_orders(caller: Caller) -> QuerySet[Order]:
    """An order about a node is everybody's to see, one about a job its team's."""
    rows = Order.objects.standing()
    if caller.is_site_admin or caller.may_operate_clusters:
        return rows
    return rows.filter(Q(job=None) | Q(job__team_id__in=sorted(caller.roles)))


def may_decide_on(caller: Caller, decision: Decision) -> bool:
    """Approve, decline, undo: closing and testing nodes is for operators, a job alone for whoever may change it."""
    if caller.may_operate_clusters or caller.is_site_admin:
        return True
    alone = decision.attempt is not None and not (decision.drain or decision.test)
    return alone and caller.may_change(decision.attempt.job)


def may_lift_order(caller: Caller, order: Order) -> bool:
    if caller.may_operate_clusters or caller.is_site_admin:
        return True
    return order.job is not None and caller.may_change(order.job)


def counted_team_ids(caller: Caller) -> Sequence[int] | None:
    """Whose failures a table counts; None: everybody's. Figures are no log lines, so operators see all of them."""
    return None if caller.is_site_admin or caller.may_operate_clusters else sorted(caller.roles)


def visible_rules(caller: Caller) -> QuerySet[LearnedRule]:
    """Operators keep the rulebook; others see what their own failures taught."""
    rows = LearnedRule.objects.all()
    if caller.is_site_admin or caller.may_operate_clusters:
        return rows
    return rows.filter(source__in=visible_diagnoses(caller).values("pk"))


def may_manage_rules(caller: Caller) -> bool:
    return bool(caller.is_site_admin or caller.may_operate_clusters)
