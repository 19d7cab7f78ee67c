"""Applies one action to many jobs with a fixed number of statements. Jobs that refuse it do not affect the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db import transaction
from django.db.models import Q, QuerySet

from jobs.actions.job_verbs import JobAction, JobActionRequest, perform_job_actions
from jobs.actions.submissions import request_turn_after_commit
from jobs.models import Attempt, Job
from jobs.models.permissions import Caller

MAX_BULK_JOBS = 1000


@dataclass(frozen=True, kw_only=True)
class BulkJobResult:
    """The result for one job. `error` is empty if the action was applied, or would be in a dry run."""

    job: Job
    error: str = ""


def jobs_by_id(rows: QuerySet[Job], ids: Iterable[str], action: JobAction) -> QuerySet[Job]:
    """Return jobs by their id, and by the id of an array those tasks that the action can still change."""
    return rows.filter(Q(public_id__in=ids) | (Q(array_id__in=ids) & ~Q(array_id="") & action.changeable))


def oldest_keys(rows: QuerySet[Job], most: int = MAX_BULK_JOBS) -> list[int]:
    """Return the keys of the oldest jobs, at most one more than `most`; the extra one shows that there are more."""
    return list(rows.order_by("id").values_list("id", flat=True)[: most + 1])


def apply_to_jobs(
    action: JobAction, keys: Sequence[int], request: JobActionRequest, caller: Caller, *, dry: bool
) -> list[BulkJobResult]:
    """Apply the action in one transaction and return a result per job. A dry run is rolled back."""
    with transaction.atomic():
        jobs = _lock_jobs(keys)
        errors = perform_job_actions(action, jobs, request, caller)
        for cluster_id in {job.cluster_id for job in jobs if job.pk not in errors}:
            request_turn_after_commit(cluster_id)
        transaction.set_rollback(dry)
    return [BulkJobResult(job=job, error=str(errors.get(job.pk, ""))) for job in jobs]


def _lock_jobs(keys: Sequence[int]) -> list[Job]:
    """Lock the jobs and their live attempts in the same order as everybody, so that actions do not deadlock."""
    list(Attempt.objects.select_for_update().filter(job__in=keys, ended_at__isnull=True).order_by("pk").values("pk"))
    jobs = Job.objects.select_for_update(of=("self",)).filter(pk__in=keys)
    return list(jobs.select_related("user", "team", "cluster").order_by("pk"))
