"""The verb that promises waiting jobs their GPUs, many in one transaction: a burst must not cost a commit for each.

Intent before deed: a promised job is CONFIGURING, its GPUs are taken, and a Deed says that its cluster must be told.
What people did since the scheduler looked is respected under locks: a hold, a cancel, a drain of any of the nodes. The
database refuses a second live holder of a GPU and a second live attempt of a job, with all that were to be promised
beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from django.db import connection, transaction
from django.db.models import Max

from acmeweb.common import live
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.actions.stop import JobStateChanged
from jobs.core.hostlist import compress
from jobs.core.lifecycle import Flag, State
from jobs.models import Allocation, Attempt, ClusterCommandKind, Deed, Event, HoldKind, Job, Node, bulk_copy


@dataclass(frozen=True, kw_only=True)
class NodeGpus:
    """Where on one node."""

    node_id: int
    name: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class JobPlacement:
    """What one waiting job is to get."""

    job_id: int
    places: Sequence[NodeGpus]
    why: str

    @property
    def nodes(self) -> set[int]:
        return {place.node_id for place in self.places}


@dataclass(frozen=True, kw_only=True)
class AllocationResult:
    kept: list[Attempt] = field(default_factory=list)
    left: dict[int, str] = field(default_factory=dict)  # job -> why it was not promised after all


def allocate_job(job: Job, places: Sequence[NodeGpus], *, author: Author, why: str, log_root: str = "") -> Attempt:
    """One alone; Moved where it cannot be."""
    made = allocate_jobs([JobPlacement(job_id=job.pk, places=places, why=why)], author=author, log_root=log_root)
    if made.left:
        raise JobStateChanged(made.left[job.pk])
    job.refresh_from_db()
    (attempt,) = made.kept
    attempt.job = job
    return attempt


@transaction.atomic
def allocate_jobs(wanted: Sequence[JobPlacement], *, author: Author, log_root: str = "") -> AllocationResult:
    """Those that can still be had; the others are named. IntegrityError where somebody else holds one of the GPUs."""
    jobs = {job.pk: job for job in _lock_jobs(wanted)}
    usable = _lock_usable_nodes(wanted)
    left = {one.job_id: why for one in wanted if (why := _skip_reason(one, jobs[one.job_id], usable))}
    chosen = [one for one in wanted if one.job_id not in left]
    if not chosen:
        return AllocationResult(left=left)
    attempts = _create_attempts(chosen, jobs, log_root)
    Allocation.objects.bulk_create(
        [
            Allocation(attempt=attempt, node_id=place.node_id, gpu=gpu)
            for attempt, one in zip(attempts, chosen, strict=True)
            for place in one.places
            for gpu in (place.gpus or (None,))
        ]
    )
    Deed.objects.bulk_create(
        [
            Deed(cluster_id=jobs[one.job_id].cluster_id, kind=ClusterCommandKind.SUBMIT, attempt=attempt)
            for attempt, one in zip(attempts, chosen, strict=True)
        ]
    )
    _mark_configuring(chosen)
    bulk_copy.insert([_allocation_event(attempt, one, author) for attempt, one in zip(attempts, chosen, strict=True)])
    live.publish_on_commit("queue", *(f"job:{jobs[one.job_id].public_id}" for one in chosen))
    return AllocationResult(kept=attempts, left=left)


def _lock_jobs(wanted: Sequence[JobPlacement]) -> Collection[Job]:
    rows = Job.objects.filter(pk__in=[one.job_id for one in wanted]).select_for_update(of=("self",)).order_by("pk")
    return rows.only("public_id", "state", "hold", "cluster_id")


def _lock_usable_nodes(wanted: Sequence[JobPlacement]) -> set[int]:
    asked = {node for one in wanted for node in one.nodes}
    rows = Node.objects.usable().filter(pk__in=asked).select_for_update(no_key=True).order_by("pk")
    return set(rows.values_list("pk", flat=True))


def _skip_reason(one: JobPlacement, job: Job, usable: set[int]) -> str:
    if job.state != State.PENDING:
        return f"{job} is {job.state}; only a job that waits is promised anything"
    if job.hold != HoldKind.NONE:
        return f"{job} was held a moment ago"
    return "" if one.nodes <= usable else f"a node promised to {job} was closed a moment ago"


def _create_attempts(chosen: Sequence[JobPlacement], jobs: dict[int, Job], log_root: str) -> list[Attempt]:
    before = Attempt.objects.filter(job__in=[one.job_id for one in chosen]).order_by().values_list("job")
    earlier = dict(before.annotate(Max("number")))  # not their count: a restored database may lack one in between
    rows = []
    for one in chosen:
        job, number = jobs[one.job_id], earlier.get(one.job_id, 0) + 1
        rows.append(
            Attempt(
                job=job,
                number=number,
                key=f"{job.public_id}.{number}",
                nodelist=compress(place.name for place in one.places),
                log_path=f"{log_root}/{job.public_id}-{number}.log" if log_root else "",
            )
        )
    return Attempt.objects.bulk_create(rows)


def _mark_configuring(chosen: Sequence[JobPlacement]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobs_job j SET state = %s, flags = %s::varchar[], reason = '', why = v.why"
            " FROM unnest(%s::bigint[], %s::text[]) v (id, why) WHERE j.id = v.id",
            [State.RUNNING, [Flag.CONFIGURING], [one.job_id for one in chosen], [one.why for one in chosen]],
        )


def _allocation_event(attempt: Attempt, one: JobPlacement, author: Author) -> Event:
    return journal.job_event(
        "job.moved",
        author,
        attempt.job,
        attempt=attempt,
        why=one.why,
        from_state=State.PENDING,
        to_state=State.RUNNING,
        detail={"gpus": {place.name: list(place.gpus) for place in one.places}},
    )
