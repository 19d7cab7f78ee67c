"""Actions that stop a running job. They record the state that the job is to become; a queued command tells the cluster.

A preemption is refused unless the contract of the job permits it at that moment (`jobs.core.preemption_contract`). A
job that is preempted only at checkpoints is asked for one first (`ask_for_checkpoint`), and is stopped at once when it
has reported one. If that stop is not sent in time, `withdraw_late_preemptions` revokes it.

A preempted or evicted job can save a checkpoint first: one command sends the signal, and a second one stops the job
when the grace period is over, or as soon as a checkpoint is on remote storage. Until then the stop can be revoked.
Stops by users have no grace period, and the scheduler never overrides them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F, Value
from django.db.models.functions import Least

from acmeweb.common import live
from acmeweb.common.errors import StateConflict
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.core.lifecycle import Flag, State
from jobs.core.preemption_contract import CHECKPOINT_TOLERANCE, Preemptability
from jobs.core.slurm_notation import CheckpointSignal, parse_signal
from jobs.models import Attempt, Cluster, ClusterCommand, ClusterCommandKind, ClusterMode, Job, Node, clock

Refusals = dict[int, StateConflict]  # by job; these jobs were not changed


@transaction.atomic
def requeue(job: Job, *, author: Author, why: str = "") -> None:
    """Stop the job and return it to its place in the queue."""
    request_stop(job, State.PENDING, "requeue", author=author, why=why)


@transaction.atomic
def preempt(job: Job, *, author: Author, why: str, for_job: str = "") -> None:
    """Stop the job in favor of `for_job`, after a checkpoint if it saves any. Fails if the job is already being
    stopped, or if its contract does not permit a preemption now."""
    attempt = _lock_live_attempt(job, "preempt")
    standing = job.preemption_contract.standing(attempt.preemption_facts(), clock.now())
    if standing.may != Preemptability.NOW:
        raise StateConflict(f"{job} is not preempted: {standing.why}")
    detail = {"for": for_job} if for_job else {}
    request_stop(
        job,
        State.PREEMPTED,
        "preempt",
        author=author,
        why=why,
        # A job that is preempted at checkpoints has just saved one
        checkpoint_signal=None if job.preempt_at_checkpoint else job_checkpoint_signal(job),
        detail=detail,
    )


@transaction.atomic
def ask_for_checkpoint(job: Job, *, author: Author, why: str, for_job: str = "") -> None:
    """Ask a job that is preempted only at checkpoints for one. It keeps running, and a later turn preempts it when it
    has saved. Without a signal, its next regular checkpoint is awaited. Fails if the request is open already."""
    attempt = _lock_live_attempt(job, "preempt")
    _check_may_stop(job, attempt, "preempt")
    facts, now = attempt.preemption_facts(), clock.now()
    standing = job.preemption_contract.standing(facts, now)
    if standing.may != Preemptability.AFTER_CHECKPOINT or facts.has_open_request:
        raise StateConflict(f"{job} is not asked for a checkpoint: {standing.why}")
    Attempt.objects.filter(pk=attempt.pk).update(checkpoint_asked_at=now)
    if signal := job_checkpoint_signal(job):
        _queue_signal(attempt, job.cluster_id, signal, node=None)
    detail = {"for": for_job} if for_job else {}
    journal.job_event("job.checkpoint_requested", author, job, attempt=attempt, why=why, detail=detail).save()
    publish_job_change(job)


@transaction.atomic
def evict(job: Job, node: Node, *, author: Author, why: str, saves: bool = True) -> None:
    """Move the job off this node and return it to its place in the queue. `cancel_evictions` can revoke this during the
    grace period."""
    request_stop(
        job,
        State.PENDING,
        "evict",
        author=author,
        why=why,
        checkpoint_signal=job_checkpoint_signal(job) if saves else None,
        node=node,
    )


@transaction.atomic
def requeue_unplaced(job: Job, *, author: Author, why: str) -> None:
    """Requeue an allocated job that the cluster keeps waiting for its nodes, so that it gets others."""
    request_stop(job, State.PENDING, "take_back", author=author, why=why)


@transaction.atomic
def enforce_time_limit(job: Job, *, author: Author, why: str) -> None:
    """Stop a job that has exceeded its time limit without being stopped by the cluster."""
    request_stop(job, State.TIMEOUT, "limit", author=author, why=why)


@transaction.atomic
def stop_for_recovery(attempt: Attempt, *, author: Author, why: str, saves: bool = False) -> None:
    """Stop a live attempt that makes no useful progress as FAILED, so that recovery handles the failure. With `saves`,
    for attempts that are only slow, it saves a checkpoint first."""
    is_live = Attempt.objects.filter(pk=attempt.pk, ended_at__isnull=True).exists()
    # A new attempt may have started meanwhile, and this stop is not meant for it
    if not is_live:
        raise state_changed_error(attempt.job, f"{attempt} has already ended")
    signal = job_checkpoint_signal(attempt.job) if saves else None
    request_stop(attempt.job, State.FAILED, "recover", author=author, why=why, checkpoint_signal=signal)


def job_checkpoint_signal(job: Job) -> CheckpointSignal | None:
    """Return the signal that requests a checkpoint from the job, or None if it saves no checkpoints."""
    saves = job.checkpoint_dir or job.checkpoint_interval
    notation = job.checkpoint_signal or (job.cluster.checkpoint_signal if saves else "")
    signal = parse_signal(notation) if notation else None
    # Without a grace period the signal would be useless, because the stop follows at once
    return signal if signal and signal.grace else None


FINAL_STOP_VERBS = frozenset({"cancel", "limit"})
LOOP_STOP_VERBS = frozenset({"preempt", "evict", "take_back", "limit", "recover"})


def request_stop(
    job: Job,
    target: State,
    verb: str,
    *,
    author: Author,
    why: str,
    checkpoint_signal: CheckpointSignal | None = None,
    node: Node | None = None,
    detail: Mapping[str, object] | None = None,
) -> None:
    """Record the requested end of the live attempt and queue the commands that carry it out."""
    refusals = request_stops(
        [job], target, verb, author=author, why=why, checkpoint_signal=checkpoint_signal, node=node, detail=detail
    )
    raise_refusal(job, refusals)
    job.refresh_from_db()


def request_stops(
    jobs: Sequence[Job],
    target: State,
    verb: str,
    *,
    author: Author,
    why: str,
    checkpoint_signal: CheckpointSignal | None = None,
    node: Node | None = None,
    detail: Mapping[str, object] | None = None,
) -> Refusals:
    """Do the same for many jobs, with a fixed number of statements. The refused ones are not changed."""
    attempts = _lock_live_attempts(jobs)
    stopped = [job for job in jobs if job.pk in attempts]
    ended = [job for job in jobs if job.pk not in attempts]
    refusals = state_changed_errors(ended, f"{verb} needs a {'waiting or ' if verb == 'cancel' else ''}running job")
    refusals |= {job.pk: error for job in stopped if (error := _stop_refusal(job, attempts[job.pk], verb))}
    accepted = [attempts[job.pk] for job in stopped if job.pk not in refusals]
    if not accepted:
        return refusals
    Attempt.objects.filter(pk__in=[attempt.pk for attempt in accepted]).update(stop_state=target, stop_reason=why)
    _add_signaling_flag([attempt.job_id for attempt in accepted])
    graces = _queue_stop_commands(accepted, why, checkpoint_signal, node)
    journal.save_events(
        journal.job_event(
            f"job.{verb}_requested",
            author,
            attempt.job,
            attempt=attempt,
            node=node,
            why=why,
            detail={
                **(detail or {}),
                **({"grace_s": int(grace.total_seconds())} if (grace := graces.get(attempt.pk)) else {}),
            },
        )
        for attempt in accepted
    )
    publish_job_changes([attempt.job for attempt in accepted])
    return refusals


def _add_signaling_flag(job_ids: Sequence[int]) -> None:
    """Use the present flags, not those that the caller has read: the cluster may have confirmed the start meanwhile."""
    by_flags: dict[tuple[str, ...], list[int]] = {}
    locked = Job.objects.select_for_update().filter(pk__in=job_ids).order_by("pk")
    for pk, flags in locked.values_list("pk", "flags"):
        by_flags.setdefault(tuple(sorted({*flags, Flag.SIGNALING})), []).append(pk)
    for flags, pks in by_flags.items():
        Job.objects.filter(pk__in=pks).update(flags=list(flags))


def _lock_live_attempt(job: Job, verb: str) -> Attempt:
    attempt = _lock_live_attempts([job]).get(job.pk)
    if attempt is None:
        raise state_changed_error(job, f"{verb} needs a running job")
    return attempt


def _lock_live_attempts(jobs: Sequence[Job]) -> dict[int, Attempt]:
    """Return the live attempts by job. Lock order everywhere: the attempts first, then the jobs, each by their key."""
    by_key = {job.pk: job for job in jobs}
    rows = Attempt.objects.select_for_update().filter(job__in=by_key, ended_at__isnull=True).order_by("pk")
    attempts = {attempt.job_id: attempt for attempt in (rows if by_key else ())}
    for job_id, attempt in attempts.items():
        attempt.job = by_key[job_id]
    return attempts


def _check_may_stop(job: Job, attempt: Attempt, verb: str) -> None:
    if error := _stop_refusal(job, attempt, verb):
        raise error


def _stop_refusal(job: Job, attempt: Attempt, verb: str) -> StateConflict | None:
    if error := foreign_refusal(job, verb):
        return error
    # Without the command the job could not be started again after a requeue
    if job.is_adopted and verb not in FINAL_STOP_VERBS:
        return StateConflict(
            f"{job} was adopted from another installation and cannot start again; it can only be cancelled"
        )
    if job.cluster.mode != ClusterMode.DRIVE:
        return StateConflict(f"{job} runs on {job.cluster}, which Acme does not drive; {verb} it there")
    if attempt.stop_state == State.CANCELLED:
        return StateConflict(f"{job} is already being cancelled")
    if attempt.stop_state and verb in LOOP_STOP_VERBS:
        return StateConflict(f"{job} is already being stopped")
    return None


def foreign_refusal(job: Job, verb: str) -> StateConflict | None:
    if job.is_foreign:
        return StateConflict(f"{job} was not submitted through Acme; {verb} it on {job.cluster}")
    return None


def _queue_stop_commands(
    attempts: Sequence[Attempt], why: str, checkpoint_signal: CheckpointSignal | None, node: Node | None
) -> dict[int, timedelta]:
    """Queue the commands of the stops and return the grace periods by attempt. Only a program that runs gets the
    signal.

    There is at most one open cancel per attempt. A second stop request removes the remaining grace period of the first.
    """
    cancels = ClusterCommand.objects.open().filter(attempt__in=attempts, kind=ClusterCommandKind.CANCEL)
    known = list(cancels.select_for_update().order_by("pk").values_list("pk", "attempt_id", "tries"))
    now = clock.now()
    # A cancel that was already sent needs no change; the loop repeats it until the attempt has ended
    unsent = ClusterCommand.objects.filter(pk__in=[pk for pk, _, tries in known if not tries])
    unsent.update(due_at=Least("due_at", Value(now)), node=None)
    repeated = {attempt_id for _, attempt_id, _ in known}
    new = [attempt for attempt in attempts if attempt.pk not in repeated]
    signals = {attempt.pk: checkpoint_signal for attempt in new if checkpoint_signal and attempt.confirmed_at}
    for attempt in new:
        if signal := signals.get(attempt.pk):
            _queue_signal(attempt, attempt.job.cluster_id, signal, node)
    graces = {pk: signal.grace for pk, signal in signals.items()}
    # created_at is the present time, not the start of the transaction: only checkpoints after the request count
    ClusterCommand.objects.bulk_create(
        ClusterCommand(
            attempt=attempt,
            cluster_id=attempt.job.cluster_id,
            kind=ClusterCommandKind.CANCEL,
            reason=why,
            created_at=now,
            due_at=now + graces.get(attempt.pk, timedelta(0)),
            node=node,
        )
        for attempt in new
    )
    return graces


def _queue_signal(attempt: Attempt, cluster_id: int, signal: CheckpointSignal, node: Node | None) -> None:
    """Queue the signal; an open one is used again."""
    is_new = {"cluster_id": cluster_id, "reason": signal.text}
    ClusterCommand.objects.update_or_create(
        attempt=attempt,
        kind=ClusterCommandKind.SIGNAL,
        done_at=None,
        defaults={"node": node},
        create_defaults=is_new | {"node": node},
    )


@transaction.atomic
def cancel_evictions(node: Node, *, author: Author, why: str, now: datetime) -> int:
    """Revoke evictions from this node that have not been sent to the cluster yet. Return their number."""
    commands = ClusterCommand.objects.open().filter(node=node, kind=ClusterCommandKind.CANCEL, tries=0, due_at__gt=now)
    revoked = 0
    for command in commands.select_related("attempt__job").select_for_update(of=("self",)).order_by("id"):
        _revoke_stop(command, "job.evict_cancelled", author=author, why=why, node=node)
        revoked += 1
    return revoked


@transaction.atomic
def withdraw_late_preemptions(cluster: Cluster, now: datetime, *, author: Author) -> int:
    """Revoke preemptions at checkpoints that could not be sent while the checkpoint was new. A later turn asks for
    another one. A stop that may have reached the cluster stays. Return their number."""
    unsent = ClusterCommand.objects.open().filter(
        cluster=cluster, kind=ClusterCommandKind.CANCEL, tries=F("tries_without_effect"), is_being_sent=False
    )
    late = unsent.filter(attempt__stop_state=State.PREEMPTED, attempt__job__preempt_at_checkpoint=True).exclude(
        attempt__saved_at__gte=now - CHECKPOINT_TOLERANCE
    )
    commands = list(late.select_related("attempt__job").select_for_update(of=("self",)).order_by("id"))
    for command in commands:
        why = "The stop could not be sent right after the checkpoint."
        _revoke_stop(command, "job.preempt_cancelled", author=author, why=why)
    return len(commands)


def _revoke_stop(command: ClusterCommand, event: str, *, author: Author, why: str, node: Node | None = None) -> None:
    """Delete the commands of a stop that was not sent, so that the job keeps running."""
    ClusterCommand.objects.open().filter(
        attempt=command.attempt, kind__in=(ClusterCommandKind.CANCEL, ClusterCommandKind.SIGNAL)
    ).delete()
    Attempt.objects.filter(pk=command.attempt_id).update(stop_state="", stop_reason="")
    job = Job.objects.select_for_update().get(pk=command.attempt.job_id)
    Job.objects.filter(pk=job.pk).update(flags=[flag for flag in job.flags if flag != Flag.SIGNALING])
    journal.job_event(event, author, job, attempt=command.attempt, node=node, why=why).save()
    publish_job_change(job)


def end_grace_after_checkpoint(cluster: Cluster, now: datetime) -> int:
    """End the grace period of attempts that have saved a checkpoint since the request."""
    waiting = ClusterCommand.objects.open().filter(kind=ClusterCommandKind.CANCEL, tries=0, due_at__gt=now)
    return waiting.filter(cluster=cluster).with_newer_checkpoint().update(due_at=now)


def state_changed_errors(jobs: Sequence[Job], why: str, held: str = "") -> Refusals:
    """Return the errors for unexpected states. `held` is the reason if the job is pending after all."""
    states = dict(Job.objects.filter(pk__in=[job.pk for job in jobs]).values_list("pk", "state"))
    return {job.pk: StateConflict(f"{job} is {states[job.pk]}; {_why(states[job.pk], why, held)}") for job in jobs}


def _why(state: str, why: str, held: str) -> str:
    return held if held and state == State.PENDING else why


def state_changed_error(job: Job, why: str, held: str = "") -> StateConflict:
    return state_changed_errors([job], why, held)[job.pk]


def raise_refusal(job: Job, refusals: Refusals) -> None:
    if job.pk in refusals:
        raise refusals[job.pk]


def publish_job_change(job: Job) -> None:
    publish_job_changes([job])


def publish_job_changes(jobs: Sequence[Job]) -> None:
    """Notify open pages after the commit."""
    live.publish_on_commit("queue", *(f"job:{job.public_id}" for job in jobs))
