"""The page of one job and its actions. The log is in `job_log`, the submit form in `submit`.

Views load rows and render templates. All changes go through `jobs.actions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_POST, require_safe

from acmeweb.common.errors import InvalidField, NotAllowed, StateConflict
from jobs.actions.job_verbs import (
    JOB_ACTIONS,
    JobActionRequest,
    available_job_actions,
    has_unknown_outcome,
    perform_job_action,
    read_priority,
)
from jobs.actions.journal import Author
from jobs.actions.wake import request_turn
from jobs.core import masking
from jobs.core.charts import timeline
from jobs.core.display_text import safe_display_text, strip_control_characters
from jobs.core.hostlist import compress
from jobs.core.lifecycle import State
from jobs.core.request_fields import TEXTS_ON_PAGE
from jobs.models import Attempt, Job, clock
from jobs.models.permissions import Caller
from jobs.pages import progress, run_comparison
from jobs.pages.job_tabs import OVERVIEW, PANEL_TABS, tab_context
from jobs.queries import checkpoint_advice
from jobs.web import job_forms
from jobs.web.page import MAX_EVENTS, PageQuery, posted_text, render_page

# --- one job

FOREIGN_ORIGIN = "submitted to the cluster, not through Acme"


@require_safe
def job_page(request: HttpRequest, public_id: str) -> HttpResponse:
    address = PageQuery(request.GET)
    row = visible_job(request, public_id)
    visible = Job.objects.visible_to(request.user)
    # Before the page is rendered, because errors of the URL are shown above its content
    compared = run_comparison.compared_jobs(row, visible, address)
    context = job_context(request, row, address.choice_value("tab", PANEL_TABS, OVERVIEW), compared)
    return render_page(request, "jobs/job.html", context, JOB_FRAGMENTS, address.wrong)


JOB_FRAGMENTS = {part: f"jobs/_{part}.html" for part in ("job", "events", "progress")}


def job_context(request: HttpRequest, row: Job, tab: str, compared: Sequence[Job] = ()) -> dict[str, Any]:
    """What all tabs of a job's page need. Values that only one tab needs are functions."""
    visible = Job.objects.visible_to(request.user)
    now = clock.now()
    attempts = list(row.attempts.all())
    verbs = available_job_actions(row, Caller(user=request.user))
    return {
        **tab_context(row, tab),
        "now": now,
        "job": row,
        "topic": job_topic(row),
        "waits": row.state == State.PENDING,
        "attempts": [(attempt, _attempt_bar(row, attempt, now)) for attempt in attempts],
        "progress": cache(lambda: progress.progress_panel(row, attempts[-1] if attempts else None, compared, visible)),
        "places": cache(lambda: _allocated_nodes(attempts[-1]) if attempts else []),
        "dependencies": cache(lambda: list(row.dependencies.select_related("on"))),
        "events": cache(lambda: list(row.events.order_by("-id")[:MAX_EVENTS])),
        "verbs": [verb for verb in verbs if not verb.records_outcome],
        "backend_id": attempts[-1].backend_id if attempts else "",
        "lacks_outcome": has_unknown_outcome(row) and bool(verbs),
        "saving": cache(lambda: checkpoint_advice.job_checkpoint_advice(row, attempts, now)),
        "deadline_text": row.deadline.text(now) if row.deadline else "",
        "preemption_standing": cache(lambda: _preemption_standing(row, attempts, now)),
        "environment": _cleaned_values(masking.mask_secrets(row.environment)),
        "command": safe_display_text(row.command),
        "comment": safe_display_text(row.comment),
        "labels": cache(lambda: _cleaned_values(masking.mask_secrets(row.labels))),
        "requested_texts": _requested_texts(row),
        **_job_texts(row),
    }


def _preemption_standing(row: Job, attempts: Sequence[Attempt], now: datetime) -> str:
    """Whether the contract of a running job permits a preemption now; empty without terms."""
    contract = row.preemption_contract
    if not (row.is_live and row.preemptible and attempts) or contract.is_default:
        return ""
    return contract.standing(attempts[-1].preemption_facts(), now).why


def _requested_texts(row: Job) -> list[tuple[str, str]]:
    """The plain texts of the request under their labels, without empty ones."""
    values = ((field.label, getattr(row, name)) for name, field in TEXTS_ON_PAGE.items())
    return [(label, ", ".join(value) if isinstance(value, list) else value) for label, value in values if value]


def _job_texts(row: Job) -> dict[str, str]:
    """The words of the page that depend on the state of the job and on who submitted it."""
    foreign = "submitted by another Acme installation," if row.installation else FOREIGN_ORIGIN
    return {
        "why_title": "How it ended" if row.is_final else "Current status" if row.is_live else "Why it waits",
        "reason": "" if row.is_final else row.reason,
        "nodes_label": "Runs on" if row.is_live else "Ran on",
        "timeline_end": "ended" if row.ended_at else "now",
        "origin": foreign,
    }


def _cleaned_values(values: dict[str, str]) -> dict[str, str]:
    return {name: strip_control_characters(value) for name, value in values.items()}


def job_topic(row: Job) -> str:
    return f"job:{row.public_id}"


def visible_job(request: HttpRequest, public_id: str) -> Job:
    """The job, or 404 if the user may not see it. The response does not reveal that the job exists."""
    rows = Job.objects.visible_to(request.user).select_related("user", "team", "cluster")
    return get_object_or_404(rows, public_id=public_id)


def _attempt_bar(row: Job, attempt: Attempt, now: datetime) -> list[timeline.TimelineBar]:
    pieces = [
        timeline.TimelineEntry(
            name="Preparing",
            tone="starting",
            begin=attempt.promised_at,
            end=attempt.confirmed_at or attempt.ended_at,
        )
    ]
    if attempt.confirmed_at:
        badge = attempt.badge
        pieces.append(
            timeline.TimelineEntry(name=badge.label, tone=badge.tone, begin=attempt.confirmed_at, end=attempt.ended_at)
        )
    return timeline.timeline_bars(pieces, row.submitted_at, row.ended_at or now)


@dataclass(frozen=True, kw_only=True)
class AllocatedNodeGroup:
    """Nodes on which an attempt holds the same GPU indexes."""

    nodelist: str
    names: list[str]
    gpus: str
    share: str = ""  # the part of the GPU, such as 0.5; empty for whole GPUs


def _allocated_nodes(attempt: Attempt) -> list[AllocatedNodeGroup]:
    gpus_by_node: dict[str, list[int]] = {}
    for name, gpu in attempt.allocations.order_by("node__name", "gpu").values_list("node__name", "gpu"):
        gpus_by_node.setdefault(name, []).extend([] if gpu is None else [gpu])
    nodes_by_gpus: dict[tuple[int, ...], list[str]] = {}
    for name, gpus in gpus_by_node.items():
        nodes_by_gpus.setdefault(tuple(gpus), []).append(name)
    return [
        AllocatedNodeGroup(
            nodelist=compress(names),
            names=names if len(names) <= 8 else [],
            gpus=gpu_index_text(gpus),
            share=str(attempt.job.gpus) if attempt.job.gpu_milli else "",
        )
        for gpus, names in nodes_by_gpus.items()
    ]


def gpu_index_text(gpus: Iterable[int]) -> str:
    """The indexes as ranges: 0,1,2,3,6 becomes `0-3,6`."""
    ranges = compress(str(gpu) for gpu in gpus)
    return ranges.strip("[]") or "no GPU"


# --- actions


@require_POST
def job_action_view(request: HttpRequest, public_id: str, name: str) -> HttpResponse:
    verb = JOB_ACTIONS.get(name)
    row = visible_job(request, public_id)
    if verb is None:
        raise Http404("unknown verb")
    why = posted_text(request)
    try:
        priority = (
            read_priority("priority", job_forms.number_or_text(request.POST.get("priority", "")))
            if verb.takes_priority
            else 0
        )
        action = JobActionRequest(author=Author.of(request), why=why, priority=priority)
        perform_job_action(verb, row, action, Caller(user=request.user))
    except NotAllowed as refusal:
        messages.error(request, f"Not allowed: {refusal}")
    except InvalidField as bad:
        messages.error(request, f"Nothing was changed: {bad}.")
    except StateConflict as error:
        messages.error(request, f"Conflict, nothing was changed: {error}.")
    else:
        request_turn(row.cluster_id)
        # The cluster stops a running job later; only the request is recorded now
        messages.success(request, f"{verb.label}: {'requested.' if row.is_live else 'done.'}")
    return redirect("job", public_id)
