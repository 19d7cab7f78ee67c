"""One verb on many jobs: each for itself, so that what cannot be done to one of them stops no other."""

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
    """`error` is empty where it was done, or would be."""

    job: Job
    error: str = ""


class _JobDryRunRollback(Exception):
    """The end of a dry run: what it did is rolled back."""


def jobs_by_id(rows: QuerySet[Job], ids: Iterable[str]) -> QuerySet[Job]:
    """By id, or all tasks of an array by the array's."""
    return rows.filter(Q(public_id__in=ids) | (Q(array_id__in=ids) & ~Q(array_id="")))


def oldest_jobs(rows: QuerySet[Job]) -> Sequence[Job]:
    """The oldest first, and always in the same order, so that two who do this do not wait for each other; one more
    than `MOST_VERBS`, which says that there are more."""
    return list(rows.order_by("id")[: MAX_BULK_JOBS + 1])


def try_action(verb: JobAction, job: Job, wish: JobActionRequest, caller: Caller, *, dry: bool) -> BulkJobResult:
    try:
        with transaction.atomic():
            perform_job_action(verb, job, wish, caller)
            if dry:
                raise _JobDryRunRollback
    except _JobDryRunRollback:
        return BulkJobResult(job=job)
    except (job_actions.JobStateChanged, ForbiddenTransition, JobActionDenied) as error:
        return BulkJobResult(job=job, error=str(error))
    return BulkJobResult(job=job)
