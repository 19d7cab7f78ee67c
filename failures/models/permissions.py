"""Access rules for failures. The text of a log is visible to its team, an incident to every team that it affects.

Operators of clusters see all incidents with their nodes, cost and affected jobs, but log text only of jobs that they
can see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import Q, QuerySet

from failures.models import Decision, Diagnosis, Incident, LearnedRule, ManualOverride
from failures.models.incident import IncidentQuerySet
from jobs.models.permissions import Caller


def caller_of_user(user: Any) -> Caller:
    """The caller for a user of the web pages, without restrictions by a token."""
    return Caller(user=user)


def visible_diagnoses(caller: Caller) -> QuerySet[Diagnosis]:
    rows = Diagnosis.objects.all()
    return rows if caller.is_site_admin else rows.filter(attempt__job__team_id__in=sorted(caller.roles))


def visible_incidents(caller: Caller) -> IncidentQuerySet:
    if caller.acts_for_all_teams:
        return Incident.objects.all()
    return Incident.objects.affecting_jobs(caller.jobs())


def may_handle_incident(caller: Caller, incident: Incident) -> bool:
    """Whether the caller may acknowledge and resolve the incident: operators, and users who can change a failed job."""
    if caller.acts_for_all_teams:
        return True
    diagnoses = visible_diagnoses(caller).filter(incident=incident).select_related("attempt__job")[:50]
    return any(caller.may_change(row.attempt.job) for row in diagnoses)


def visible_decisions(caller: Caller) -> QuerySet[Decision]:
    """Decisions that the caller may see. Operators see those of all teams, because they decide about nodes."""
    rows = Decision.objects.all()
    return rows if caller.acts_for_all_teams else rows.filter(attempt__job__team_id__in=sorted(caller.roles))


def visible_overrides(caller: Caller) -> QuerySet[ManualOverride]:
    """Manual overrides that the caller may see: those about nodes, and those about jobs of the caller's teams."""
    rows, seen = ManualOverride.objects.active(), Q(job=None) | Q(job__team_id__in=sorted(caller.roles))
    return rows if caller.acts_for_all_teams else rows.filter(seen)


def may_decide_on(caller: Caller, decision: Decision) -> bool:
    """Whether the caller may approve, decline and undo. If nodes are drained or tested, only operators may."""
    only_job = decision.attempt is not None and not (decision.drain or decision.test)
    return caller.acts_for_all_teams or (only_job and caller.may_change(decision.attempt.job))


def may_lift_override(caller: Caller, override: ManualOverride) -> bool:
    return caller.acts_for_all_teams or (override.job is not None and caller.may_change(override.job))


def counted_team_ids(caller: Caller) -> Sequence[int] | None:
    """The ids of the teams whose failures are counted; None for all. Operators see the statistics of all teams."""
    return None if caller.acts_for_all_teams else sorted(caller.roles)


def visible_rules(caller: Caller) -> QuerySet[LearnedRule]:
    """Rules that the caller may see. Operators see all, other users those learned from failures of their teams."""
    rows, own = LearnedRule.objects.all(), visible_diagnoses(caller).values("pk")
    return rows if caller.acts_for_all_teams else rows.filter(source__in=own)


def may_manage_rules(caller: Caller) -> bool:
    return caller.acts_for_all_teams
