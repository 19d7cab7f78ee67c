"""Jobs whose training can be compared with that of a job: earlier runs of the same name first."""

from __future__ import annotations

from django.db.models import Exists, OuterRef

from jobs.models import Job, LatestProgress
from jobs.models.job import JobQuerySet

MAX_SUGGESTIONS = 6


def comparable_jobs(job: Job, visible: JobQuerySet) -> list[Job]:
    """The newest jobs of the same team that reported progress: those of the same name, then those of the same kind."""
    reported = visible.filter(Exists(LatestProgress.objects.filter(attempt__job=OuterRef("pk"))), team=job.team_id)
    others = reported.exclude(pk=job.pk).order_by("-id").only("public_id", "name", "submitted_at")
    same_name = list(others.filter(name=job.name)[:MAX_SUGGESTIONS])
    room = MAX_SUGGESTIONS - len(same_name)
    return same_name + (list(others.filter(kind=job.kind).exclude(name=job.name)[:room]) if room else [])
