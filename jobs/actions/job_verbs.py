"""The actions that users can apply to a job: one table for the pages, the API and the admin console.

An action defines in which states it fits and what it does. `perform_job_action` checks permissions. The admin console
does not call it: there, Django's permissions decide, and every action is that of an operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db import transaction
from django.db.models import Q

from acmeweb.common.errors import NotAllowed, StateConflict
from jobs.actions import foreign_jobs
from jobs.actions import jobs as job_actions
from jobs.actions import outcomes as outcome_actions
from jobs.actions.journal import Author
from jobs.actions.stop import request_stops
from jobs.actions.submit import submit
from jobs.actions.waiting.changes import hold_jobs, release_jobs, set_priorities
from jobs.core import parsing
from jobs.core.deadlines import DeadlineAction
from jobs.core.lifecycle import FINAL_STATES, LIVE_STATES, Flag, State
from jobs.core.request_fields import MAX_PRIORITY
from jobs.core.spec import DependencySpec, JobSpec
from jobs.models import Dependency, Job, clock
from jobs.models.permissions import Caller

# Fields of a job request that a suggestion may change
CHANGEABLE_FIELDS = (
    *("nodes", "gpus_per_node", "cpus_per_node", "memory_per_node"),
    *("gpu_model", "nic_type", "time_limit", "preemptible"),
)

read_priority = parsing.integer_reader(-MAX_PRIORITY, MAX_PRIORITY)


@dataclass(frozen=True, kw_only=True)
class JobActionRequest:
    """Who requests the action, and its parameters."""

    author: Author
    why: str = ""
    priority: int = 0


JobErrors = Mapping[int, Exception]  # by job; these jobs were not changed
ActOnJobs = Callable[[Sequence[Job], JobActionRequest, bool], JobErrors]  # the bool: act as an operator


@dataclass(frozen=True, kw_only=True)
class JobAction:
    """One action of the table."""

    name: str
    label: str
    summary: str  # summary, for the API schema
    effect: str  # what happens, shown next to the button
    tone: str
    fits: Callable[[Job], bool]
    act: ActOnJobs
    changeable: Q  # the jobs that fit, as a condition
    takes_priority: bool = False
    records_outcome: bool = False  # shown separately, where a page asks for the outcome of the job
    in_lists: bool = True  # pages offer it for many jobs at once; the API offers all actions
    reaches_installations: bool = False  # operators of the cluster may apply it to jobs of another Acme installation


def perform_job_action(action: JobAction, job: Job, request: JobActionRequest, caller: Caller) -> None:
    """Apply the action. Raises NotAllowed or StateConflict, and has then changed nothing."""
    state = job.state
    refusals = perform_job_actions(action, [job], request, caller)
    if refusals:
        job.refresh_from_db(fields=["state", "hold", "flags"])
        # A job that started or ended after it was read can still be cancelled. A change of its hold is no reason to try
        # again: the caller has not seen why another user holds the job
        if job.state != state:
            refusals = perform_job_actions(action, [job], request, caller)
    if job.pk in refusals:
        raise refusals[job.pk]
    job.refresh_from_db()


def perform_job_actions(
    action: JobAction, jobs: Sequence[Job], request: JobActionRequest, caller: Caller
) -> dict[int, Exception]:
    """Apply the action to each job that allows it. Return the errors of the others by job; those are not changed."""
    errors: dict[int, Exception] = {
        job.pk: NotAllowed(why) for job in jobs if (why := _denial_reason(action, job, request, caller))
    }
    allowed = [job for job in jobs if job.pk not in errors]
    # A hold on the job of another user is an operator's hold, which the owner cannot release
    by_role: dict[bool, list[Job]] = {}
    for job in allowed:
        as_operator = caller.may_operate(job) and (action.name != "hold" or job.user_id != caller.user.pk)
        by_role.setdefault(as_operator, []).append(job)
    with transaction.atomic():
        for as_operator, members in by_role.items():
            errors |= action.act(members, request, as_operator)
    return errors


def _denial_reason(action: JobAction, job: Job, request: JobActionRequest, caller: Caller) -> str:
    """Return why the caller may not apply the action to the job, or ""."""
    if action.reaches_installations and job.installation:
        if not caller.may_operate_clusters:
            return "This job belongs to another Acme installation. You need the permission to operate clusters."
    elif not caller.may_change(job):
        return caller.denial_reason(job, "This job")
    if action.takes_priority and request.priority > max(0, job.priority) and not caller.may_operate(job):
        return "Only operators of the team may set a priority above 0."
    return ""


def available_job_actions(job: Job, caller: Caller) -> list[JobAction]:
    """Return the actions that the caller may apply to the job in its present state."""
    # Foreign jobs belong to no real team, so only operators of the cluster may act on some of them
    if job.is_foreign:
        may_operate = bool(job.installation) and caller.may_operate_clusters
        return [verb for verb in JOB_ACTIONS.values() if may_operate and verb.reaches_installations and verb.fits(job)]
    return [verb for verb in JOB_ACTIONS.values() if verb.fits(job)] if caller.may_change(job) else []


def _hold(jobs: Sequence[Job], request: JobActionRequest, operator: bool) -> JobErrors:
    return hold_jobs(jobs, author=request.author, why=request.why, operator=operator)


def _release(jobs: Sequence[Job], request: JobActionRequest, operator: bool) -> JobErrors:
    return release_jobs(jobs, author=request.author, why=request.why, operator=operator)


def _set_priority(jobs: Sequence[Job], request: JobActionRequest, operator: bool) -> JobErrors:
    return set_priorities(jobs, request.priority, author=request.author, why=request.why)


def _requeue(jobs: Sequence[Job], request: JobActionRequest, operator: bool) -> JobErrors:
    return request_stops(jobs, State.PENDING, "requeue", author=request.author, why=request.why)


def _cancel(jobs: Sequence[Job], request: JobActionRequest, operator: bool) -> JobErrors:
    own = [job for job in jobs if not job.installation]
    others = [job for job in jobs if job.installation]
    errors = job_actions.cancel_jobs(own, author=request.author, why=request.why)
    return {**errors, **_one_by_one(foreign_jobs.cancel_foreign_job)(others, request, operator)}


def _one_by_one(act: Callable[..., object]) -> ActOnJobs:
    """Apply an action that is rare on many jobs to each of them."""

    def act_on_jobs(jobs: Sequence[Job], request: JobActionRequest, operator: bool) -> JobErrors:
        errors: dict[int, Exception] = {}
        for job in jobs:
            try:
                with transaction.atomic():
                    act(job, author=request.author, why=request.why)
            except StateConflict as error:
                errors[job.pk] = error
        return errors

    return act_on_jobs


def _is_pending(job: Job) -> bool:
    return job.state == State.PENDING


def has_unknown_outcome(job: Job) -> bool:
    return _is_pending(job) and Flag.OUTCOME_UNKNOWN in job.flags


WAITS = Q(state=State.PENDING)
IS_LIVE = Q(state__in=sorted(LIVE_STATES))
OUTCOME_IS_UNKNOWN = Q(flags__contains=[Flag.OUTCOME_UNKNOWN])

JOB_ACTIONS = {
    verb.name: verb
    for verb in (
        JobAction(
            name="hold",
            label="Hold",
            summary="Keep a waiting job from starting",
            effect="The job keeps its place in the queue and does not start until it is released.",
            tone="quiet",
            fits=lambda job: _is_pending(job) and not job.hold,
            changeable=WAITS & Q(hold=""),
            act=_hold,
        ),
        JobAction(
            name="release",
            label="Release",
            summary="Allow a held job to start",
            effect="The job starts as soon as resources are free.",
            tone="good",
            fits=lambda job: _is_pending(job) and bool(job.hold) and not has_unknown_outcome(job),
            changeable=WAITS & ~Q(hold="") & ~OUTCOME_IS_UNKNOWN,
            act=_release,
        ),
        JobAction(
            name="priority",
            label="Change priority",
            summary="Change the priority of a waiting job",
            effect="The job moves in the queue. Jobs with a higher priority start first.",
            tone="quiet",
            fits=_is_pending,
            changeable=WAITS,
            act=_set_priority,
            takes_priority=True,
            in_lists=False,
        ),
        JobAction(
            name="requeue",
            label="Requeue",
            summary="Stop a running job and return it to its place in the queue",
            effect="The job is stopped and returns to its place in the queue.",
            tone="warn",
            fits=lambda job: job.is_live,
            changeable=IS_LIVE,
            act=_requeue,
        ),
        JobAction(
            name="cancel",
            label="Cancel",
            summary="Cancel a job: a waiting job ends at once, a running job is stopped by its cluster",
            effect="The job ends and does not start again. A running job is stopped by its cluster.",
            tone="bad",
            fits=lambda job: not job.is_final,
            changeable=~Q(state__in=sorted(FINAL_STATES)),
            act=_cancel,
            reaches_installations=True,
        ),
        JobAction(
            name="mark-succeeded",
            label="Mark as succeeded",
            summary="Record that a job whose outcome is unknown succeeded",
            effect="The job becomes COMPLETED and does not run again.",
            tone="good",
            fits=has_unknown_outcome,
            changeable=WAITS & OUTCOME_IS_UNKNOWN,
            act=_one_by_one(outcome_actions.mark_succeeded),
            records_outcome=True,
            in_lists=False,
        ),
        JobAction(
            name="mark-failed",
            label="Mark as failed",
            summary="Record that a job whose outcome is unknown failed",
            effect="The job becomes FAILED and does not run again.",
            tone="bad",
            fits=has_unknown_outcome,
            changeable=WAITS & OUTCOME_IS_UNKNOWN,
            act=_one_by_one(outcome_actions.mark_failed),
            records_outcome=True,
            in_lists=False,
        ),
        JobAction(
            name="run-again",
            label="Run again",
            summary="Run a job again although its outcome is unknown",
            effect="The job returns to its place in the queue. If it did succeed, its command runs twice.",
            tone="warn",
            fits=has_unknown_outcome,
            changeable=WAITS & OUTCOME_IS_UNKNOWN,
            act=_one_by_one(outcome_actions.run_again),
            records_outcome=True,
            in_lists=False,
        ),
        JobAction(
            name="adopt",
            label="Adopt",
            summary="Take over a running job of another Acme installation",
            effect="This installation follows the job and can stop it. The job is never started again.",
            tone="quiet",
            fits=lambda job: bool(job.installation) and job.is_live,
            changeable=IS_LIVE & ~Q(foreign_id="") & ~Q(foreign_key=""),
            act=_one_by_one(foreign_jobs.adopt_foreign_job),
            in_lists=False,
            reaches_installations=True,
        ),
    )
}


# --- replacing a waiting job


def is_replaceable(job: Job, user_id: int) -> bool:
    """Whether this user may replace the job. The copy belongs to its submitter, so only the owner may."""
    is_own = job.user_id == user_id and not job.is_foreign
    waits = job.state == State.PENDING and not job.hold
    return is_own and waits and not job.array_id and not job.attempts.exists()


@transaction.atomic
def replace_waiting_job(job: Job, spec: JobSpec, changes: Mapping[str, Any], *, author: Author) -> Job:
    """Submit `spec` in place of a waiting job and cancel the job. Jobs that wait for the job wait for the copy.

    Failure story: Both happen in one transaction on the locked row of the job. A kill before the commit leaves the job
    waiting, a kill after it leaves the copy waiting. Of two requests at the same time, the second finds the job
    cancelled and raises StateConflict. A job with an attempt may be known to a cluster, so it is never replaced.
    """
    job = Job.objects.select_for_update().get(pk=job.pk)
    if not author.user_id or not is_replaceable(job, author.user_id):
        raise StateConflict(f"{job} cannot be replaced: it must be your own job, waiting and never started")
    dependencies = tuple(
        DependencySpec(after=dependency.after, on=dependency.on.public_id)
        for dependency in job.dependencies.select_related("on")
    )
    spec = replace(
        spec,
        dependencies=dependencies,
        begin_at=job.begin_at,
        deadline_at=job.deadline_at,
        deadline_action=DeadlineAction(job.deadline_action),
    )
    [copy] = submit([spec], cluster=job.cluster, team=job.team, author=author, now=clock.now())
    Dependency.objects.filter(on=job, job__state=State.PENDING).update(on=copy)
    changed = ", ".join(f"{name} {value}" for name, value in changes.items())
    job_actions.cancel(job, author=author, why=f"Resubmitted as {copy.public_id} with {changed}.")
    return copy
