"""The only code that changes a job.

Every action expects a state, changes it in one guarded UPDATE, and writes its Event in the same transaction. If the
state was changed concurrently, it raises `StateConflict` and has changed nothing. Commands for the cluster are
written to the outbox (`ClusterCommand`); no action here calls a cluster or a queue.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import connection, transaction

from acmeweb.common import live
from acmeweb.common.errors import StateConflict
from jobs.actions import journal, promise
from jobs.actions.journal import SYNC, Author
from jobs.actions.promise import GpuCorrection as GpuCorrection
from jobs.actions.promise import NodeGpus as NodeGpus
from jobs.actions.promise import allocate_job as allocate_job
from jobs.actions.stop import (
    Refusals,
    foreign_refusal,
    publish_job_change,
    raise_refusal,
    request_stop,
    request_stops,
    state_changed_error,
)
from jobs.actions.stop import ask_for_checkpoint as ask_for_checkpoint
from jobs.actions.stop import preempt as preempt
from jobs.actions.stop import requeue as requeue
from jobs.actions.submit import submit as submit
from jobs.actions.waiting.changes import cancel_waiting_jobs
from jobs.actions.waiting.changes import hold as hold
from jobs.actions.waiting.changes import release as release
from jobs.actions.waiting.changes import set_priority as set_priority
from jobs.core import attempt_end, lifecycle
from jobs.core.attempt_end import AttemptEnd
from jobs.core.hostlist import compress, expand
from jobs.core.lifecycle import FINAL_STATES, LIVE_STATES, OUTCOME_UNKNOWN, RECOVERING, Flag, State
from jobs.core.retry_budget import PastAttempt, crash_loop_reason, failure_cause
from jobs.models import Allocation, Attempt, Cluster, ClusterMode, HoldKind, Job, Node, RecoveryMode, bulk_copy, clock

MAX_SUBMIT_REFUSALS = 3  # consecutive rejections of a job because of its nodes
RECOVERY_DECISION_TIMEOUT = timedelta(minutes=10)  # three tries to read a log take half of this time
REQUEUED_BY_CLUSTER = "Requeued by the cluster."

# --- actions of users


def cancel(job: Job, *, author: Author, why: str = "") -> None:
    raise_refusal(job, cancel_jobs([job], author=author, why=why))
    job.refresh_from_db()


@transaction.atomic
def cancel_jobs(jobs: Sequence[Job], *, author: Author, why: str = "") -> Refusals:
    """Cancel jobs. Waiting jobs end at once. Live jobs are stopped by their clusters, whose reports decide how they
    ended."""
    refusals = {job.pk: error for job in jobs if (error := foreign_refusal(job, "cancel"))}
    own = [job for job in jobs if job.pk not in refusals]
    waiting = [job for job in own if job.state == State.PENDING]
    others = [job for job in own if job.state != State.PENDING]
    # Attempts are locked before jobs, everywhere
    refusals |= request_stops(others, State.CANCELLED, "cancel", author=author, why=why)
    return refusals | cancel_waiting_jobs(waiting, author=author, why=why or "Cancelled.", now=clock.now())


# --- actions of loops


@transaction.atomic
def end_at_deadline(job: Job, *, author: Author, why: str) -> None:
    """End a job as DEADLINE. A waiting job ends at once, a live job is stopped by its cluster."""
    if job.state == State.PENDING:
        change_state(job, State.DEADLINE, author=author, why=why, ended_at=clock.now())
    else:
        request_stop(job, State.DEADLINE, "limit", author=author, why=why)


def record_backend_id(attempt: Attempt, backend_id: str) -> None:
    """Record the id that the cluster gave the attempt."""
    record_backend_ids({attempt.pk: backend_id})


def record_backend_ids(ids: Mapping[int, str]) -> None:
    """Record the ids that the cluster gave these attempts."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobs_attempt a SET backend_id = v.name, missing_since = NULL,"
            " accepted_at = coalesce(a.accepted_at, clock_timestamp())"
            " FROM unnest(%s::bigint[], %s::text[]) v (id, name) WHERE a.id = v.id AND a.ended_at IS NULL",
            [list(ids), list(ids.values())],
        )


def set_missing_since(attempt: Attempt, since: datetime | None) -> None:
    """Record since when the cluster does not know the attempt, or None if it knows it again."""
    Attempt.objects.filter(pk=attempt.pk, ended_at__isnull=True).update(missing_since=since)


@transaction.atomic
def confirm_start(attempt: Attempt, *, started_at: datetime, author: Author) -> None:
    """Record that the cluster runs the attempt. A start in the future, from a clock ahead of ours, counts as now."""
    now = clock.now()
    started_at = min(started_at, now)
    # The filter makes a repeated confirmation a no-op, so only the first one writes an Event
    if Attempt.objects.filter(pk=attempt.pk, ended_at__isnull=True, confirmed_at__isnull=True).update(
        confirmed_at=started_at, seen_running_at=now
    ):
        job = Job.objects.select_for_update().get(pk=attempt.job_id)
        job.flags = [flag for flag in job.flags if flag != Flag.CONFIGURING]
        job.started_at, job.why = started_at, ""
        job.save(update_fields=["flags", "started_at", "why"])
        journal.job_event("job.started", author, job, attempt=attempt, to_state=State.RUNNING).save()
        publish_job_change(job)


@transaction.atomic
def set_suspended(attempt: Attempt, *, suspended: bool, author: Author) -> None:
    """Record that the cluster suspended or resumed the processes. The GPUs stay held."""
    job = Job.objects.get(pk=attempt.job_id)
    target = State.SUSPENDED if suspended else State.RUNNING
    # Observations repeat every turn; only a change is recorded
    if job.state in LIVE_STATES and job.state != target:
        Attempt.objects.filter(pk=attempt.pk, ended_at__isnull=True).update(state=target)
        change_state(job, target, author=author, why="Reported by the cluster.", attempt=attempt)


@transaction.atomic
def finish(attempt: Attempt, ended: AttemptEnd, *, author: Author) -> None:
    """Close the attempt, release its GPUs, and move the job to the state that follows from this end."""
    attempt = _lock_attempt(attempt)
    job = attempt.job
    requested = effective_stop(attempt, ended)
    # A job that completed before the stop arrived stays completed
    if requested == State.FAILED and ended.state != State.COMPLETED:
        ended = replace(
            ended, state=State.FAILED, reason=attempt.stop_reason
        )  # the cluster only knows that Acme ended it
    if job.is_foreign:
        close_attempt(attempt, ended, attempt_end.JobTransition(state=ended.state, why=ended.sentence), author=author)
        return
    # A preemption consumes no requeue, so it is possible even if platform failures have used up the limit
    requeues_used = 0 if requested == State.PREEMPTED else job.requeues
    transition = attempt_end.transition_after_end(ended, requested=requested, budget=job.requeue_limit - requeues_used)
    # A platform failure would be requeued, unless the same failure repeats without progress
    if transition.spends_budget and (why := crash_loop_reason(attempt_history(attempt, ended))):
        transition = attempt_end.transition_to_hold(why)
    # Recovery only acts in mode drive, and never on an end that a user or the scheduler requested
    may_recover = (
        requested in ("", State.FAILED)
        and job.cluster.mode == ClusterMode.DRIVE
        and recovery_eligibility(job).is_recoverable(ended)
    )
    if may_recover and attempt_end.waits_for_recovery(transition, _recovery_modes(job)):
        transition = attempt_end.transition_to_recovery(ended)
    close_attempt(attempt, ended, transition, author=author)


@transaction.atomic
def finish_missing(
    attempt: Attempt,
    ended: AttemptEnd,
    started_at: datetime | None,
    backend_id: str = "",
    *,
    missing_since: datetime,
    author: Author,
) -> None:
    """Do the same for an attempt that its cluster no longer knows, unless the cluster has reported it again since."""
    attempt = _lock_attempt(attempt)
    if attempt.ended_at or attempt.missing_since != missing_since:
        raise StateConflict(f"the cluster reports attempt {attempt} again")
    if backend_id:
        Attempt.objects.filter(pk=attempt.pk, backend_id="").update(backend_id=backend_id)
    if started_at:
        confirm_start(attempt, started_at=started_at, author=author)
    finish(attempt, ended, author=author)


def effective_stop(attempt: Attempt, ended: AttemptEnd) -> str:
    """Return the state that a stop requested, "" if there was none, or the attempt had ended before the time limit
    or deadline for which it was stopped."""
    job, started = attempt.job, attempt.confirmed_at
    reasons: dict[str, datetime | None] = {
        State.TIMEOUT: started + job.time_limit if started and job.time_limit else None,
        State.DEADLINE: job.deadline_at,
    }
    has_ended_itself = attempt_end.has_ended_before(ended, reasons.get(attempt.stop_state))
    return "" if has_ended_itself else attempt.stop_state


def recovery_eligibility(job: Job) -> attempt_end.RecoveryEligibility:
    saves = bool(job.checkpoint_dir or job.checkpoint_interval)
    return attempt_end.RecoveryEligibility(
        kind=job.kind, labels=job.labels, saves=saves, may_requeue=job.requeue_limit > 0
    )


def _recovery_modes(job: Job) -> set[str]:
    """Return all modes that may apply to a failure of this job.

    For all actions together, the more restrictive one of team and operators applies; a row of the cluster takes
    precedence over a row of all clusters. Without a row: propose.
    """
    rows = list(RecoveryMode.objects.for_job(job).values_list("team", "cluster", "action", "mode"))
    general = sorted((row for row in rows if not row[2]), key=lambda row: bool(row[1]))
    by_team = {team: str(mode) for team, _, _, mode in general}.values()
    strictest = min(by_team, key=RecoveryMode.Reach.values.index, default="propose")
    return {str(mode) for _, _, action, mode in rows if action} | {strictest}


@transaction.atomic
def record_cluster_requeue(attempt: Attempt, *, now: datetime, author: Author) -> None:
    """Record that the cluster returned a foreign job to its own queue."""
    ended = AttemptEnd(state=State.PREEMPTED, at=now)
    close_attempt(
        attempt,
        ended,
        attempt_end.JobTransition(state=State.PENDING, flags=(Flag.REQUEUED,), why=REQUEUED_BY_CLUSTER),
        author=author,
    )


def attempt_history(attempt: Attempt, ended: AttemptEnd | None = None) -> list[PastAttempt]:
    """Return the attempts of the job up to this one, oldest first."""
    return [*_earlier_attempts(attempt), _past_attempt(attempt, ended or recorded_end(attempt))]


def _earlier_attempts(attempt: Attempt) -> list[PastAttempt]:
    earlier = Attempt.objects.filter(job=attempt.job_id, number__lt=attempt.number)
    return [
        _past_attempt(past, recorded_end(past)) for past in earlier.select_related("latest_progress").order_by("number")
    ]


def recorded_end(attempt: Attempt) -> AttemptEnd:
    fields = {"exit_code": attempt.exit_code, "signal": attempt.signal, "reason": attempt.reason}
    return AttemptEnd(state=State(attempt.state), at=attempt.ended_at, **fields)


def _past_attempt(attempt: Attempt, ended: AttemptEnd) -> PastAttempt:
    """Return what the retry counters need to know about an attempt.

    An attempt that a user or the scheduler stopped has no cause. Only reported steps and saved checkpoints count as
    progress, not steps from the log: a log that counts anew in each epoch would show no progress.
    """
    end_facts = {"label": attempt.cause, "state": ended.state, "exit_code": ended.exit_code, "signal": ended.signal}
    latest = getattr(attempt, "latest_progress", None)
    last_step, is_of_log = (latest.step, latest.is_of_log) if latest else (None, False)
    steps = [step for step in (attempt.saved_step, None if is_of_log else last_step) if step is not None]
    return PastAttempt(
        cause=failure_cause(**end_facts) if attempt.stop_state in ("", State.FAILED) else "",
        nodes=frozenset(expand(attempt.nodelist)),
        step=max(steps, default=None),
        logged_step=last_step if is_of_log else None,
        ran=ended.at - attempt.confirmed_at if ended.at and attempt.confirmed_at else None,
    )


@transaction.atomic
def set_failure_cause(attempt: Attempt, label: str, *, author: Author) -> None:
    """Record the cause of a failure, from a diagnosis or a user. The retry counters use it from now on.

    A job is requeued before its log has been read, so that decision is checked again: if this failure completes a crash
    loop, the job is held. An earlier hold is never released here, and a job that has started again is not stopped; its
    next failure is counted with this cause.
    """
    Attempt.objects.filter(pk=attempt.pk, ended_at__isnull=False).update(cause=label)
    job = Job.objects.select_for_update().get(pk=attempt.job_id)
    last = Attempt.objects.filter(job=job).select_related("latest_progress").order_by("-number").first()
    is_requeued = job.state == State.PENDING and job.hold == HoldKind.NONE and Flag.REQUEUED in job.flags
    # Only the newest attempt decides, and only if the job has not started again or been held since
    if not is_requeued or last is None or last.pk != attempt.pk:
        return
    if why := crash_loop_reason(attempt_history(last)):
        _hold_crash_looping_job(job, last, why, author=author)


def _hold_crash_looping_job(job: Job, attempt: Attempt, why: str, *, author: Author) -> None:
    fields = {"hold": HoldKind.USER, "flags": [Flag.REQUEUE_HOLD], "reason": "JobHeldUser", "why": why}
    Job.objects.filter(pk=job.pk).update(**fields)
    journal.job_event("job.held", author, job, attempt=attempt, why=why).save()
    publish_job_change(job)


def _lock_attempt(attempt: Attempt) -> Attempt:
    """Lock the attempt and read it again: a stop that a user requested meanwhile decides what the job becomes."""
    return Attempt.objects.select_for_update(of=("self",)).select_related("job__cluster").get(pk=attempt.pk)


@transaction.atomic
def record_submit_refusal(
    attempt: Attempt, why: str, *, now: datetime, author: Author, about_place: bool = False
) -> None:
    """Close an attempt that the cluster rejected. The job is held or, if its nodes were the reason, requeued for other
    nodes."""
    attempt = _lock_attempt(attempt)
    ended = AttemptEnd(state=State.BOOT_FAIL, at=now, reason=why)
    if attempt.stop_state == State.CANCELLED:
        transition = attempt_end.transition_after_end(ended, requested=attempt.stop_state, budget=0)
    elif about_place and not _has_repeated_refusals(attempt):
        transition = attempt_end.transition_after_misplacement(why)
    else:
        transition = attempt_end.transition_after_refusal(why)
    close_attempt(attempt, ended, transition, author=author)


def _has_repeated_refusals(attempt: Attempt) -> bool:
    """Return whether the previous attempts were rejected too. Nodes rarely fail that often, so the job is the likely
    cause."""
    before = Attempt.objects.filter(job=attempt.job_id, number__lt=attempt.number).order_by("-number")
    # An attempt without a backend id was never accepted by the cluster
    ends = list(before.values_list("state", "backend_id")[: MAX_SUBMIT_REFUSALS - 1])
    return ends == [(State.BOOT_FAIL, "")] * (MAX_SUBMIT_REFUSALS - 1)


@transaction.atomic
def withdraw_attempt(attempt: Attempt, *, now: datetime, author: Author) -> None:
    """Close an attempt that was stopped before it was submitted to the cluster."""
    attempt = _lock_attempt(attempt)
    requested = State(attempt.stop_state)
    ended = AttemptEnd(
        state=State.CANCELLED, at=now, reason=attempt.stop_reason or "stopped before it was submitted to the cluster"
    )
    close_attempt(attempt, ended, attempt_end.transition_after_end(ended, requested=requested, budget=1), author=author)


@transaction.atomic
def close_attempt(
    attempt: Attempt, ended: AttemptEnd, transition: attempt_end.JobTransition, *, author: Author
) -> None:
    """End a live attempt, release its GPUs, and move its job. An end in the future counts as now."""
    ended = replace(ended, at=min(ended.at, clock.now()))
    updated = Attempt.objects.filter(pk=attempt.pk, ended_at__isnull=True).update(
        state=transition.state if transition.state in FINAL_STATES else ended.state,
        ended_at=ended.at,
        exit_code=ended.exit_code,
        signal=ended.signal,
        reason=ended.reason,
    )
    if not updated:
        raise StateConflict(f"attempt {attempt} has already ended")
    # Released in the same transaction, so another attempt can hold the GPUs as soon as this one has ended
    Allocation.objects.filter(attempt=attempt, released_at__isnull=True).update(released_at=ended.at)
    job = Job.objects.select_for_update().get(pk=attempt.job_id)
    fields = _final_fields(ended) if transition.state in FINAL_STATES else _waiting_fields(job, transition)
    # A stale resume point would make the next attempt repeat work that is already saved
    if job.resume and not _resume_is_still_valid(job, attempt):
        fields["resume"] = {}
    # The sentence of a rejection already contains the reason
    why = transition.why if ended.reason in transition.why else f"{transition.why} {ended.reason}"
    detail = {"ended": ended.state, "exit_code": ended.exit_code, "signal": ended.signal}
    change_state(job, transition.state, author=author, why=why, attempt=attempt, detail=detail, **fields)


def _resume_is_still_valid(job: Job, attempt: Attempt) -> bool:
    """Return whether the next attempt should resume from the same checkpoint: not if this attempt has saved a newer
    one, and not if no saves are known."""
    if attempt.confirmed_at is None:
        return True
    saved = job.checkpoints.order_by("-step").values_list("step", "attempt_id")
    newer = [step for step, by in saved[:100] if by == attempt.pk and step > job.resume.get("step", -1)]
    return bool(saved) and not newer


def _final_fields(ended: AttemptEnd) -> dict[str, Any]:
    return {"ended_at": ended.at, "exit_code": ended.exit_code, "signal": ended.signal, "reason": ""}


def _waiting_fields(job: Job, transition: attempt_end.JobTransition) -> dict[str, Any]:
    is_recovering = Flag.RECOVERING in transition.flags
    is_unknown = Flag.OUTCOME_UNKNOWN in transition.flags
    is_held = is_recovering or is_unknown or Flag.REQUEUE_HOLD in transition.flags
    return {
        "flags": list(transition.flags),
        "started_at": None,
        "requeues": job.requeues + transition.spends_budget,
        # A user's hold: the owner may release it after fixing the cause
        "hold": HoldKind.USER if is_held else HoldKind.NONE,
        "reason": RECOVERING
        if is_recovering
        else OUTCOME_UNKNOWN
        if is_unknown
        else "JobHeldUser"
        if is_held
        else "None",
        "recover_by": clock.now() + RECOVERY_DECISION_TIMEOUT if is_recovering else None,
    }


class WaitReason(NamedTuple):
    """Why a job waits, in Slurm's term and as a sentence. `power_budgets` names those that leave too little."""

    job_id: int
    reason: str
    why: str
    power_budgets: Sequence[str] = ()


def store_wait_reasons(reasons: Sequence[WaitReason]) -> int:
    """Store the reasons of waiting jobs. One statement, which writes only changed rows.

    No Event is written, because the state does not change.
    """
    if not reasons:
        return 0
    ids, words, sentences, budgets = zip(*reasons, strict=True)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobs_job j SET reason = v.reason, why = v.why, power_budgets = v.budgets"
            # Arrays of different lengths are no array of arrays, so they are passed as JSON
            " FROM (SELECT id, reason, why, ARRAY(SELECT jsonb_array_elements_text(names::jsonb)) AS budgets"
            " FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[]) rows (id, reason, why, names)) v"
            # A held job already has its reason. A reason computed before the hold must not overwrite it
            " WHERE j.id = v.id AND j.state = 'PENDING' AND j.hold = ''"
            " AND (j.reason, j.why, j.power_budgets::text[]) IS DISTINCT FROM (v.reason, v.why, v.budgets)",
            [list(ids), list(words), list(sentences), [json.dumps(names) for names in budgets]],
        )
        changed: int = cursor.rowcount
    if changed:
        live.publish_on_commit("queue")
    return changed


def fail_unstartable_job(job: Job, why: str, *, now: datetime, author: Author) -> None:
    """End a job that can never start."""
    with transaction.atomic():
        change_state(job, State.FAILED, author=author, why=why, ended_at=now, reason="DependencyNeverSatisfied")


@transaction.atomic
def correct_gpus(corrections: Sequence[GpuCorrection]) -> None:
    """Apply all corrections, and record what the attempts hold now."""
    if corrections:
        _journal_gpu_allocations(promise.correct_indices(corrections))


@transaction.atomic
def record_adopted_gpus(attempt_id: int, cluster: Cluster, given: Mapping[str, Sequence[int]]) -> None:
    """Record the GPUs of an adopted attempt, as its cluster reports them."""
    nodes = dict(Node.objects.filter(cluster=cluster, name__in=given).values_list("pk", "name"))
    attempt = Attempt.objects.select_for_update().get(pk=attempt_id)
    rows = Allocation.objects.live().filter(attempt=attempt, node__in=nodes)
    # The GPUs are already recorded, so this is a repeated call
    if rows.filter(gpu__isnull=False).exists():
        return
    rows.delete()
    since = attempt.confirmed_at or attempt.promised_at
    gpus = [(node, gpu) for node, name in nodes.items() for gpu in given[name] or (None,)]
    Allocation.objects.bulk_create(promise.running_allocations(attempt, gpus, attempt.job.gpu_milli, held_at=since))
    Attempt.objects.filter(pk=attempt_id, nodelist="").update(nodelist=compress(nodes.values()))
    _journal_gpu_allocations({attempt_id})


def _journal_gpu_allocations(attempt_ids: set[int]) -> None:
    """Write an Event for each correction, so that the Events alone show which GPUs an attempt holds."""
    held: dict[int, dict[str, list[int]]] = {pk: {} for pk in attempt_ids}
    rows = Allocation.objects.live().filter(attempt__in=attempt_ids, gpu__isnull=False).order_by("node__name", "gpu")
    for attempt_id, node, gpu in rows.values_list("attempt_id", "node__name", "gpu"):
        held[attempt_id].setdefault(node, []).append(gpu)
    attempts = Attempt.objects.filter(pk__in=attempt_ids).select_related("job").order_by("pk")
    why = "The cluster allocated other GPUs of the node than planned."
    events = [
        journal.job_event("job.placed", SYNC, attempt.job, attempt=attempt, why=why, detail={"gpus": held[attempt.pk]})
        for attempt in attempts
    ]
    bulk_copy.insert(events)


# --- state changes


def change_state(
    job: Job,
    target: State,
    *,
    author: Author,
    why: str,
    attempt: Attempt | None = None,
    detail: Mapping[str, object] | None = None,
    flags: Iterable[str] = (),
    **fields: Any,
) -> None:
    """Move the job to another state and write the Event. Raises StateConflict if the state has changed meanwhile."""
    source = State(job.state)
    lifecycle.check_transition(source, target)
    changed = {"flags": list(flags), "recover_by": None, **fields}  # flags belong to the old state
    # The guard on the old state detects concurrent changes without locking the row first
    updated = Job.objects.filter(pk=job.pk, state=source).update(state=target, why=why, **changed)
    if updated != 1:
        raise state_changed_error(job, f"it was {source} a moment ago")
    journal.job_event(
        "job.state_changed",
        author,
        job,
        attempt=attempt,
        why=why,
        from_state=source,
        to_state=target,
        detail=dict(detail or {}),
    ).save()
    job.refresh_from_db()
    publish_job_change(job)
