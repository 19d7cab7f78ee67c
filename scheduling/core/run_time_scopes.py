"""The scopes of learned run times, and what predictions and updates make of them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from scheduling.engine.predicting import bounded_prediction, updated_mean


def run_time_scopes(user: str, name: str, gpus: int) -> tuple[str, ...]:
    """Return the scopes of a job, the narrowest first: user, name and size; user and name; user; everybody."""
    alike = (user, name, gpus)
    return tuple(json.dumps(alike[:first]) for first in (3, 2, 1, 0))


def predicted_run_time(means: Mapping[str, float], user: str, name: str, gpus: int, limit_s: float) -> float:
    """Return the mean of the narrowest scope in which jobs have ended, at most the limit."""
    known = (means[scope] for scope in run_time_scopes(user, name, gpus) if scope in means)
    return bounded_prediction(next(known, None), limit_s)


def learn_run_time(means: dict[str, float], user: str, name: str, gpus: int, ran_s: float) -> None:
    """Add an ended job to the means of all its scopes."""
    for scope in run_time_scopes(user, name, gpus):
        means[scope] = updated_mean(means.get(scope), ran_s)
