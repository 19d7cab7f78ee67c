"""The page that explains why a job waits, and its fragment on the job's page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.template.defaultfilters import pluralize
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_safe

from jobs.actions.job_verbs import is_replaceable
from jobs.core.charts import timeline
from jobs.core.lifecycle import State
from jobs.models import Job, clock
from jobs.models.permissions import Caller
from jobs.web.page import render_page
from scheduling.engine.blockers import Blocker, BlockerKind, Holder
from scheduling.engine.changes import SuggestedChange
from scheduling.queries.wait_explanation import WaitExplanation, explain_job

# Options in a job's command that repeat what the job requests, such as `torchrun --nproc-per-node 8`
OPTION_PATTERNS = {
    "gpus_per_node": re.compile(r"--nproc[-_]per[-_]node[= ](\d{1,6})\b"),
    "nodes": re.compile(r"--nnodes[= ](\d{1,6})\b"),
}


@require_safe
def wait_page(request: HttpRequest, public_id: str) -> HttpResponse:
    row = get_object_or_404(Job.objects.visible_to(request.user).select_related("cluster"), public_id=public_id)
    explanation = explain_job(row, Caller(user=request.user).visible_team_names())
    context = {
        "now": clock.now(),
        "job": row,
        "topic": f"job:{row.public_id}",
        "waits": row.state == State.PENDING,
        "explanation": explanation,
        "blockers": [BlockerText.of(blocker) for blocker in explanation.blockers],
        "suggestions": [Suggestion.of(change, row, request.user.pk) for change in explanation.changes],
        "bar": _estimate_bar(row, explanation),
    }
    return render_page(request, "jobs/why.html", context, {"why": "jobs/_why.html"})


@dataclass(frozen=True, kw_only=True)
class HolderText:
    """What holds resources: one job with a link, or the number of jobs that are not named."""

    gpus: float
    job: Holder | None
    others: str

    @classmethod
    def of(cls, holder: Holder, is_first: bool) -> HolderText:
        if holder.job:
            return cls(gpus=holder.gpus, job=holder, others="")
        more = "" if is_first and not holder.team else "more "
        others = f"{holder.jobs} {more}job{pluralize(holder.jobs)} of {holder.team or 'other teams'}"
        return cls(gpus=holder.gpus, job=None, others=others)


@dataclass(frozen=True, kw_only=True)
class BlockerText:
    """What the page says about a blocker."""

    kind: str
    why: str
    amount: str
    holders_title: str
    holders: list[HolderText]

    @classmethod
    def of(cls, blocker: Blocker) -> BlockerText:
        is_ahead = blocker.kind in (BlockerKind.PRIORITY, BlockerKind.RESERVATION)
        return cls(
            kind=blocker.kind,
            why=blocker.why,
            amount=blocker_amount(blocker),
            holders_title="Jobs ahead" if is_ahead else "Held by",
            holders=[HolderText.of(holder, place == 0) for place, holder in enumerate(blocker.holders)],
        )


def blocker_amount(blocker: Blocker) -> str:
    """How much is missing, or an empty string if the blocker's sentence says everything."""
    nodes = f"{blocker.nodes} {{}}node{pluralize(blocker.nodes)}"
    if blocker.gpus:
        gpus = f"{blocker.gpus} GPU{pluralize(blocker.gpus)}"
        on_nodes = f" on {nodes.format('')}" if blocker.nodes else ""
        texts = {
            BlockerKind.PRIORITY: f"{gpus} requested by jobs ahead",
            BlockerKind.QUOTA: f"{gpus} over the quota",
            BlockerKind.CAPACITY: f"{gpus} missing{on_nodes}",
        }
        return texts.get(blocker.kind, "")
    if blocker.kind == BlockerKind.TOPOLOGY and blocker.nodes:
        return f"Enough GPUs are free, but scattered. The job needs room on {nodes.format('more ')}."
    return ""


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A change that would start the job, and how the user can make it."""

    who: str
    why: str
    fields: dict[str, str]  # of the job request
    can_apply: bool
    edit_url: str
    conflict: str  # an option of the command that contradicts the change

    @classmethod
    def of(cls, change: SuggestedChange, job: Job, user_id: int) -> Suggestion:
        fields = {name: str(value) for name, value in change.request.items()}
        conflict = conflicting_option(job.command, fields)
        return cls(
            who=change.who,
            why=change.why,
            fields=fields,
            can_apply=bool(fields) and not conflict and is_replaceable(job, user_id),
            edit_url=f"{reverse('submit')}?{urlencode({'from': job.public_id} | fields)}" if fields else "",
            conflict=conflict,
        )

    @property
    def fields_text(self) -> str:
        return ", ".join(f"{name} {value or 'empty'}" for name, value in self.fields.items())


def _estimate_bar(row: Job, explanation: WaitExplanation) -> list[timeline.TimelineBar]:
    """Return the timeline from the submission to the P90 estimate."""
    if explanation.estimate is None:
        return []
    late = max(explanation.estimate.p90, explanation.at)
    likely = min(max(explanation.estimate.p50, explanation.at), late)
    pieces = [
        timeline.TimelineEntry(name="waited", tone="waiting", begin=row.submitted_at, end=explanation.at),
        timeline.TimelineEntry(name="likely start", tone="quiet", begin=explanation.at, end=likely),
        timeline.TimelineEntry(name="90% likely by", tone="starting", begin=likely, end=late),
    ]
    return timeline.timeline_bars(pieces, row.submitted_at, late)


def conflicting_option(command: str, changes: Mapping[str, Any]) -> str:
    """Return the option of the command that contradicts a changed request, or an empty string."""
    for field, pattern in OPTION_PATTERNS.items():
        option = pattern.search(command) if field in changes else None
        if option and int(option[1]) != int(changes[field]):
            return option[0]
    return ""
