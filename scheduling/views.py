"""The page of why a job waits, and its fragment on the job's page."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from jobs import clock, timeline
from jobs.lifecycle import State
from jobs.models import Job, Team
from jobs.pages import answer
from scheduling.explaining import Answer, why


@require_safe
def why_it_waits(request: HttpRequest, public_id: str) -> HttpResponse:
    row = get_object_or_404(Job.objects.visible_to(request.user).select_related("cluster"), public_id=public_id)
    teams = None if request.user.is_superuser else set(Team.objects.where(request.user).values_list("name", flat=True))
    told = why(row, teams)
    context = {
        "now": clock.now(),
        "job": row,
        "topic": f"job:{row.public_id}",
        "waits": row.state == State.PENDING,
        "told": told,
        "bar": _bar(row, told),
    }
    return answer(request, "jobs/why.html", context, {"why": "jobs/_why.html"})


def _bar(row: Job, told: Answer) -> list[timeline.Span]:
    """From the submission to the late estimate."""
    if told.estimate is None:
        return []
    late = max(told.estimate.p90, told.at)
    likely = min(max(told.estimate.p50, told.at), late)
    pieces = [
        timeline.Piece(name="waited", tone="waiting", begin=row.submitted_at, end=told.at),
        timeline.Piece(name="likely start", tone="quiet", begin=told.at, end=likely),
        timeline.Piece(name="nine of ten times before", tone="starting", begin=likely, end=late),
    ]
    return timeline.spans(pieces, row.submitted_at, late)
