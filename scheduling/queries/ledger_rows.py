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
from django.db.models import BigIntegerField, Expression, F, Func, Max, Q, QuerySet
from django.db.models.expressions import RawSQL

from jobs.core.lifecycle import FINAL_STATES
from jobs.models import Allocation, Attempt, Cluster, Job


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


def jobs_in_period(cluster: Cluster, since: datetime, until: datetime) -> list[JobRow]:
    """Return the jobs that were submitted before the end of the period and did not end before it began."""
    rows: Any = _jobs_in_period(cluster, since, until).values_list(
        *("pk", "team", "kind", "nodes", "gpus_per_node", "gpu_model"),
        *("state", "hold", "flags", "reason"),
        *(Microseconds("submitted_at"), Microseconds("begin_at"), Microseconds("ended_at")),
    )
    return [JobRow._make(row) for row in rows]


def count_jobs(cluster: Cluster, since: datetime, until: datetime, at_most: int) -> int:
    """Return the number of jobs in the period, counted up to this number."""
    return _jobs_in_period(cluster, since, until).values("pk")[:at_most].count()


def _jobs_in_period(cluster: Cluster, since: datetime, until: datetime) -> QuerySet[Job]:
    ended = Q(ended_at__gte=since) | (Q(ended_at=None) & ~Q(state__in=FINAL_STATES))
    return Job.objects.filter(ended, cluster=cluster, submitted_at__lt=until).order_by()


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
            gpus=ArrayAgg("gpu", filter=Q(gpu__isnull=False), default=[]), requested=Max("attempt__job__gpus_per_node")
        )
    )
    return [AllocationRow._make(row) for row in rows]
