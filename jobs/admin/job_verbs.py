"""The verbs of jobs in the console: the one table there is, and what each will do to the rows that were picked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from django import forms

from jobs import verbs
from jobs.admin.verbs import Asked, Verb, many
from jobs.lifecycle import Flag
from jobs.models import Job
from jobs.spec import HIGHEST_PRIORITY


def _by_stage(jobs: Sequence[Job]) -> Counter[str]:
    return Counter("live" if job.is_live else "finished" if job.is_final else "waiting" for job in jobs)


def _refusing(count: int) -> str:
    return f" {many(count, 'other', 'refuse')}, and the answer says why." if count else ""


def _hold_effect(jobs: Sequence[Job]) -> str:
    stages = _by_stage(jobs)
    kept = many(stages["waiting"], "waiting job", "stay")
    return f"hold: {kept} in the queue, not to start until an operator releases." + _refusing(
        stages["live"] + stages["finished"]
    )


def _release_effect(jobs: Sequence[Job]) -> str:
    held = sum(bool(job.hold) for job in jobs)
    return f"release: {many(held, 'held job')} may start again, from the old place in the queue."


def _cancel_effect(jobs: Sequence[Job]) -> str:
    stages = _by_stage(jobs)
    ends, stops = many(stages["waiting"], "waiting job", "end"), many(stages["live"], "live job", "stop")
    lost = "; what was done since the last checkpoint is lost" if stages["live"] else ""
    return f"cancel: {ends} at once, {stops} as soon as the cluster obeys{lost}." + _refusing(stages["finished"])


def _requeue_effect(jobs: Sequence[Job]) -> str:
    stages = _by_stage(jobs)
    return (
        f"requeue: {many(stages['live'], 'live job', 'go')} back to the old place in the queue;"
        " what was done since the last checkpoint is lost."
    ) + _refusing(stages["waiting"] + stages["finished"])


def _priority_effect(jobs: Sequence[Job]) -> str:
    stages = _by_stage(jobs)
    moved = many(stages["waiting"], "waiting job", "move")
    return f"priority: {moved} in the queue; higher goes first." + _refusing(stages["live"] + stages["finished"])


def _unknown(jobs: Sequence[Job]) -> tuple[int, str]:
    lacking = sum(Flag.OUTCOME_UNKNOWN in job.flags for job in jobs)
    return lacking, _refusing(len(jobs) - lacking)


def _succeeded_effect(jobs: Sequence[Job]) -> str:
    lacking, others = _unknown(jobs)
    return f"mark-succeeded: {many(lacking, 'job', 'become')} COMPLETED." + others


def _failed_effect(jobs: Sequence[Job]) -> str:
    lacking, others = _unknown(jobs)
    return f"mark-failed: {many(lacking, 'job', 'become')} FAILED." + others


def _run_again_effect(jobs: Sequence[Job]) -> str:
    lacking, others = _unknown(jobs)
    return f"run-again: {many(lacking, 'job', 'go')} back to the queue, whether or not the command succeeded." + others


def _adopt_effect(jobs: Sequence[Job]) -> str:
    theirs = sum(bool(job.installation) and job.is_live for job in jobs)
    kept = many(theirs, "job", "become")
    return f"adopt: {kept} a job of this installation, never started again." + _refusing(len(jobs) - theirs)


PRIORITY = forms.IntegerField(label="Priority", min_value=-HIGHEST_PRIORITY, max_value=HIGHEST_PRIORITY)

EFFECTS = {
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


def _of_console(verb: verbs.Verb) -> Verb:
    def act(job: Job, asked: Asked) -> None:
        wish = verbs.Wish(author=asked.author, why=asked.why, priority=asked.value or 0)
        verb.act(job, wish, True)

    number = PRIORITY if verb.takes_priority else None
    return Verb(name=verb.name, label=verb.label, act=act, effect=EFFECTS[verb.name], fits=verb.fits, value=number)


JOB_VERBS = tuple(map(_of_console, verbs.VERBS.values()))
