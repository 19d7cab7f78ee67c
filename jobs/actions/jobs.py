"""The only code that changes a job.

Every verb expects a state, changes it in one guarded UPDATE, and writes the Event of it in the same transaction; when
somebody else was faster it raises `Moved` and has changed nothing. What a cluster must be told is left as a Deed; no
verb here talks to a cluster or to a queue.

    JobError         (jobs.actions.stop, which holds the verbs that stop a job)
    ├── Moved        the job is not in the state that the verb expects
    └── BadSpec      (jobs.core.spec) what was asked cannot be
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction

from acmeweb.common import live
from jobs.actions import journal
from jobs.actions.journal import SYNC, Author
from jobs.actions.promise import NodeGpus as NodeGpus
from jobs.actions.promise import allocate_job as allocate_job
from jobs.actions.stop import JobError as JobError
from jobs.actions.stop import JobStateChanged, publish_job_change, refuse_foreign, request_stop, state_changed_error
from jobs.actions.stop import preempt as preempt
from jobs.actions.stop import requeue as requeue
from jobs.actions.submit import WAITING_FOR_FIRST_TURN
from jobs.actions.submit import submit as submit
from jobs.core import attempt_end, lifecycle
from jobs.core.attempt_end import AttemptEnd
from jobs.core.hostlist import compress, expand
from jobs.core.lifecycle import FINAL_STATES, LIVE_STATES, OUTCOME_UNKNOWN, RECOVERING, Flag, State
from jobs.core.retry_budget import PastAttempt, crash_loop_reason, failure_cause
from jobs.models import Allocation, Attempt, Cluster, ClusterMode, HoldKind, Job, Node, RecoveryMode, bulk_copy, clock

MAX_SUBMIT_REFUSALS = 3  # of one job in a row because of its nodes
RECOVERY_DECISION_TIMEOUT = timedelta(minutes=10)  # three tries to read a log take half of it
REQUEUED_BY_CLUSTER = "Its cluster put it back into its own queue."

# --- what people do to a job


@transaction.atomic
def hold(job: Job, *, author: Author, why: str = "", operator: bool = False) -> None:
    if job.hold == HoldKind.ADMIN and not operator:
        raise JobStateChanged(f"{job} is held by an operator already")
    kind = HoldKind.ADMIN if operator else HoldKind.USER
    reason, sentence = ("JobHeldAdmin", "An operator holds it") if operator else ("JobHeldUser", "Its owner holds it")
    _update_pending_job(job, "hold", hold=kind, reason=reason, why=f"{sentence}: {why}" if why else f"{sentence}.")
    journal.job_event("job.held", author, job, why=why).save()
    publish_job_change(job)


@transaction.atomic
def release(job: Job, *, author: Author, why: str = "", operator: bool = False) -> None:
    """An operator's hold is lifted by an operator only."""
    if job.hold == HoldKind.ADMIN and not operator:
        raise JobStateChanged(f"{job} is held by an operator; only an operator can release it")
    if Flag.OUTCOME_UNKNOWN in job.flags:
        raise JobStateChanged(f"{job} may have succeeded already; record its outcome, or run it again")
    flags = [flag for flag in job.flags if flag not in (Flag.REQUEUE_HOLD, Flag.LAUNCH_FAILED, Flag.RECOVERING)]
    # Who releases a job that waits for recovery has decided himself
    _update_pending_job(
        job, "release", hold=HoldKind.NONE, flags=flags, reason="None", why=WAITING_FOR_FIRST_TURN, recover_by=None
    )
    journal.job_event("job.released", author, job, why=why).save()
    publish_job_change(job)


@transaction.atomic
def set_priority(job: Job, priority: int, *, author: Author, why: str = "") -> None:
    before = job.priority
    _update_pending_job(job, "reprioritise", priority=priority)
    journal.job_event("job.reprioritised", author, job, why=why, detail={"from": before, "to": priority}).save()
    publish_job_change(job)


def _update_pending_job(job: Job, verb: str, **fields: object) -> None:
    refuse_foreign(job, verb)
    # The hold is part of the guard: an operator's hold that came meanwhile must not be overwritten or lifted
    expected = Job.objects.filter(pk=job.pk, state=State.PENDING, hold=job.hold)
    if expected.update(**fields) != 1:
        raise state_changed_error(
            job, f"{verb} needs a job that waits", held="somebody held or released it a moment ago"
        )
    job.refresh_from_db()


@transaction.atomic
def cancel(job: Job, *, author: Author, why: str = "") -> None:
    """Waiting jobs end at once; a live one is stopped by its cluster, which has the last word on how it ended."""
    refuse_foreign(job, "cancel")
    if job.state == State.PENDING:
        change_state(job, State.CANCELLED, author=author, why=why or "Cancelled.", ended_at=clock.now())
    else:
        request_stop(job, State.CANCELLED, "cancel", author=author, why=why)


# --- what the loops do to a job


def record_backend_id(attempt: Attempt, backend_id: str) -> None:
    """The cluster took it under an id of its own."""
    record_backend_ids({attempt.pk: backend_id})


def record_backend_ids(ids: Mapping[int, str]) -> None:
    """Attempts, each with the id under which its cluster took it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobs_attempt a SET backend_id = v.name, missing_since = NULL,"
            " accepted_at = coalesce(a.accepted_at, clock_timestamp())"
            " FROM unnest(%s::bigint[], %s::text[]) v (id, name) WHERE a.id = v.id AND a.ended_at IS NULL",
            [list(ids), list(ids.values())],
        )


def set_missing_since(attempt: Attempt, since: datetime | None) -> None:
    """The cluster does not know it (any more), or knows it again."""
    Attempt.objects.filter(pk=attempt.pk, ended_at__isnull=True).update(missing_since=since)


@transaction.atomic
def confirm_start(attempt: Attempt, *, started_at: datetime, author: Author) -> None:
    """The cluster runs it. Its clock may be ahead of ours, and nothing has happened in the future."""
    now = clock.now()
    started_at = min(started_at, now)
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
    """The cluster stopped its processes, or lets them go on; the GPUs stay held."""
    job = Job.objects.get(pk=attempt.job_id)
    target = State.SUSPENDED if suspended else State.RUNNING
    if job.state in LIVE_STATES and job.state != target:
        Attempt.objects.filter(pk=attempt.pk, ended_at__isnull=True).update(state=target)
        change_state(job, target, author=author, why="The cluster reports it.", attempt=attempt)


@transaction.atomic
def finish(attempt: Attempt, ended: AttemptEnd, *, author: Author) -> None:
    """Close the attempt, give its GPUs back, and move the job to what follows from this end."""
    attempt = _lock_attempt(attempt)
    job = attempt.job
    if attempt.stop_as == State.FAILED and ended.state != State.COMPLETED:
        ended = replace(ended, state=State.FAILED, reason=attempt.stop_why)  # its cluster knows only that we ended it
    if job.is_foreign:
        close_attempt(attempt, ended, attempt_end.JobTransition(state=ended.state, why=ended.sentence), author=author)
        return
    # Who gives way is not charged for it, so what the platform has spent does not count against him
    spent = 0 if attempt.stop_as == State.PREEMPTED else job.requeues
    becomes = attempt_end.transition_after_end(ended, wanted=attempt.stop_as, budget=job.requeue_limit - spent)
    if becomes.spends_budget and (why := crash_loop_reason(attempt_history(attempt, ended))):
        becomes = attempt_end.transition_to_hold(why)
    may_recover = (
        attempt.stop_as in ("", State.FAILED)
        and job.cluster.mode == ClusterMode.DRIVE
        and recovery_eligibility(job).is_recoverable(ended)
    )
    if may_recover and attempt_end.waits_for_recovery(becomes, _recovery_modes(job)):
        becomes = attempt_end.transition_to_recovery(ended)
    close_attempt(attempt, ended, becomes, author=author)


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
    """The same for an attempt that its cluster has forgotten, unless the cluster has shown it again since."""
    attempt = _lock_attempt(attempt)
    if attempt.ended_at or attempt.missing_since != missing_since:
        raise JobStateChanged(f"the cluster knows attempt {attempt} again")
    if backend_id:
        Attempt.objects.filter(pk=attempt.pk, backend_id="").update(backend_id=backend_id)
    if started_at:
        confirm_start(attempt, started_at=started_at, author=author)
    finish(attempt, ended, author=author)


def recovery_eligibility(job: Job) -> attempt_end.RecoveryEligibility:
    saves = bool(job.checkpoint_dir or job.checkpoint_interval)
    return attempt_end.RecoveryEligibility(
        kind=job.kind, labels=job.labels, saves=saves, may_requeue=job.requeue_limit > 0
    )


def _recovery_modes(job: Job) -> set[str]:
    """All that may come of it for this job. About everything: the least of its team's and the operators' word, that
    of the cluster before that of all; nothing said: propose."""
    rows = list(RecoveryMode.objects.for_job(job).values_list("team", "cluster", "action", "mode"))
    whole = sorted((row for row in rows if not row[2]), key=lambda row: bool(row[1]))
    said = {team: str(mode) for team, _, _, mode in whole}.values()
    least = min(said, key=RecoveryMode.Reach.values.index, default="propose")
    return {str(mode) for _, _, action, mode in rows if action} | {least}


@transaction.atomic
def record_cluster_requeue(attempt: Attempt, *, now: datetime, author: Author) -> None:
    """A job from outside Acme was put back into its cluster's own queue."""
    ended = AttemptEnd(state=State.PREEMPTED, at=now)
    close_attempt(
        attempt,
        ended,
        attempt_end.JobTransition(state=State.PENDING, flags=(Flag.REQUEUED,), why=REQUEUED_BY_CLUSTER),
        author=author,
    )


def attempt_history(attempt: Attempt, ended: AttemptEnd | None = None) -> list[PastAttempt]:
    """Of its job, oldest first, this one last."""
    return [*_earlier_attempts(attempt), _past_attempt(attempt, ended or recorded_end(attempt))]


def _earlier_attempts(attempt: Attempt) -> list[PastAttempt]:
    earlier = Attempt.objects.filter(job=attempt.job_id, number__lt=attempt.number)
    return [_past_attempt(one, recorded_end(one)) for one in earlier.select_related("pulse").order_by("number")]


def recorded_end(attempt: Attempt) -> AttemptEnd:
    how = {"exit_code": attempt.exit_code, "signal": attempt.signal, "reason": attempt.reason}
    return AttemptEnd(state=State(attempt.state), at=attempt.ended_at, **how)


def _past_attempt(attempt: Attempt, ended: AttemptEnd) -> PastAttempt:
    """What it reported as done; what people and the scheduler ended has no cause. A log may count anything, and who
    counts anew in each epoch never gets further: that holds no job back."""
    how = {"label": attempt.cause, "state": ended.state, "exit_code": ended.exit_code, "signal": ended.signal}
    pulse = getattr(attempt, "pulse", None)
    reported = pulse.step if pulse and not pulse.is_of_log else None
    steps = [step for step in (attempt.saved_step, reported) if step is not None]
    return PastAttempt(
        cause=failure_cause(**how) if attempt.stop_as in ("", State.FAILED) else "",
        nodes=frozenset(expand(attempt.nodelist)),
        step=max(steps, default=None),
    )


@transaction.atomic
def set_failure_cause(attempt: Attempt, label: str, *, author: Author) -> None:
    """What a diagnosis, or a person, called the cause of its end: from now on the ledgers count by it.

    A job is back in its queue before anybody has read its log, so that decision is looked at once more: if this end
    closed a crash loop, the job waits for a person. What was held before that is never let go here, and what has
    started again meanwhile is stopped by nobody; its next end will be counted by the name.
    """
    Attempt.objects.filter(pk=attempt.pk, ended_at__isnull=False).update(cause=label)
    job = Job.objects.select_for_update().get(pk=attempt.job_id)
    last = Attempt.objects.filter(job=job).select_related("pulse").order_by("-number").first()
    waits = job.state == State.PENDING and job.hold == HoldKind.NONE and Flag.REQUEUED in job.flags
    if not waits or last is None or last.pk != attempt.pk:
        return
    if why := crash_loop_reason(attempt_history(last)):
        _hold_crash_looping_job(job, last, why, author=author)


def _hold_crash_looping_job(job: Job, attempt: Attempt, why: str, *, author: Author) -> None:
    held = {"hold": HoldKind.USER, "flags": [Flag.REQUEUE_HOLD], "reason": "JobHeldUser", "why": why}
    Job.objects.filter(pk=job.pk).update(**held)
    journal.job_event("job.held", author, job, attempt=attempt, why=why).save()
    publish_job_change(job)


def _lock_attempt(attempt: Attempt) -> Attempt:
    """Locked and read again: what a person asked since the loop looked decides what becomes of the job."""
    return Attempt.objects.select_for_update(of=("self",)).select_related("job__cluster").get(pk=attempt.pk)


@transaction.atomic
def record_submit_refusal(
    attempt: Attempt, why: str, *, now: datetime, author: Author, about_place: bool = False
) -> None:
    """The cluster would not take it: the promise is void and the job waits for a person, or, where its nodes were the
    reason, at its place in the queue for others."""
    attempt = _lock_attempt(attempt)
    ended = AttemptEnd(state=State.BOOT_FAIL, at=now, reason=why)
    if attempt.stop_as == State.CANCELLED:
        becomes = attempt_end.transition_after_end(ended, wanted=attempt.stop_as, budget=0)
    elif about_place and not _has_repeated_refusals(attempt):
        becomes = attempt_end.transition_after_misplacement(why)
    else:
        becomes = attempt_end.transition_after_refusal(why)
    close_attempt(attempt, ended, becomes, author=author)


def _has_repeated_refusals(attempt: Attempt) -> bool:
    """Whether those before it were not taken either. Nodes do not die that often, so it is the job after all."""
    before = Attempt.objects.filter(job=attempt.job_id, number__lt=attempt.number).order_by("-number")
    ends = list(before.values_list("state", "backend_id")[: MAX_SUBMIT_REFUSALS - 1])
    return ends == [(State.BOOT_FAIL, "")] * (MAX_SUBMIT_REFUSALS - 1)


@transaction.atomic
def withdraw_attempt(attempt: Attempt, *, now: datetime, author: Author) -> None:
    """It was to be stopped before the cluster heard of it."""
    attempt = _lock_attempt(attempt)
    wanted = State(attempt.stop_as)
    ended = AttemptEnd(state=State.CANCELLED, at=now, reason=attempt.stop_why or "stopped before it was sent")
    close_attempt(attempt, ended, attempt_end.transition_after_end(ended, wanted=wanted, budget=1), author=author)


@transaction.atomic
def close_attempt(attempt: Attempt, ended: AttemptEnd, becomes: attempt_end.JobTransition, *, author: Author) -> None:
    """End a live attempt, give its GPUs back, and move its job. A cluster's clock may be ahead of ours."""
    ended = replace(ended, at=min(ended.at, clock.now()))
    closed = Attempt.objects.filter(pk=attempt.pk, ended_at__isnull=True).update(
        state=becomes.state if becomes.state in FINAL_STATES else ended.state,
        ended_at=ended.at,
        exit_code=ended.exit_code,
        signal=ended.signal,
        reason=ended.reason,
    )
    if not closed:
        raise JobStateChanged(f"attempt {attempt} has ended already")
    Allocation.objects.filter(attempt=attempt, released_at__isnull=True).update(released_at=ended.at)
    job = Job.objects.select_for_update().get(pk=attempt.job_id)
    fields = _final_fields(ended) if becomes.state in FINAL_STATES else _waiting_fields(job, becomes)
    if job.resume and not _resume_is_still_valid(job, attempt):
        fields["resume"] = {}
    # A refusal's sentence quotes the reason already
    why = becomes.why if ended.reason in becomes.why else f"{becomes.why} {ended.reason}"
    detail = {"ended": ended.state, "exit_code": ended.exit_code, "signal": ended.signal}
    change_state(job, becomes.state, author=author, why=why, attempt=attempt, detail=detail, **fields)


def _resume_is_still_valid(job: Job, attempt: Attempt) -> bool:
    """Whether where it was told to go on from is still the place: not once it has saved something newer, and not
    where nobody would know of that."""
    if attempt.confirmed_at is None:
        return True
    saved = job.checkpoints.order_by("-step").values_list("step", "attempt_id")
    newer = [step for step, by in saved[:100] if by == attempt.pk and step > job.resume.get("step", -1)]
    return bool(saved) and not newer


def _final_fields(ended: AttemptEnd) -> dict[str, Any]:
    return {"ended_at": ended.at, "exit_code": ended.exit_code, "signal": ended.signal, "reason": ""}


def _waiting_fields(job: Job, becomes: attempt_end.JobTransition) -> dict[str, Any]:
    recovering = Flag.RECOVERING in becomes.flags
    unknown = Flag.OUTCOME_UNKNOWN in becomes.flags
    held = recovering or unknown or Flag.REQUEUE_HOLD in becomes.flags
    return {
        "flags": list(becomes.flags),
        "started_at": None,
        "requeues": job.requeues + becomes.spends_budget,
        # Its owner may release it, once the cause is mended
        "hold": HoldKind.USER if held else HoldKind.NONE,
        "reason": RECOVERING if recovering else OUTCOME_UNKNOWN if unknown else "JobHeldUser" if held else "None",
        "recover_by": clock.now() + RECOVERY_DECISION_TIMEOUT if recovering else None,
    }


def store_wait_reasons(reasons: Sequence[tuple[int, str, str]]) -> int:
    """Job id, Slurm's word, the sentence: kept as the page shows them, in one statement that writes only what changed.

    No Event: this is an answer, not a change of state.
    """
    if not reasons:
        return 0
    ids, words, sentences = zip(*reasons, strict=True)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobs_job j SET reason = v.reason, why = v.why"
            " FROM unnest(%s::bigint[], %s::text[], %s::text[]) v (id, reason, why)"
            # Whoever holds a job has said why; a look from before the hold must not talk over it
            " WHERE j.id = v.id AND j.state = 'PENDING' AND j.hold = ''"
            " AND (j.reason, j.why) IS DISTINCT FROM (v.reason, v.why)",
            [list(ids), list(words), list(sentences)],
        )
        changed: int = cursor.rowcount
    if changed:
        live.publish_on_commit("queue")
    return changed


def fail_unstartable_job(job: Job, why: str, *, now: datetime, author: Author) -> None:
    """It can never start."""
    with transaction.atomic():
        change_state(job, State.FAILED, author=author, why=why, ended_at=now, reason="DependencyNeverSatisfied")


@dataclass(frozen=True, kw_only=True)
class GpuCorrection:
    """The cluster gave another GPU of the node than the one we promised."""

    attempt_id: int
    node_id: int
    promised: int
    given: int


@transaction.atomic
def correct_gpus(corrections: Sequence[GpuCorrection]) -> None:
    """All in one statement, because attempts may swap places and the database looks at the end of each statement."""
    if not corrections:
        return
    values = ", ".join(["(%s::bigint, %s::bigint, %s::int, %s::int)"] * len(corrections))
    numbers = [number for c in corrections for number in (c.attempt_id, c.node_id, c.promised, c.given)]
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE jobs_allocation a SET gpu = v.given FROM (VALUES {values}) v (attempt, node, promised, given)"  # noqa: S608
            " WHERE a.attempt_id = v.attempt AND a.node_id = v.node AND a.gpu = v.promised AND a.released_at IS NULL"
            " RETURNING a.attempt_id",
            numbers,
        )
        _journal_gpu_allocations({row[0] for row in cursor.fetchall()})


@transaction.atomic
def record_adopted_gpus(attempt_id: int, cluster: Cluster, given: Mapping[str, Sequence[int]]) -> None:
    """The GPUs of an attempt that was taken over without them, as its cluster shows them."""
    nodes = dict(Node.objects.filter(cluster=cluster, name__in=given).values_list("pk", "name"))
    attempt = Attempt.objects.select_for_update().get(pk=attempt_id)
    rows = Allocation.objects.live().filter(attempt=attempt, node__in=nodes)
    if rows.filter(gpu__isnull=False).exists():
        return
    rows.delete()
    since = attempt.confirmed_at or attempt.promised_at
    Allocation.objects.bulk_create(
        Allocation(attempt=attempt, node_id=node, gpu=gpu, held_at=since)
        for node, name in nodes.items()
        for gpu in given[name] or (None,)
    )
    Attempt.objects.filter(pk=attempt_id, nodelist="").update(nodelist=compress(nodes.values()))
    _journal_gpu_allocations({attempt_id})


def _journal_gpu_allocations(attempt_ids: set[int]) -> None:
    """Which GPUs an attempt holds can be read from the Events alone, so a correction is one."""
    held: dict[int, dict[str, list[int]]] = {pk: {} for pk in attempt_ids}
    rows = Allocation.objects.live().filter(attempt__in=attempt_ids, gpu__isnull=False).order_by("node__name", "gpu")
    for attempt_id, node, gpu in rows.values_list("attempt_id", "node__name", "gpu"):
        held[attempt_id].setdefault(node, []).append(gpu)
    attempts = Attempt.objects.filter(pk__in=attempt_ids).select_related("job").order_by("pk")
    why = "The cluster gave other GPUs of the node than were promised."
    events = [
        journal.job_event("job.placed", SYNC, one.job, attempt=one, why=why, detail={"gpus": held[one.pk]})
        for one in attempts
    ]
    bulk_copy.insert(events)


# --- one move


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
    source = State(job.state)
    lifecycle.check_transition(source, target)
    changed = {"flags": list(flags), "recover_by": None, **fields}  # flags belong to the state that is left
    updated = Job.objects.filter(pk=job.pk, state=source).update(state=target, why=why, **changed)
    if updated != 1:
        raise state_changed_error(job, f"it was {source} a moment ago")
    journal.job_event(
        "job.moved",
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
