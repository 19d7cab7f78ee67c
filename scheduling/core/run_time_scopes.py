"""The scopes of learned run times, and what predictions and updates make of them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from scheduling.engine.predicting import name_without_numbers, updated_mean


class JobTraits(NamedTuple):
    """What is known at submission and decides which ended jobs are similar. `user` is empty if unknown."""

    user: str
    name: str
    gpus: int
    kind: str


def run_time_scopes(job: JobTraits) -> tuple[str, ...]:
    """Return the scopes of a job, the narrowest first: user, name and size; user and name; user and similar name; user
    and kind; user; kind; all jobs. A job of an unknown user is in the last two only."""
    kind = json.dumps({"kind": job.kind})
    if not job.user:
        return kind, "[]"
    return (
        *(json.dumps(job[:first]) for first in (3, 2)),
        json.dumps({"user": job.user, "similar": name_without_numbers(job.name)}),
        json.dumps({"user": job.user, "kind": job.kind}),
        *(json.dumps([job.user]), kind, "[]"),
    )


def mean_run_time(means: Mapping[str, float], job: JobTraits) -> float | None:
    """Return the mean of the narrowest scope in which jobs have ended; None if no job has ended."""
    return next((means[scope] for scope in run_time_scopes(job) if scope in means), None)


def learn_run_time(means: dict[str, float], job: JobTraits, ran_s: float) -> None:
    """Add an ended job to the means of all its scopes."""
    for scope in run_time_scopes(job):
        means[scope] = updated_mean(means.get(scope), ran_s)
