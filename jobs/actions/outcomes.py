"""Handles attempts that their cluster no longer knows, and records outcomes that become known later.

A job with an unknown outcome may have succeeded, so it must not start again automatically. It waits as PENDING with the
flag OUTCOME_UNKNOWN, held, without GPUs. Its attempt is closed as UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db import transaction

from jobs.actions import jobs as job_actions
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.actions.stop import publish_job_change, state_changed_error
from jobs.actions.submit import WAITING_FOR_FIRST_TURN
from jobs.core import attempt_end
from jobs.core.attempt_end import AttemptEnd
from jobs.core.lifecycle import FINAL_STATES, Flag, State
from jobs.models import Attempt, HoldKind, Job, clock

FINAL_STOP_STATES = (
    State.CANCELLED,
    State.TIMEOUT,
    State.DEADLINE,
    State.FAILED,
)  # requested states after which the job does not start again


@transaction.atomic
def mark_outcome_unknown(attempt: Attempt, why: str, *, missing_since: datetime, author: Author) -> None:
    """Close a live attempt that is still missing. If a final stop was requested for it, the attempt counts as
    stopped."""
    attempt = Attempt.objects.select_for_update(of=("self",)).select_related("job__cluster").get(pk=attempt.pk)
    if attempt.ended_at or attempt.missing_since != missing_since:
        raise state_changed_error(attempt.job, f"the cluster reports attempt {attempt} again")
    ended = AttemptEnd(state=State.UNKNOWN, at=missing_since, reason=why)
    # A foreign job is only followed: it is closed as cancelled and never held
    if attempt.job.is_foreign:
        withdrawn = AttemptEnd(state=State.CANCELLED, at=missing_since, reason=why)
        job_actions.close_attempt(
            attempt, withdrawn, attempt_end.JobTransition(state=State.CANCELLED, why=why), author=author
        )
    # The requested stop explains why the cluster no longer knows the attempt
    elif attempt.stop_state in FINAL_STOP_STATES:
        job_actions.close_attempt(
            attempt,
            ended,
            attempt_end.transition_after_end(ended, requested=attempt.stop_state, budget=0),
            author=author,
        )
    else:
        job_actions.close_attempt(attempt, ended, attempt_end.transition_to_unknown(why), author=author)


@transaction.atomic
def record_late_end(attempt: Attempt, ended: AttemptEnd, *, author: Author) -> None:
    """Record the end of an UNKNOWN attempt that became known later, and move the job to the state that follows."""
    job, attempt = _lock_job_and_attempt(attempt.job)
    # The clock of the cluster may be ahead of ours
    ended = replace(ended, at=min(ended.at, clock.now()))
    # As in `finish`: a preemption consumes no requeue
    requested = job_actions.effective_stop(attempt, ended)
    budget = job.requeue_limit - (0 if requested == State.PREEMPTED else job.requeues)
    transition = attempt_end.transition_after_end(ended, requested=requested, budget=budget)
    _set_attempt_end(attempt, ended)
    if transition.state in FINAL_STATES:
        _end_job(job, attempt, transition.state, transition.why, ended, author=author)
    else:
        _return_job_to_queue(job, transition.why, spends=transition.spends_budget)
        journal.job_event("job.outcome_found", author, job, attempt=attempt, why=transition.why).save()


@transaction.atomic
def mark_succeeded(job: Job, *, author: Author, why: str = "") -> None:
    _record_outcome(job, State.COMPLETED, "recorded that the job succeeded", author=author, why=why)


@transaction.atomic
def mark_failed(job: Job, *, author: Author, why: str = "") -> None:
    _record_outcome(job, State.FAILED, "recorded that the job failed", author=author, why=why)


@transaction.atomic
def run_again(job: Job, *, author: Author, why: str = "") -> None:
    """Return the job to its place in the queue. The attempt with the unknown outcome stays UNKNOWN."""
    job, attempt = _lock_job_and_attempt(job)
    _return_job_to_queue(job, WAITING_FOR_FIRST_TURN, spends=False)
    detail = {"outcome": "run_again"}
    journal.job_event("job.outcome_recorded", author, job, attempt=attempt, why=why, detail=detail).save()
    publish_job_change(job)


def _record_outcome(job: Job, state: State, sentence: str, *, author: Author, why: str) -> None:
    job, attempt = _lock_job_and_attempt(job)
    reason = f"{author.by} {sentence}{f': {why}' if why else '.'}"
    ended = AttemptEnd(state=state, at=attempt.ended_at, reason=reason)
    _set_attempt_end(attempt, ended)
    _end_job(job, attempt, state, reason, ended, author=author)
    detail = {"outcome": "succeeded" if state == State.COMPLETED else "failed"}
    journal.job_event("job.outcome_recorded", author, job, attempt=attempt, why=why, detail=detail).save()


def _lock_job_and_attempt(job: Job) -> tuple[Job, Attempt]:
    """Lock and return the job and its attempt with unknown outcome. The attempt is locked first, as everywhere."""
    attempt = Attempt.objects.select_for_update().filter(job=job, state=State.UNKNOWN).order_by("-number").first()
    locked = Job.objects.select_for_update(of=("self",)).select_related("cluster").get(pk=job.pk)
    if attempt is None or locked.state != State.PENDING or Flag.OUTCOME_UNKNOWN not in locked.flags:
        raise state_changed_error(job, "this needs a job with an unknown outcome", held="its outcome is not unknown")
    return locked, attempt


def _set_attempt_end(attempt: Attempt, ended: AttemptEnd) -> None:
    fields = {"exit_code": ended.exit_code, "signal": ended.signal, "reason": ended.reason}
    Attempt.objects.filter(pk=attempt.pk).update(state=ended.state, ended_at=ended.at, **fields)


def _end_job(job: Job, attempt: Attempt, state: State, why: str, ended: AttemptEnd, *, author: Author) -> None:
    fields: dict[str, Any] = {
        "started_at": attempt.confirmed_at or attempt.promised_at,
        "ended_at": ended.at,
        "exit_code": ended.exit_code,
        "signal": ended.signal,
        "hold": HoldKind.NONE,
        "reason": "",
    }
    job_actions.change_state(job, state, author=author, why=why, attempt=attempt, **fields)


def _return_job_to_queue(job: Job, why: str, *, spends: bool) -> None:
    fields = {"hold": HoldKind.NONE, "flags": [Flag.REQUEUED], "reason": "None", "why": why}
    Job.objects.filter(pk=job.pk).update(**fields, requeues=job.requeues + spends)
    job.refresh_from_db()


def mark_logs_complete(attempt_ids: Collection[int]) -> int:
    """Record that all output of these attempts was copied to their logs. Return how many were not marked before."""
    if not attempt_ids:
        return 0
    return Attempt.objects.with_pending_log().filter(pk__in=attempt_ids).update(log_pending=False)
