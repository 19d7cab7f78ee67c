"""Job actions in the admin: the actions of `jobs.actions.job_verbs`, each with a text about its effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from django import forms

from jobs.actions import job_verbs
from jobs.admin.verbs import AdminAction, AdminActionInput, count_text
from jobs.core.lifecycle import Flag
from jobs.core.request_fields import MAX_PRIORITY
from jobs.models import Job


def _count_by_stage(jobs: Sequence[Job]) -> Counter[str]:
    return Counter("live" if job.is_live else "finished" if job.is_final else "waiting" for job in jobs)


def _refusal_text(count: int) -> str:
    return f" {count_text(count, 'other job')} will be refused; the result says why." if count else ""


def _hold_effect(jobs: Sequence[Job]) -> str:
    stages = _count_by_stage(jobs)
    waiting = count_text(stages["waiting"], "waiting job", "stay")
    refused = _refusal_text(stages["live"] + stages["finished"])
    return f"hold: {waiting} in the queue and can start only after an operator's release.{refused}"


def _release_effect(jobs: Sequence[Job]) -> str:
    held = sum(bool(job.hold) for job in jobs)
    return f"release: {count_text(held, 'held job')} can start again, from the previous position in the queue."


def _cancel_effect(jobs: Sequence[Job]) -> str:
    stages = _count_by_stage(jobs)
    ends, stops = count_text(stages["waiting"], "waiting job", "end"), count_text(stages["live"], "live job", "stop")
    lost = "; work since the last checkpoint is lost" if stages["live"] else ""
    return f"cancel: {ends} immediately, {stops} when the cluster stops them{lost}." + _refusal_text(stages["finished"])


def _requeue_effect(jobs: Sequence[Job]) -> str:
    stages = _count_by_stage(jobs)
    live = count_text(stages["live"], "live job", "return")
    effect = f"requeue: {live} to the previous position in the queue; work since the last checkpoint is lost."
    return effect + _refusal_text(stages["waiting"] + stages["finished"])


def _priority_effect(jobs: Sequence[Job]) -> str:
    stages = _count_by_stage(jobs)
    waiting = count_text(stages["waiting"], "waiting job", "move")
    refused = _refusal_text(stages["live"] + stages["finished"])
    return f"priority: {waiting} in the queue; higher values start first.{refused}"


def _unknown_outcomes(jobs: Sequence[Job]) -> tuple[int, str]:
    """The number of jobs with an unknown outcome, and the text about the others."""
    unknown = sum(Flag.OUTCOME_UNKNOWN in job.flags for job in jobs)
    return unknown, _refusal_text(len(jobs) - unknown)


def _succeeded_effect(jobs: Sequence[Job]) -> str:
    unknown, others = _unknown_outcomes(jobs)
    return f"mark-succeeded: {count_text(unknown, 'job', 'become')} COMPLETED." + others


def _failed_effect(jobs: Sequence[Job]) -> str:
    unknown, others = _unknown_outcomes(jobs)
    return f"mark-failed: {count_text(unknown, 'job', 'become')} FAILED." + others


def _run_again_effect(jobs: Sequence[Job]) -> str:
    unknown, others = _unknown_outcomes(jobs)
    jobs_return = count_text(unknown, "job", "return")
    return f"run-again: {jobs_return} to the queue. Commands that did succeed run twice.{others}"


def _adopt_effect(jobs: Sequence[Job]) -> str:
    foreign = sum(bool(job.installation) and job.is_live for job in jobs)
    refused = _refusal_text(len(jobs) - foreign)
    return f"adopt: this installation takes over {count_text(foreign, 'job')}, without starting it again.{refused}"


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
    def run_action(job: Job, values: AdminActionInput) -> None:
        action = job_verbs.JobActionRequest(author=values.author, why=values.why, priority=values.value or 0)
        if error := verb.act([job], action, True).get(job.pk):
            raise error

    number = PRIORITY_INPUT if verb.takes_priority else None
    return AdminAction(
        name=verb.name, label=verb.label, act=run_action, effect=ACTION_EFFECTS[verb.name], fits=verb.fits, value=number
    )


JOB_ADMIN_ACTIONS = tuple(map(_admin_action, job_verbs.JOB_ACTIONS.values()))
