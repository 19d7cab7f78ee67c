"""Actions of users on waiting jobs. Each changes any number of jobs with a fixed number of statements.

The rows are locked and read again: a job that has started, ended, or been held or released since the caller read it is
refused and not changed. The Events are written in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction

from acmeweb.common.errors import StateConflict
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.actions.stop import Refusals, foreign_refusal, publish_job_changes, raise_refusal, state_changed_errors
from jobs.actions.submit import WAITING_FOR_FIRST_TURN
from jobs.core.lifecycle import Flag, State
from jobs.models import HoldKind, Job

FLAGS_OF_HELD_JOBS = (Flag.REQUEUE_HOLD, Flag.LAUNCH_FAILED, Flag.RECOVERING)


def hold(job: Job, *, author: Author, why: str = "", operator: bool = False) -> None:
    raise_refusal(job, hold_jobs([job], author=author, why=why, operator=operator))
    job.refresh_from_db()


@transaction.atomic
def hold_jobs(jobs: Sequence[Job], *, author: Author, why: str = "", operator: bool = False) -> Refusals:
    refusals = {} if operator else _refuse_held_by_operator(jobs, "is already held by an operator")
    kind = HoldKind.ADMIN if operator else HoldKind.USER
    reason, sentence = ("JobHeldAdmin", "Held by an operator") if operator else ("JobHeldUser", "Held by its owner")
    shown = f"{sentence}: {why}" if why else f"{sentence}."
    changed = _update_waiting_jobs(jobs, "hold", refusals, hold=kind, reason=reason, why=shown)
    journal.save_events(journal.job_event("job.held", author, job, why=why) for job in changed)
    return refusals


def release(job: Job, *, author: Author, why: str = "", operator: bool = False) -> None:
    raise_refusal(job, release_jobs([job], author=author, why=why, operator=operator))
    job.refresh_from_db()


@transaction.atomic
def release_jobs(jobs: Sequence[Job], *, author: Author, why: str = "", operator: bool = False) -> Refusals:
    """Allow held jobs to start. An operator's hold can only be released by an operator."""
    refusals = (
        {} if operator else _refuse_held_by_operator(jobs, "is held by an operator; only an operator can release it")
    )
    refusals |= {
        job.pk: StateConflict(f"{job} may have succeeded; record its outcome, or run it again")
        for job in jobs
        if Flag.OUTCOME_UNKNOWN in job.flags
    }
    by_flags: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        by_flags.setdefault(tuple(flag for flag in job.flags if flag not in FLAGS_OF_HELD_JOBS), []).append(job)
    # Releasing a job that waits for recovery overrides the recovery decision
    fields: dict[str, Any] = {
        "hold": HoldKind.NONE,
        "reason": "None",
        "why": WAITING_FOR_FIRST_TURN,
        "recover_by": None,
    }
    changed = [
        job
        for flags, members in by_flags.items()
        for job in _update_waiting_jobs(members, "release", refusals, flags=list(flags), **fields)
    ]
    journal.save_events(journal.job_event("job.released", author, job, why=why) for job in changed)
    return refusals


def set_priority(job: Job, priority: int, *, author: Author, why: str = "") -> None:
    raise_refusal(job, set_priorities([job], priority, author=author, why=why))
    job.refresh_from_db()


@transaction.atomic
def set_priorities(jobs: Sequence[Job], priority: int, *, author: Author, why: str = "") -> Refusals:
    refusals: Refusals = {}
    changed = _update_waiting_jobs(jobs, "reprioritize", refusals, priority=priority)
    journal.save_events(
        journal.job_event("job.priority_changed", author, job, why=why, detail={"from": job.priority, "to": priority})
        for job in changed
    )
    return refusals


def cancel_waiting_jobs(jobs: Sequence[Job], *, author: Author, why: str, now: datetime) -> Refusals:
    """End waiting jobs as CANCELLED, in the caller's transaction."""
    refusals: Refusals = {}
    fields: dict[str, Any] = {"flags": [], "recover_by": None, "why": why, "ended_at": now}
    changed = _update_waiting_jobs(jobs, "cancel", refusals, held=False, state=State.CANCELLED, **fields)
    states: dict[str, Any] = {"from_state": State.PENDING, "to_state": State.CANCELLED}
    journal.save_events(journal.job_event("job.state_changed", author, job, why=why, **states) for job in changed)
    return refusals


def _refuse_held_by_operator(jobs: Iterable[Job], why: str) -> Refusals:
    return {job.pk: StateConflict(f"{job} {why}") for job in jobs if job.hold == HoldKind.ADMIN}


def _update_waiting_jobs(
    jobs: Sequence[Job], verb: str, refusals: Refusals, *, held: bool = True, **fields: object
) -> list[Job]:
    """Change the jobs that wait and, if `held`, are held or not as the caller has read. Return them; add the others to
    the refusals."""
    refusals |= {job.pk: error for job in jobs if (error := foreign_refusal(job, verb))}
    open_jobs = [job for job in jobs if job.pk not in refusals]
    waiting = Job.objects.select_for_update().filter(pk__in=[job.pk for job in open_jobs], state=State.PENDING)
    holds = dict(waiting.order_by("pk").values_list("pk", "hold"))
    # An operator's concurrent hold must not be overwritten or released
    changed = [job for job in open_jobs if (holds.get(job.pk) == job.hold if held else job.pk in holds)]
    keys = {job.pk for job in changed}
    Job.objects.filter(pk__in=keys).update(**fields)
    others = [job for job in open_jobs if job.pk not in keys]
    refusals |= state_changed_errors(
        others, f"{verb} needs a waiting job", held="it was held or released at the same time"
    )
    publish_job_changes(changed)
    return changed
