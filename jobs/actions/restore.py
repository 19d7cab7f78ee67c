"""Recreates attempts that the database has lost (after a restore) from the report of their cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from jobs.actions import jobs as job_actions
from jobs.actions import promise
from jobs.actions.journal import Author
from jobs.core.hostlist import compress
from jobs.core.lifecycle import Flag, State
from jobs.models import Allocation, Attempt, Job, Node

RESTORE_REASON = "The cluster runs this attempt, which was missing in the database of Acme."


@dataclass(frozen=True, kw_only=True)
class LostAttempt:
    """A lost attempt as its cluster reports it."""

    key: str
    number: int
    backend_id: str
    started_at: datetime
    nodes: tuple[str, ...]
    gpus: Mapping[str, tuple[int, ...]]  # empty until it runs
    cancelled: bool = False


@transaction.atomic
def restore(job: Job, lost: LostAttempt, *, author: Author) -> Attempt:
    """Recreate the attempt. Raises IntegrityError if its number exists or another attempt holds one of its GPUs.

    The reason of a cancel is lost too, so the job of a cancelled attempt returns to the queue.
    """
    attempt = Attempt.objects.create(
        job=job,
        number=lost.number,
        key=lost.key,
        backend_id=lost.backend_id,
        nodelist=compress(lost.nodes),
        log_path=job.cluster.new_log_path(f"{job.public_id}-{lost.number}"),
        log_pending=job.cluster.copies_logs,
        promised_at=lost.started_at,
        stop_state=State.PENDING if lost.cancelled else "",
    )
    names = dict(Node.objects.filter(cluster=job.cluster_id, name__in=lost.nodes).values_list("name", "pk"))
    gpus = [(names[name], gpu) for name in lost.nodes if name in names for gpu in lost.gpus.get(name, (None,))]
    Allocation.objects.bulk_create(promise.running_allocations(attempt, gpus, job.gpu_milli, held_at=lost.started_at))
    held = {name: list(gpus) for name, gpus in lost.gpus.items()}
    # The next observation confirms the start, as for an attempt that was just submitted
    flags = [Flag.CONFIGURING]
    job_actions.change_state(
        job, State.RUNNING, author=author, why=RESTORE_REASON, attempt=attempt, detail={"gpus": held}, flags=flags
    )
    attempt.job = job
    return attempt
