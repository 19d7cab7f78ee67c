"""The tabs of a job's page. Each has its own URL, so that it can be linked and the Back button works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.urls import reverse

from jobs.models import Job
from jobs.web.page import PageQuery

OVERVIEW = "overview"
TAB_LABELS = {OVERVIEW: "Overview", "metrics": "Metrics", "log": "Log", "gpus": "GPUs", "events": "Events"}


@dataclass(frozen=True, kw_only=True)
class JobTab:
    name: str
    label: str
    url: str


def job_tabs(job: Job, address: PageQuery) -> dict[str, Any]:
    """The context of the tabs: all of them, and the one to show."""
    page = reverse("job", args=[job.public_id])
    tabs = [
        JobTab(name=name, label=label, url=page if name == OVERVIEW else f"{page}?tab={name}")
        for name, label in TAB_LABELS.items()
    ]
    shown = address.choice_value("tab", list(TAB_LABELS), OVERVIEW)
    return {"tabs": tabs, "tab": next(tab for tab in tabs if tab.name == shown)}
