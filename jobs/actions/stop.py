"""The verbs that stop a running job: what it is to become is written down, and its cluster is told by a deed.

Who must give way is asked to save its work first: a deed sends the signal, a second one stops it when the grace is
over, or as soon as a checkpoint has reached remote storage. Until then a stop may be called off. A person's wish never
waits for a grace, and the scheduler never overrules one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db import transaction

from acmeweb.common import live
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.core.lifecycle import Flag, State
from jobs.core.slurm_notation import CheckpointSignal, parse_signal
from jobs.models import Attempt, Cluster, ClusterCommandKind, ClusterMode, Deed, Job, Node, clock


class JobError(Exception):
    pass


class JobStateChanged(JobError):
    """The job is somewhere else by now; the message says where."""


@transaction.atomic
def requeue(job: Job, *, author: Author, why: str = "") -> None:
    """Stop it and put it back at its old place in the queue."""
    request_stop(job, State.PENDING, "requeue", author=author, why=why)


@transaction.atomic
def preempt(job: Job, *, author: Author, why: str, for_job: str = "") -> None:
    """Let it give way to `for_job`, after a checkpoint if it makes any. Who is being stopped already is left alone."""
    asked = {"for": for_job} if for_job else {}
    request_stop(job, State.PREEMPTED, "preempt", author=author, why=why, ask=job_checkpoint_signal(job), detail=asked)


@transaction.atomic
def evict(job: Job, node: Node, *, author: Author, why: str, ask: bool = True) -> None:
    """Off this node and back to its old place in the queue; `call_off` can undo it until the grace is over."""
    request_stop(
        job, State.PENDING, "evict", author=author, why=why, ask=job_checkpoint_signal(job) if ask else None, node=node
    )


@transaction.atomic
def requeue_unplaced(job: Job, *, author: Author, why: str) -> None:
    """Its cluster keeps it waiting for nodes that it was promised: back to its old place in the queue, for others."""
    request_stop(job, State.PENDING, "take_back", author=author, why=why)


@transaction.atomic
def enforce_time_limit(job: Job, *, author: Author, why: str) -> None:
    """Its time is over, and its cluster has not noticed."""
    request_stop(job, State.TIMEOUT, "limit", author=author, why=why)


@transaction.atomic
def stop_for_recovery(attempt: Attempt, *, author: Author, why: str, saves: bool = False) -> None:
    """It is alive and does nothing any more, or nothing good: end it as failed, so that recovery goes on from there.
    One that only is slow `saves` its work first."""
    live = Attempt.objects.filter(pk=attempt.pk, ended_at__isnull=True).exists()
    if not live:
        raise state_changed_error(attempt.job, f"{attempt} has ended already")
    ask = job_checkpoint_signal(attempt.job) if saves else None
    request_stop(attempt.job, State.FAILED, "recover", author=author, why=why, ask=ask)


def job_checkpoint_signal(job: Job) -> CheckpointSignal | None:
    """How it wants to be asked for a checkpoint; None for a job that makes none."""
    saves = job.checkpoint_dir or job.checkpoint_interval
    said = job.checkpoint_signal or (job.cluster.checkpoint_signal if saves else "")
    ask = parse_signal(said) if said else None
    return ask if ask and ask.grace else None


FINAL_STOP_VERBS = frozenset({"cancel", "limit"})
LOOP_STOP_VERBS = frozenset({"preempt", "evict", "take_back", "limit", "recover"})


def request_stop(
    job: Job,
    wanted: State,
    verb: str,
    *,
    author: Author,
    why: str,
    ask: CheckpointSignal | None = None,
    node: Node | None = None,
    detail: Mapping[str, object] | None = None,
) -> None:
    attempt = Attempt.objects.select_for_update().filter(job=job, ended_at__isnull=True).first()
    if attempt is None:
        raise state_changed_error(job, f"{verb} needs a job that {'waits or ' if verb == 'cancel' else ''}runs")
    _check_may_stop(job, attempt, verb)
    Attempt.objects.filter(pk=attempt.pk).update(stop_as=wanted, stop_why=why)
    # The flags of now, not those the caller has seen: the cluster may have confirmed it meanwhile
    now = Job.objects.select_for_update().get(pk=job.pk)
    Job.objects.filter(pk=job.pk).update(flags=sorted({*now.flags, Flag.SIGNALING}))
    grace = _queue_stop_commands(attempt, job.cluster_id, why, ask if attempt.confirmed_at else None, node)
    told = {**(detail or {}), **({"grace_s": int(grace.total_seconds())} if grace else {})}
    journal.job_event(f"job.{verb}_asked", author, job, attempt=attempt, node=node, why=why, detail=told).save()
    job.refresh_from_db()
    publish_job_change(job)


def _check_may_stop(job: Job, attempt: Attempt, verb: str) -> None:
    refuse_foreign(job, verb)
    if job.is_adopted and verb not in FINAL_STOP_VERBS:
        raise JobStateChanged(
            f"{job} was adopted from another installation and cannot start again; it can only be cancelled"
        )
    if job.cluster.mode != ClusterMode.DRIVE:
        raise JobStateChanged(f"{job} runs on {job.cluster}, which Acme does not drive; {verb} it there")
    if attempt.stop_as == State.CANCELLED:
        raise JobStateChanged(f"{job} is being cancelled already")
    if attempt.stop_as and verb in LOOP_STOP_VERBS:
        raise JobStateChanged(f"{job} is being stopped already")


def refuse_foreign(job: Job, verb: str) -> None:
    if job.is_foreign:
        raise JobStateChanged(f"{job} was not submitted through Acme; {verb} it on {job.cluster}")


def _queue_stop_commands(
    attempt: Attempt, cluster_id: int, why: str, ask: CheckpointSignal | None, node: Node | None
) -> timedelta | None:
    """One open deed of a kind is enough: a cancel that is on its way serves a second wish too, and at once."""
    common = {"attempt": attempt, "cluster_id": cluster_id}
    waiting = Deed.objects.open().filter(attempt=attempt, kind=ClusterCommandKind.CANCEL).select_for_update().first()
    now = clock.now()
    if waiting:
        if not waiting.tries:
            Deed.objects.filter(pk=waiting.pk).update(due_at=min(waiting.due_at, now), node=None)
        return None
    if ask:
        Deed.objects.create(**common, kind=ClusterCommandKind.SIGNAL, reason=ask.text, node=node)
    due_at = now + ask.grace if ask else now
    # Created by the clock, not by the transaction's beginning: a checkpoint counts from the ask on
    Deed.objects.create(**common, kind=ClusterCommandKind.CANCEL, reason=why, created_at=now, due_at=due_at, node=node)
    return ask.grace if ask else None


@transaction.atomic
def cancel_evictions(node: Node, *, author: Author, why: str, now: datetime) -> int:
    """Let run on whoever was to leave this node and has not been told to end yet. Return how many."""
    planned = Deed.objects.open().filter(node=node, kind=ClusterCommandKind.CANCEL, tries=0, due_at__gt=now)
    called = 0
    for deed in planned.select_related("attempt__job").select_for_update(of=("self",)).order_by("id"):
        Deed.objects.open().filter(
            attempt=deed.attempt, kind__in=(ClusterCommandKind.CANCEL, ClusterCommandKind.SIGNAL)
        ).delete()
        Attempt.objects.filter(pk=deed.attempt_id).update(stop_as="", stop_why="")
        job = Job.objects.select_for_update().get(pk=deed.attempt.job_id)
        Job.objects.filter(pk=job.pk).update(flags=[flag for flag in job.flags if flag != Flag.SIGNALING])
        journal.job_event("job.evict_called_off", author, job, attempt=deed.attempt, node=node, why=why).save()
        publish_job_change(job)
        called += 1
    return called


def end_grace_after_checkpoint(cluster: Cluster, now: datetime) -> int:
    """Who has saved a checkpoint since he was asked needs no more grace."""
    waiting = Deed.objects.open().filter(cluster=cluster, kind=ClusterCommandKind.CANCEL, tries=0, due_at__gt=now)
    return waiting.with_newer_checkpoint().update(due_at=now)


def state_changed_error(job: Job, why: str, held: str = "") -> JobStateChanged:
    """`held` is the reason where the state was right after all."""
    state = Job.objects.values_list("state", flat=True).get(pk=job.pk)
    return JobStateChanged(f"{job} is {state}; {held if held and state == State.PENDING else why}")


def publish_job_change(job: Job) -> None:
    live.publish_on_commit("queue", f"job:{job.public_id}")
