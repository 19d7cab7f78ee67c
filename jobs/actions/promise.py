"""Allocates GPUs to waiting jobs, many jobs in one transaction, so that a burst does not cost a commit per job.

The intent is recorded before the action: an allocated job is CONFIGURING, its GPUs are held, and a queued command
submits it to the cluster. Changes by users since the decision are respected under locks: a hold, a cancel, a drain of
any of the nodes. The database rejects a second live holder of a GPU and a second live attempt of a job, together with
all other allocations of the transaction.

A share of a GPU is a range of its thousandths, so that the database can refuse an over-allocation. A share needs
consecutive ones. If what is free is scattered, the other shares of the GPU move down first: which thousandths a share
has means nothing to its job. A transaction that fails leaves all ranges as they were.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.db import connection, transaction
from django.db.models import Max

from acmeweb.common import live
from acmeweb.common.errors import StateConflict
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.core.gpu_shares import WHOLE_GPU, first_gap
from jobs.core.hostlist import compress
from jobs.core.lifecycle import Flag, State
from jobs.models import Allocation, Attempt, ClusterCommand, ClusterCommandKind, Event, HoldKind, Job, Node, bulk_copy


@dataclass(frozen=True, kw_only=True)
class NodeGpus:
    """The GPUs to allocate on one node, or the one of which the job gets a share."""

    node_id: int
    name: str
    gpus: tuple[int, ...]
    gpu_milli: int = 0


@dataclass(frozen=True, kw_only=True)
class JobPlacement:
    """The nodes and GPUs planned for one waiting job."""

    job_id: int
    places: Sequence[NodeGpus]
    why: str
    slowdown: float = 1.0  # of its GPU model

    @property
    def nodes(self) -> set[int]:
        return {place.node_id for place in self.places}


@dataclass(frozen=True, kw_only=True)
class AllocationResult:
    """`attempts` are the new ones, `skip_reasons` says why a job was skipped."""

    attempts: list[Attempt] = field(default_factory=list)
    skip_reasons: dict[int, str] = field(default_factory=dict)  # by job id


NewLogPath = Callable[[str], str]  # from the name of a log, see Cluster.new_log_path


def no_log_path(name: str) -> str:
    """The path of a log that is not stored."""
    return ""


def allocate_job(
    job: Job, places: Sequence[NodeGpus], *, author: Author, why: str, new_log_path: NewLogPath = no_log_path
) -> Attempt:
    """Allocate one job. Raises StateConflict if that is not possible."""
    result = allocate_jobs(
        [JobPlacement(job_id=job.pk, places=places, why=why)], author=author, new_log_path=new_log_path
    )
    if result.skip_reasons:
        raise StateConflict(result.skip_reasons[job.pk])
    job.refresh_from_db()
    (attempt,) = result.attempts
    attempt.job = job
    return attempt


@transaction.atomic
def allocate_jobs(
    placements: Sequence[JobPlacement],
    *,
    author: Author,
    new_log_path: NewLogPath = no_log_path,
    copies_logs: bool = False,
) -> AllocationResult:
    """Allocate the jobs that still can start, and report the others. Raises IntegrityError if another attempt holds one
    of the GPUs."""
    jobs = {job.pk: job for job in _lock_jobs(placements)}
    usable = _lock_usable_nodes(placements)
    skipped = {plan.job_id: why for plan in placements if (why := _skip_reason(plan, jobs[plan.job_id], usable))}
    chosen = [plan for plan in placements if plan.job_id not in skipped]
    if not chosen:
        return AllocationResult(skip_reasons=skipped)
    attempts = _create_attempts(chosen, jobs, new_log_path, copies_logs=copies_logs)
    Allocation.objects.bulk_create(_allocations(attempts, chosen))
    ClusterCommand.objects.bulk_create(
        [
            ClusterCommand(cluster_id=jobs[plan.job_id].cluster_id, kind=ClusterCommandKind.SUBMIT, attempt=attempt)
            for attempt, plan in zip(attempts, chosen, strict=True)
        ]
    )
    _mark_configuring(chosen)
    bulk_copy.insert([_allocation_event(attempt, plan, author) for attempt, plan in zip(attempts, chosen, strict=True)])
    live.publish_on_commit("queue", *(f"job:{jobs[plan.job_id].public_id}" for plan in chosen))
    return AllocationResult(attempts=attempts, skip_reasons=skipped)


def _allocations(attempts: Sequence[Attempt], chosen: Sequence[JobPlacement]) -> list[Allocation]:
    rows, shares = [], []
    for attempt, plan in zip(attempts, chosen, strict=True):
        for place in plan.places:
            # An attempt without GPUs still gets one row per node, so that the node counts as occupied
            for gpu in place.gpus or (None,):
                rows.append(Allocation(attempt=attempt, node_id=place.node_id, gpu=gpu))
                if place.gpu_milli:
                    rows[-1].share = place.gpu_milli
                    shares.append(rows[-1])
    begins = begins_of_new_shares([((row.node_id, row.gpu), row.share) for row in shares])
    for row, begin in zip(shares, begins, strict=True):
        row.share_begin = begin
    return rows


def _lock_jobs(placements: Sequence[JobPlacement]) -> Collection[Job]:
    job_ids = [plan.job_id for plan in placements]
    # Ordered by key: concurrent transactions that lock the same rows cannot deadlock
    rows = Job.objects.filter(pk__in=job_ids).select_for_update(of=("self",)).order_by("pk")
    return rows.only("public_id", "state", "hold", "cluster_id")


def _lock_usable_nodes(placements: Sequence[JobPlacement]) -> set[int]:
    node_ids = {node for plan in placements for node in plan.nodes}
    # FOR NO KEY UPDATE does not conflict with the foreign key checks of other allocations on these nodes
    rows = Node.objects.usable().filter(pk__in=node_ids).select_for_update(no_key=True).order_by("pk")
    return set(rows.values_list("pk", flat=True))


def _skip_reason(placement: JobPlacement, job: Job, usable: set[int]) -> str:
    if job.state != State.PENDING:
        return f"{job} is {job.state}; GPUs are only allocated to waiting jobs"
    if job.hold != HoldKind.NONE:
        return f"{job} was held meanwhile"
    return "" if placement.nodes <= usable else f"a node planned for {job} was closed meanwhile"


def _create_attempts(
    chosen: Sequence[JobPlacement], jobs: dict[int, Job], new_log_path: NewLogPath, *, copies_logs: bool
) -> list[Attempt]:
    before = Attempt.objects.filter(job__in=[placement.job_id for placement in chosen]).order_by().values_list("job")
    earlier = dict(before.annotate(Max("number")))  # not the count: a restored database may lack an earlier attempt
    rows = []
    for placement in chosen:
        job, number = jobs[placement.job_id], earlier.get(placement.job_id, 0) + 1
        rows.append(
            Attempt(
                job=job,
                number=number,
                # The cluster stores this key, so an attempt is recognized even if the response to its submission was
                # lost
                key=f"{job.public_id}.{number}",
                nodelist=compress(place.name for place in placement.places),
                log_path=new_log_path(f"{job.public_id}-{number}"),
                log_pending=copies_logs,
                slowdown=placement.slowdown,
            )
        )
    return Attempt.objects.bulk_create(rows)


def _mark_configuring(chosen: Sequence[JobPlacement]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            # One statement for all jobs. `change_state` would need several per job
            "UPDATE jobs_job j SET state = %s, flags = %s::varchar[], reason = '', why = v.why"
            " FROM unnest(%s::bigint[], %s::text[]) v (id, why) WHERE j.id = v.id",
            [
                State.RUNNING,
                [Flag.CONFIGURING],
                [placement.job_id for placement in chosen],
                [placement.why for placement in chosen],
            ],
        )


def _allocation_event(attempt: Attempt, placement: JobPlacement, author: Author) -> Event:
    return journal.job_event(
        "job.state_changed",
        author,
        attempt.job,
        attempt=attempt,
        why=placement.why,
        from_state=State.PENDING,
        to_state=State.RUNNING,
        detail={"gpus": {place.name: list(place.gpus) for place in placement.places}} | _share_detail(placement),
    )


def _share_detail(placement: JobPlacement) -> dict[str, int]:
    milli = max((place.gpu_milli for place in placement.places), default=0)
    return {"gpu_milli": milli} if milli else {}


# --- shares of GPUs

GpuKey = tuple[int, int]  # node id, GPU index


@dataclass(kw_only=True)
class AllocatedRange:
    """The thousandths that one live allocation holds."""

    allocation_id: int
    begin: int
    milli: int


def begins_of_new_shares(shares: Sequence[tuple[GpuKey, int]]) -> list[int]:
    """Return the first thousandth of each new share, given its GPU and size. Moves other shares if it must.

    A share that does not fit gets thousandths that others hold, so that the constraint refuses its allocation.
    """
    if not shares:
        return []
    held = _allocated_ranges({gpu for gpu, _ in shares})
    return [_begin_on_gpu(held[gpu], milli) for gpu, milli in shares]


def running_allocations(
    attempt: Attempt, gpus: Sequence[tuple[int, int | None]], gpu_milli: int, *, held_at: datetime
) -> list[Allocation]:
    """Return the unsaved allocations of an attempt that already runs, given (node id, GPU index or None)."""
    if not gpu_milli:
        return [Allocation(attempt=attempt, node_id=node, gpu=gpu, held_at=held_at) for node, gpu in gpus]
    begins = begins_of_new_shares([((node, gpu), gpu_milli) for node, gpu in gpus if gpu is not None])
    rows = [Allocation(attempt=attempt, node_id=node, gpu=gpu, held_at=held_at, share=gpu_milli) for node, gpu in gpus]
    for row, begin in zip((row for row in rows if row.gpu is not None), begins, strict=True):
        row.share_begin = begin
    return rows


def _begin_on_gpu(ranges: list[AllocatedRange], milli: int) -> int:
    begin = first_gap([(one.begin, one.milli) for one in ranges], milli)
    if begin is None and sum(one.milli for one in ranges) + milli <= WHOLE_GPU:
        begin = _move_down(ranges)
    begin = 0 if begin is None else begin
    ranges.append(AllocatedRange(allocation_id=0, begin=begin, milli=milli))
    return begin


def _move_down(ranges: list[AllocatedRange]) -> int:
    """Close the gaps between the ranges, and return the first free thousandth."""
    begin = 0
    for one in sorted(ranges, key=lambda one: one.begin):
        if one.begin != begin and one.allocation_id:
            Allocation.objects.filter(pk=one.allocation_id, released_at__isnull=True).update(share_begin=begin)
        one.begin = begin
        begin += one.milli
    return begin


def _allocated_ranges(gpus: Collection[GpuKey]) -> Mapping[GpuKey, list[AllocatedRange]]:
    rows = Allocation.objects.live().filter(node__in={node for node, _ in gpus}, gpu__in={gpu for _, gpu in gpus})
    held: dict[GpuKey, list[AllocatedRange]] = defaultdict(list)
    for pk, node, gpu, begin, milli in rows.order_by().values_list("pk", "node_id", "gpu", "share_begin", "share"):
        held[node, gpu].append(AllocatedRange(allocation_id=pk, begin=begin, milli=milli))
    return held


@dataclass(frozen=True, kw_only=True)
class GpuCorrection:
    """One GPU that the cluster allocated differently than Acme had planned."""

    attempt_id: int
    node_id: int
    promised: int
    given: int


def correct_indices(corrections: Sequence[GpuCorrection]) -> set[int]:
    """Apply all corrections in one statement, because attempts may swap GPUs and constraints are checked at its end.
    Return the attempts that changed.
    """
    begins = _begins_after(corrections)
    values = ", ".join(["(%s::bigint, %s::int, %s::int)"] * len(begins))
    numbers = [number for pk, (gpu, begin) in begins.items() for number in (pk, gpu, begin)]
    if not begins:
        return set()
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE jobs_allocation a SET gpu = v.gpu, share_begin = v.begin FROM (VALUES {values}) v (id, gpu, begin)"  # noqa: S608
            " WHERE a.id = v.id AND a.released_at IS NULL RETURNING a.attempt_id",
            numbers,
        )
        changed = {row[0] for row in cursor.fetchall()}
    return changed & {one.attempt_id for one in corrections}


def _begins_after(corrections: Sequence[GpuCorrection]) -> dict[int, tuple[int, int]]:
    """Return GPU and first thousandth by allocation, for those to be corrected and the shares beside them."""
    given = {(one.attempt_id, one.node_id, one.promised): one.given for one in corrections}
    rows = Allocation.objects.live().filter(node__in={one.node_id for one in corrections}, gpu__isnull=False)
    columns = rows.order_by("node", "share_begin", "pk").values_list("pk", "attempt_id", "node_id", "gpu", "share")
    after: dict[int, tuple[int, int]] = {}
    used: dict[GpuKey, int] = defaultdict(int)
    for pk, attempt, node, gpu, milli in columns:
        new = given.get((attempt, node, gpu), gpu)
        if new != gpu or milli < WHOLE_GPU:
            after[pk] = new, used[node, new]
            used[node, new] += milli
    return after
