"""What people do to a job: one table for the pages, the API and the admin console.

A verb says in which states it fits and what comes of it; who may use it is asked in `carry_out`. The console of last
resort does not ask: there Django's permissions have decided, and every act is an operator's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jobs.actions import foreign_jobs
from jobs.actions import jobs as job_actions
from jobs.actions import outcomes as outcome_actions
from jobs.actions.journal import Author
from jobs.core import parsing
from jobs.core.lifecycle import Flag, State
from jobs.core.spec import MAX_PRIORITY
from jobs.models import Job
from jobs.models.permissions import Caller

read_priority = parsing.integer_reader(-MAX_PRIORITY, MAX_PRIORITY)


class JobActionDenied(Exception):
    """They may see the job and may not change it so; the message is a sentence."""


@dataclass(frozen=True, kw_only=True)
class JobActionRequest:
    """Who wants it, and what the verb needs besides."""

    author: Author
    why: str = ""
    priority: int = 0


@dataclass(frozen=True, kw_only=True)
class JobAction:
    name: str
    label: str
    says: str  # what it is, for a list of verbs
    effect: str  # what comes of it, next to the button
    tone: str
    fits: Callable[[Job], bool]
    act: Callable[[Job, JobActionRequest, bool], None]  # the bool: as an operator
    takes_priority: bool = False
    of_outcome: bool = False  # has a button of its own where a page asks how the job ended
    in_lists: bool = True  # offered for many jobs at once on pages; the API offers every verb
    reaches_installations: bool = False  # operators of the cluster may use it on jobs of another Acme installation


def perform_job_action(verb: JobAction, job: Job, wish: JobActionRequest, caller: Caller) -> None:
    """Raises NotAllowed, Moved or Forbidden, and has then changed nothing."""
    if verb.reaches_installations and job.installation:
        if not caller.may_operate_clusters:
            raise JobActionDenied("It belongs to another Acme installation; this needs the right to operate clusters.")
    elif not caller.may_change(job):
        raise JobActionDenied(caller.denial_reason(job, "It"))
    operates = caller.may_operate(job)
    if verb.takes_priority and wish.priority > max(0, job.priority) and not operates:
        raise JobActionDenied("Only operators of the team raise a priority above 0.")
    # Who holds another's job does it as an operator: its owner cannot lift that hold
    as_operator = operates and (verb.name != "hold" or job.user_id != caller.user.pk)
    verb.act(job, wish, as_operator)


def available_job_actions(job: Job, caller: Caller) -> list[JobAction]:
    """What the caller may do to the job as it is now."""
    if job.is_foreign:
        reaches = bool(job.installation) and caller.may_operate_clusters
        return [verb for verb in JOB_ACTIONS.values() if reaches and verb.reaches_installations and verb.fits(job)]
    return [verb for verb in JOB_ACTIONS.values() if verb.fits(job)] if caller.may_change(job) else []


def _hold(job: Job, wish: JobActionRequest, operator: bool) -> None:
    job_actions.hold(job, author=wish.author, why=wish.why, operator=operator)


def _release(job: Job, wish: JobActionRequest, operator: bool) -> None:
    job_actions.release(job, author=wish.author, why=wish.why, operator=operator)


def _set_priority(job: Job, wish: JobActionRequest, operator: bool) -> None:
    job_actions.set_priority(job, wish.priority, author=wish.author, why=wish.why)


def _requeue(job: Job, wish: JobActionRequest, operator: bool) -> None:
    job_actions.requeue(job, author=wish.author, why=wish.why)


def _cancel(job: Job, wish: JobActionRequest, operator: bool) -> None:
    if job.installation:
        foreign_jobs.cancel_foreign_job(job, author=wish.author, why=wish.why)
    else:
        job_actions.cancel(job, author=wish.author, why=wish.why)


def _adopt(job: Job, wish: JobActionRequest, operator: bool) -> None:
    foreign_jobs.adopt_foreign_job(job, author=wish.author, why=wish.why)


def _mark_succeeded(job: Job, wish: JobActionRequest, operator: bool) -> None:
    outcome_actions.mark_succeeded(job, author=wish.author, why=wish.why)


def _mark_failed(job: Job, wish: JobActionRequest, operator: bool) -> None:
    outcome_actions.mark_failed(job, author=wish.author, why=wish.why)


def _run_again(job: Job, wish: JobActionRequest, operator: bool) -> None:
    outcome_actions.run_again(job, author=wish.author, why=wish.why)


def _is_pending(job: Job) -> bool:
    return job.state == State.PENDING


def has_unknown_outcome(job: Job) -> bool:
    return _is_pending(job) and Flag.OUTCOME_UNKNOWN in job.flags


JOB_ACTIONS = {
    verb.name: verb
    for verb in (
        JobAction(
            name="hold",
            label="Hold",
            says="Keep a waiting job from starting",
            effect="It keeps its place in the queue and does not start before somebody releases it.",
            tone="quiet",
            fits=lambda job: _is_pending(job) and not job.hold,
            act=_hold,
        ),
        JobAction(
            name="release",
            label="Release",
            says="Let a held job start again",
            effect="It may start again as soon as there is room.",
            tone="good",
            fits=lambda job: _is_pending(job) and bool(job.hold) and not has_unknown_outcome(job),
            act=_release,
        ),
        JobAction(
            name="priority",
            label="Change priority",
            says="Change the priority of a waiting job",
            effect="It moves in the queue; higher goes first.",
            tone="quiet",
            fits=_is_pending,
            act=_set_priority,
            takes_priority=True,
            in_lists=False,
        ),
        JobAction(
            name="requeue",
            label="Requeue",
            says="Stop a running job and put it back at its place in the queue",
            effect="It is stopped, and goes back to its old place in the queue.",
            tone="warn",
            fits=lambda job: job.is_live,
            act=_requeue,
        ),
        JobAction(
            name="cancel",
            label="Cancel",
            says="End a job: at once if it waits, otherwise by its cluster",
            effect="It ends for good. A job that runs is stopped by its cluster first.",
            tone="bad",
            fits=lambda job: not job.is_final,
            act=_cancel,
            reaches_installations=True,
        ),
        JobAction(
            name="mark-succeeded",
            label="It succeeded",
            says="Record that a job whose outcome is unknown succeeded",
            effect="It becomes COMPLETED and does not run again.",
            tone="good",
            fits=has_unknown_outcome,
            act=_mark_succeeded,
            of_outcome=True,
            in_lists=False,
        ),
        JobAction(
            name="mark-failed",
            label="It failed",
            says="Record that a job whose outcome is unknown failed",
            effect="It becomes FAILED and does not run again.",
            tone="bad",
            fits=has_unknown_outcome,
            act=_mark_failed,
            of_outcome=True,
            in_lists=False,
        ),
        JobAction(
            name="run-again",
            label="Run again",
            says="Run a job again although its outcome is unknown",
            effect="It goes back to its place in the queue. If it did succeed, its command runs twice.",
            tone="warn",
            fits=has_unknown_outcome,
            act=_run_again,
            of_outcome=True,
            in_lists=False,
        ),
        JobAction(
            name="adopt",
            label="Adopt",
            says="Take over a running job of another Acme installation",
            effect="This installation follows it from now on and can stop it. It is never started again.",
            tone="quiet",
            fits=lambda job: bool(job.installation) and job.is_live,
            act=_adopt,
            in_lists=False,
            reaches_installations=True,
        ),
    )
}
