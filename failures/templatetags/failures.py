"""Panels and filters for the pages of jobs and nodes. Templates use them, because jobs must not import failures."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import template

from failures.diagnosis.values import LineRole
from failures.pages import anomalies, incidents
from failures.queries.chart_events import chart_events
from failures.queries.node_marks import mark_lanes, newest_marks
from jobs.models import Job, Node

register = template.Library()


@register.inclusion_tag("failures/_diagnosis.html", takes_context=True)
def diagnosis_of(context: Any, job: Job) -> dict[str, Any]:
    """The diagnosis panel of a job. After the page has loaded, the panel refreshes itself."""
    request = context["request"]
    return incidents.diagnosis_panel(request, job) | {"now": context["now"], "csrf_token": context.get("csrf_token")}


@register.inclusion_tag("failures/cause.html")
def failure_cause_of(job: Job) -> dict[str, Any]:
    """The line in the banner of a failed job: the cause, and a link to the evidence in the log."""
    return incidents.failure_cause(job)


@register.inclusion_tag("failures/_node_anomalies.html", takes_context=True)
def anomalies_of(context: Any, node: Node) -> dict[str, Any]:
    """The health panel of a node: current and recent anomalies."""
    return anomalies.node_anomalies(node, context["now"])


@register.inclusion_tag("failures/node_marks.html")
def node_marks(node: Node, begin: datetime, end: datetime) -> dict[str, Any]:
    """What went wrong on a node, on the time axis of its page."""
    lanes = mark_lanes(node, begin, end)
    return {"lanes": lanes, "newest": newest_marks(lanes)}


@register.inclusion_tag("failures/_job_anomalies.html", takes_context=True)
def slow_steps_of(context: Any, job: Job) -> dict[str, Any]:
    """The panel of slow steps of a job."""
    return anomalies.job_anomalies(job, context["now"])


@register.inclusion_tag("failures/_chart_events.html")
def chart_events_of(job: Job) -> dict[str, Any]:
    """The table of events that the charts of a job mark."""
    return {"events": chart_events(job)}


ROLE_LABELS = {LineRole.INITIATING: "cause", LineRole.CASCADE: "symptom"}


@register.filter
def role_label(role: str) -> str:
    """The role of a line in the causal chain."""
    return ROLE_LABELS.get(LineRole(role), "teardown")


@register.filter
def split_words(text: str) -> list[str]:
    return text.split()


@register.filter
def of(filters: dict[str, str], name: str) -> str:
    return filters.get(name, "")
