"""Attempts that their cluster has forgotten: what becomes of the job when nothing shows how they ended, and when
somebody, or a later look, says how they did.

A job whose outcome is unknown may have succeeded, so it must not start again by itself. It waits as PENDING with the
flag OUTCOME_UNKNOWN, held, without GPUs. Its attempt is closed as UNKNOWN.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db import transaction

from jobs import actions, clock, ending, journal
from jobs.ending import Ended
from jobs.journal import Author
from jobs.lifecycle import FINAL, Flag, State
from jobs.models import Attempt, Hold, Job
from jobs.stop_actions import moved, tell
from jobs.submit_actions import NOT_LOOKED_YET

FINAL_WISHES = (State.CANCELLED, State.TIMEOUT, State.FAILED)  # what a stop may ask for that starts nothing again


@transaction.atomic
def declare_unknown(attempt: Attempt, why: str, *, missing_since: datetime, author: Author) -> None:
    """Close a live attempt that is still missing since then. One that was to end for good is taken to have ended so."""
    attempt = Attempt.objects.select_for_update(of=("self",)).select_related("job__cluster").get(pk=attempt.pk)
    if attempt.ended_at or attempt.missing_since != missing_since:
        raise moved(attempt.job, f"the cluster knows attempt {attempt} again")
    ended = Ended(state=State.UNKNOWN, at=missing_since, reason=why)
    if attempt.job.is_foreign:
        withdrawn = Ended(state=State.CANCELLED, at=missing_since, reason=why)
        actions.close(attempt, withdrawn, ending.Next(state=State.CANCELLED, why=why), author=author)
    elif attempt.stop_as in FINAL_WISHES:
        actions.close(attempt, ended, ending.after(ended, wanted=attempt.stop_as, budget=0), author=author)
    else:
        actions.close(attempt, ended, ending.outcome_unknown(why), author=author)


@transaction.atomic
def record_end(attempt: Attempt, ended: Ended, *, author: Author) -> None:
    """It has become known how an UNKNOWN attempt ended: the job becomes what follows from that."""
    job, attempt = _locked(attempt.job)
    ended = replace(ended, at=min(ended.at, clock.now()))
    spent = 0 if attempt.stop_as == State.PREEMPTED else job.requeues
    becomes = ending.after(ended, wanted=attempt.stop_as, budget=job.requeue_limit - spent)
    _close_as(attempt, ended)
    if becomes.state in FINAL:
        _end(job, attempt, becomes.state, becomes.why, ended, author=author)
    else:
        _start_again(job, becomes.why, spends=becomes.spends_budget)
        journal.of_job("job.outcome_known", author, job, attempt=attempt, why=becomes.why).save()


@transaction.atomic
def mark_succeeded(job: Job, *, author: Author, why: str = "") -> None:
    _record(job, State.COMPLETED, "recorded that it had succeeded", author=author, why=why)


@transaction.atomic
def mark_failed(job: Job, *, author: Author, why: str = "") -> None:
    _record(job, State.FAILED, "recorded that it had failed", author=author, why=why)


@transaction.atomic
def run_again(job: Job, *, author: Author, why: str = "") -> None:
    """Back to its place in the queue. The attempt whose outcome is unknown stays UNKNOWN."""
    job, attempt = _locked(job)
    _start_again(job, NOT_LOOKED_YET, spends=False)
    detail = {"outcome": "run_again"}
    journal.of_job("job.outcome_recorded", author, job, attempt=attempt, why=why, detail=detail).save()
    tell(job)


def _record(job: Job, state: State, sentence: str, *, author: Author, why: str) -> None:
    job, attempt = _locked(job)
    said = f"{author.by} {sentence}{f': {why}' if why else '.'}"
    ended = Ended(state=state, at=attempt.ended_at, reason=said)
    _close_as(attempt, ended)
    _end(job, attempt, state, said, ended, author=author)
    detail = {"outcome": "succeeded" if state == State.COMPLETED else "failed"}
    journal.of_job("job.outcome_recorded", author, job, attempt=attempt, why=why, detail=detail).save()


def _locked(job: Job) -> tuple[Job, Attempt]:
    """The job and its attempt without an outcome. The attempt is locked first, as everywhere."""
    attempt = Attempt.objects.select_for_update().filter(job=job, state=State.UNKNOWN).order_by("-number").first()
    locked = Job.objects.select_for_update(of=("self",)).select_related("cluster").get(pk=job.pk)
    if attempt is None or locked.state != State.PENDING or Flag.OUTCOME_UNKNOWN not in locked.flags:
        raise moved(job, "this needs a job whose outcome is unknown", held="its outcome is known by now")
    return locked, attempt


def _close_as(attempt: Attempt, ended: Ended) -> None:
    how = {"exit_code": ended.exit_code, "signal": ended.signal, "reason": ended.reason}
    Attempt.objects.filter(pk=attempt.pk).update(state=ended.state, ended_at=ended.at, **how)


def _end(job: Job, attempt: Attempt, state: State, why: str, ended: Ended, *, author: Author) -> None:
    fields: dict[str, Any] = {
        "started_at": attempt.confirmed_at or attempt.promised_at,
        "ended_at": ended.at,
        "exit_code": ended.exit_code,
        "signal": ended.signal,
        "hold": Hold.NONE,
        "reason": "",
    }
    actions.move(job, state, author=author, why=why, attempt=attempt, **fields)


def _start_again(job: Job, why: str, *, spends: bool) -> None:
    waits = {"hold": Hold.NONE, "flags": [Flag.REQUEUED], "reason": "None", "why": why}
    Job.objects.filter(pk=job.pk).update(**waits, requeues=job.requeues + spends)
    job.refresh_from_db()
