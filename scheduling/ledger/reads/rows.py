"""Rows of jobs, attempts and allocations for the ledger, as plain tuples. Writes nothing.

A month has some 200,000 rows. Model instances and datetimes would take a third of the time of a report, so PostgreSQL
returns times as microseconds since 1970.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.contrib.postgres.aggregates import ArrayAgg
from django.db.models import BigIntegerField, Exists, Expression, F, Func, Max, Min, OuterRef, Q
from django.db.models.expressions import RawSQL
from django.db.models.functions import Coalesce, Greatest

from jobs.core.lifecycle import Flag
from jobs.models import Allocation, Attempt, Cluster, HoldKind, Job
from jobs.models.job import HELD_MILLI


def any_of(keys: Iterable[int]) -> RawSQL:
    """Keys as one parameter of a query. Tens of thousands of parameters take seconds to bind."""
    return RawSQL("SELECT unnest(%s::bigint[])", [list(keys)])


class Microseconds(Func):
    """A time as microseconds since 1970. Exact, because PostgreSQL extracts the epoch as a numeric."""

    template = "(EXTRACT(EPOCH FROM %(expressions)s) * 1000000)::bigint"
    output_field = BigIntegerField()

    def __init__(self, time: str | Expression) -> None:
        super().__init__(F(time) if isinstance(time, str) else time)


class JobRow(NamedTuple):
    """What the ledger needs of a job. Times are in microseconds since 1970."""

    pk: int
    team: int
    kind: str
    nodes: int
    gpus_per_node: int
    gpu_milli: int
    gpu_model: str
    state: str
    hold: str
    flags: Sequence[str]
    reason: str
    submitted: int
    eligible: int | None
    ended: int | None

    @property
    def gpus(self) -> int:
        """Whole ones."""
        return self.nodes * self.gpus_per_node


class AttemptRow(NamedTuple):
    """What the ledger needs of an attempt. Times are in microseconds since 1970."""

    pk: int
    job: int
    state: str
    cause: str
    promised: int
    confirmed: int | None
    ended: int | None
    progress_source: str | None  # None: it has no progress
    progressed: int | None


class AllocationRow(NamedTuple):
    """The GPUs of one node that an attempt held in the same period."""

    attempt: int
    node: int
    foreign_id: str
    held: int
    released: int | None
    gpus: Sequence[int]  # empty: the indices are unknown
    requested: int
    milli: int  # thousandths of each; 1000: whole GPUs. Of a MIG slice, those of its profile


class OpenWait(NamedTuple):
    """Waiting jobs that never started and request the same GPUs. Times are in microseconds since 1970."""

    gpus_per_node: int
    gpu_milli: int
    gpu_model: str
    since: int  # of the one that has waited longest


def jobs_in_period(cluster: Cluster, since: datetime, until: datetime) -> list[JobRow]:
    """Return the jobs that were submitted before the end of the period and did not end before it began, except those
    that have only waited so far (`open_waits`)."""
    rows = _jobs_in_period(
        cluster, since, until,
        *("pk", "team", "kind", "nodes", "gpus_per_node", "gpu_milli", "gpu_model"),
        *("state", "hold", "flags", "reason"),
        *(Microseconds("submitted_at"), Microseconds("begin_at"), Microseconds("ended_at")),
    )  # fmt: skip
    return [JobRow._make(row) for row in rows]


def count_jobs(cluster: Cluster, since: datetime, until: datetime, at_most: int) -> int:
    """Return the number of jobs in the period, counted up to this number."""
    count: int = _jobs_in_period(cluster, since, until, "pk")[:at_most].count()
    return count


def _jobs_in_period(cluster: Cluster, since: datetime, until: datetime, *columns: str | Expression) -> Any:
    """Return the union of three queries. Each has an index; one query with OR reads all jobs of the cluster."""
    jobs = Job.objects.filter(cluster=cluster, submitted_at__lt=until).order_by()
    unended = jobs.filter(ended_at=None)
    ended, live, requeued = (
        rows.values_list(*columns)
        for rows in (jobs.filter(ended_at__gte=since), unended.live(), unended.waiting().filter(_has_attempt()))
    )
    return ended.union(live, requeued, all=True)


def _has_attempt() -> Exists:
    return Exists(Attempt.objects.filter(job=OuterRef("pk")))


def open_waits(cluster: Cluster, until: datetime, not_eligible: Sequence[str]) -> list[OpenWait]:
    """Return the waits of jobs that never started, which last until now. Tens of thousands of jobs may wait, but only
    the longest wait for the same GPUs matters. Jobs on hold and jobs with one of these reasons do not count."""
    jobs = Job.objects.waiting().filter(cluster=cluster, ended_at=None, submitted_at__lt=until, hold=HoldKind.NONE)
    jobs = jobs.exclude(flags__contains=[Flag.REQUEUE_HOLD]).exclude(reason__in=not_eligible)
    ready_at = Greatest("submitted_at", Coalesce("begin_at", "submitted_at"))
    rows: Any = jobs.filter(~_has_attempt()).order_by().values_list("gpus_per_node", "gpu_milli", "gpu_model")
    return [OpenWait._make(row) for row in rows.annotate(since=Microseconds(Min(ready_at)))]


def attempts_by_job(jobs: Sequence[int]) -> dict[int, list[AttemptRow]]:
    """Return the attempts of these jobs, the first attempt of each job first."""
    attempts = Attempt.objects.filter(job__in=any_of(jobs)).order_by("job", "number")
    rows: Any = attempts.values_list(
        *("pk", "job", "state", "cause"),
        *(Microseconds("promised_at"), Microseconds("confirmed_at"), Microseconds("ended_at")),
        *("latest_progress__source", Microseconds("latest_progress__at")),
    )
    by_job: dict[int, list[AttemptRow]] = defaultdict(list)
    for row in rows:
        attempt = AttemptRow._make(row)
        by_job[attempt.job].append(attempt)
    return by_job


def allocations(attempts: Sequence[int]) -> list[AllocationRow]:
    """Return the allocations of these attempts, one row per attempt, node and period."""
    rows: Any = (
        Allocation.objects.filter(attempt__in=any_of(attempts))
        .order_by()
        .values_list(
            *("attempt", "node", "attempt__job__foreign_id"), Microseconds("held_at"), Microseconds("released_at")
        )
        .annotate(
            gpus=ArrayAgg("gpu", filter=Q(gpu__isnull=False), default=[]),
            requested=Max("attempt__job__gpus_per_node"),
            milli=Min(HELD_MILLI),
        )
    )
    return [AllocationRow._make(row) for row in rows]
