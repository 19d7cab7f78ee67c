"""Forms that inject faults, for the pages of jobs and nodes, because jobs must not import scheduling."""

from __future__ import annotations

from typing import Any

from django import template

from jobs.models import Job, Node
from scheduling.pages import faults

register = template.Library()


@register.inclusion_tag("scheduling/_inject_fault.html", takes_context=True)
def inject_job_fault(context: Any, job: Job) -> dict[str, Any]:
    return faults.job_fault_form(context["request"].user, job) | {"csrf_token": context.get("csrf_token")}


@register.inclusion_tag("scheduling/_inject_fault.html", takes_context=True)
def inject_node_fault(context: Any, node: Node) -> dict[str, Any]:
    return faults.node_fault_form(context["request"].user, node) | {"csrf_token": context.get("csrf_token")}
