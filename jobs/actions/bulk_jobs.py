"""Applies one action to many jobs. Each job is handled separately, so an error on one does not affect the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db import transaction
from django.db.models import Q, QuerySet

from jobs.actions import jobs as job_actions
from jobs.actions.job_verbs import JobAction, JobActionDenied, JobActionRequest, perform_job_action
from jobs.core.lifecycle import ForbiddenTransition
from jobs.models import Job
from jobs.models.permissions import Caller

MAX_BULK_JOBS = 1000


@dataclass(frozen=True, kw_only=True)
class BulkJobResult:
    """The result for one job. `error` is empty if the action was applied, or would be in a dry run."""

    job: Job
    error: str = ""


class _JobDryRunRollback(Exception):
    """Raised at the end of a dry run to roll back its changes."""


def jobs_by_id(rows: QuerySet[Job], ids: Iterable[str]) -> QuerySet[Job]:
    """Return jobs by their id, and all tasks of arrays by the id of the array."""
    return rows.filter(Q(public_id__in=ids) | (Q(array_id__in=ids) & ~Q(array_id="")))


def oldest_jobs(rows: QuerySet[Job], most: int = MAX_BULK_JOBS) -> Sequence[Job]:
    """Return the oldest jobs, at most one more than `most`; the extra one shows that there are more.

    The order is always the same, so two concurrent bulk actions lock the rows in the same order and cannot deadlock.
    """
    return list(rows.order_by("id")[: most + 1])


def try_action(action: JobAction, job: Job, request: JobActionRequest, caller: Caller, *, dry: bool) -> BulkJobResult:
    """Apply the action to one job and return the result. A dry run is rolled back."""
    try:
        # A savepoint per job: a database error on one job does not abort the surrounding transaction
        with transaction.atomic():
            perform_job_action(action, job, request, caller)
            if dry:
                raise _JobDryRunRollback
    except _JobDryRunRollback:
        return BulkJobResult(job=job)
    except (job_actions.JobStateChanged, ForbiddenTransition, JobActionDenied) as error:
        return BulkJobResult(job=job, error=str(error))
    return BulkJobResult(job=job)
