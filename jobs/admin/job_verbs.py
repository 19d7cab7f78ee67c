"""What operators do to jobs here, and what each verb will do to the rows that were picked, as one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from django import forms

from jobs import actions
from jobs.admin.verbs import Asked, Verb, many
from jobs.lifecycle import State
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
    return f"change priority: {moved} in the queue; higher goes first." + _refusing(stages["live"] + stages["finished"])


def _hold(job: Job, asked: Asked) -> None:
    actions.hold(job, author=asked.author, why=asked.why, operator=True)


def _release(job: Job, asked: Asked) -> None:
    actions.release(job, author=asked.author, why=asked.why, operator=True)


def _cancel(job: Job, asked: Asked) -> None:
    actions.cancel(job, author=asked.author, why=asked.why)


def _requeue(job: Job, asked: Asked) -> None:
    actions.requeue(job, author=asked.author, why=asked.why)


def _reprioritise(job: Job, asked: Asked) -> None:
    assert asked.number is not None
    actions.reprioritise(job, asked.number, author=asked.author, why=asked.why)


def _waits(job: Job) -> bool:
    return job.state == State.PENDING


PRIORITY = forms.IntegerField(label="Priority", min_value=-HIGHEST_PRIORITY, max_value=HIGHEST_PRIORITY)

JOB_VERBS = (
    Verb(name="hold", act=_hold, effect=_hold_effect, fits=lambda job: _waits(job) and not job.hold),
    Verb(name="release", act=_release, effect=_release_effect, fits=lambda job: _waits(job) and bool(job.hold)),
    Verb(name="change-priority", act=_reprioritise, effect=_priority_effect, fits=_waits, number=PRIORITY),
    Verb(name="requeue", act=_requeue, effect=_requeue_effect, fits=lambda job: job.is_live),
    Verb(name="cancel", act=_cancel, effect=_cancel_effect, fits=lambda job: not job.is_final),
)
