"""The diagnosis of a job as part of its page: jobs know nothing of failures, their template asks here."""

from __future__ import annotations

from typing import Any

from django import template

from failures import views
from jobs.models import Job

register = template.Library()


@register.inclusion_tag("failures/_diagnosis.html", takes_context=True)
def diagnosis_of(context: Any, job: Job) -> dict[str, Any]:
    """The panel as the page opens; afterwards the fragment asks for itself."""
    request = context["request"]
    return views.panel(request, job) | {"now": context["now"], "csrf_token": context.get("csrf_token")}


@register.filter
def hours(value: float) -> str:
    """GPU-hours: three figures are enough; nothing at all is a plain 0."""
    if not value:
        return "0"
    if 0 < value < 0.01:
        return "<0.01"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


@register.filter
def minutes(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


@register.filter
def split_words(text: str) -> list[str]:
    return text.split()


@register.filter
def of(asked: dict[str, str], name: str) -> str:
    return asked.get(name, "")
