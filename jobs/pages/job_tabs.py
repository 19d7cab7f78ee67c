"""The tabs of a job's page. Each has its own URL, so that it can be linked and the Back button works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.urls import reverse

from jobs.models import Job

OVERVIEW, LOG = "overview", "log"
TAB_LABELS = {OVERVIEW: "Overview", "metrics": "Metrics", LOG: "Log", "gpus": "GPUs", "events": "Events"}
PANEL_TABS = [name for name in TAB_LABELS if name != LOG]  # the log has a view of its own


@dataclass(frozen=True, kw_only=True)
class JobTab:
    name: str
    label: str
    url: str


def tab_context(job: Job, name: str) -> dict[str, Any]:
    """The context of the tabs: all of them, and the one to show."""
    tabs = [JobTab(name=name, label=label, url=_tab_url(job, name)) for name, label in TAB_LABELS.items()]
    return {"tabs": tabs, "tab": next(tab for tab in tabs if tab.name == name)}


def _tab_url(job: Job, name: str) -> str:
    page = reverse("job", args=[job.public_id])
    if name == LOG:
        return reverse("log", args=[job.public_id])
    return page if name == OVERVIEW else f"{page}?tab={name}"
