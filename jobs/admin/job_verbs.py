"""The verbs of jobs in the console: the one table there is, and what each will do to the rows that were picked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from django import forms

from jobs.actions import job_verbs
from jobs.admin.verbs import AdminAction, AdminActionInput, count_text
from jobs.core.lifecycle import Flag
from jobs.core.spec import MAX_PRIORITY
from jobs.models import Job


def _count_by_stage(jobs: Sequence[Job]) -> Counter[str]:
    return Counter("live" if job.is_live else "finished" if job.is_final else "waiting" for job in jobs)


def _refusal_text(count: int) -> str:
    return f" {count_text(count, 'other', 'refuse')}, and the answer says why." if count else ""


def _hold_effect(jobs: Sequence[Job]) -> str:
    stages = _count_by_stage(jobs)
    kept = count_text(stages["waiting"], "waiting job", "stay")
    return f"hold: {kept} in the queue, not to start until an operator releases." + _refusal_text(
        stages["live"] + stages["finished"]
    )


def _release_effect(jobs: Sequence[Job]) -> str:
    held = sum(bool(job.hold) for job in jobs)
    return f"release: {count_text(held, 'held job')} may start again, from the old place in the queue."


def _cancel_effect(jobs: Sequence[Job]) -> str:
    stages = _count_by_stage(jobs)
    ends, stops = count_text(stages["waiting"], "waiting job", "end"), count_text(stages["live"], "live job", "stop")
    lost = "; what was done since the last checkpoint is lost" if stages["live"] else ""
    return f"cancel: {ends} at once, {stops} as soon as the cluster obeys{lost}." + _refusal_text(stages["finished"])


def _requeue_effect(jobs: Sequence[Job]) -> str:
    stages = _count_by_stage(jobs)
    return (
        f"requeue: {count_text(stages['live'], 'live job', 'go')} back to the old place in the queue;"
        " what was done since the last checkpoint is lost."
    ) + _refusal_text(stages["waiting"] + stages["finished"])


def _priority_effect(jobs: Sequence[Job]) -> str:
    stages = _count_by_stage(jobs)
    moved = count_text(stages["waiting"], "waiting job", "move")
    return f"priority: {moved} in the queue; higher goes first." + _refusal_text(stages["live"] + stages["finished"])


def _unknown_outcomes(jobs: Sequence[Job]) -> tuple[int, str]:
    lacking = sum(Flag.OUTCOME_UNKNOWN in job.flags for job in jobs)
    return lacking, _refusal_text(len(jobs) - lacking)


def _succeeded_effect(jobs: Sequence[Job]) -> str:
    lacking, others = _unknown_outcomes(jobs)
    return f"mark-succeeded: {count_text(lacking, 'job', 'become')} COMPLETED." + others


def _failed_effect(jobs: Sequence[Job]) -> str:
    lacking, others = _unknown_outcomes(jobs)
    return f"mark-failed: {count_text(lacking, 'job', 'become')} FAILED." + others


def _run_again_effect(jobs: Sequence[Job]) -> str:
    lacking, others = _unknown_outcomes(jobs)
    return (
        f"run-again: {count_text(lacking, 'job', 'go')} back to the queue, whether or not the command succeeded."
        + others
    )


def _adopt_effect(jobs: Sequence[Job]) -> str:
    theirs = sum(bool(job.installation) and job.is_live for job in jobs)
    kept = count_text(theirs, "job", "become")
    return f"adopt: {kept} a job of this installation, never started again." + _refusal_text(len(jobs) - theirs)


PRIORITY_INPUT = forms.IntegerField(label="Priority", min_value=-MAX_PRIORITY, max_value=MAX_PRIORITY)

ACTION_EFFECTS = {
    "hold": _hold_effect,
    "release": _release_effect,
    "priority": _priority_effect,
    "requeue": _requeue_effect,
    "cancel": _cancel_effect,
    "mark-succeeded": _succeeded_effect,
    "mark-failed": _failed_effect,
    "run-again": _run_again_effect,
    "adopt": _adopt_effect,
}


def _admin_action(verb: job_verbs.JobAction) -> AdminAction:
    def run_action(job: Job, asked: AdminActionInput) -> None:
        wish = job_verbs.JobActionRequest(author=asked.author, why=asked.why, priority=asked.value or 0)
        verb.act(job, wish, True)

    number = PRIORITY_INPUT if verb.takes_priority else None
    return AdminAction(
        name=verb.name, label=verb.label, act=run_action, effect=ACTION_EFFECTS[verb.name], fits=verb.fits, value=number
    )


JOB_ADMIN_ACTIONS = tuple(map(_admin_action, job_verbs.JOB_ACTIONS.values()))
