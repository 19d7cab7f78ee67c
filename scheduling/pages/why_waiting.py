"""The page that explains why a job waits, and its fragment on the job's page."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from jobs.core import timeline
from jobs.core.lifecycle import State
from jobs.models import Job, Team, clock
from jobs.web.page import render_page
from scheduling.queries.wait_explanation import WaitExplanation, explain_job


@require_safe
def wait_page(request: HttpRequest, public_id: str) -> HttpResponse:
    row = get_object_or_404(Job.objects.visible_to(request.user).select_related("cluster"), public_id=public_id)
    teams = None if request.user.is_superuser else set(Team.objects.where(request.user).values_list("name", flat=True))
    explanation = explain_job(row, teams)
    context = {
        "now": clock.now(),
        "job": row,
        "topic": f"job:{row.public_id}",
        "waits": row.state == State.PENDING,
        "told": explanation,
        "bar": _estimate_bar(row, explanation),
    }
    return render_page(request, "jobs/why.html", context, {"why": "jobs/_why.html"})


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
