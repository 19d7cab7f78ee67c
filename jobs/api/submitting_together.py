"""Single jobs of many people, submitted in one transaction.

Only what is plainly right: one job, no array, nothing it waits for, a key that nobody has used. Each gets its own
answer, its own Event and its own idempotency record, as if it had come alone; who is left out has been told nothing,
nothing is kept of him, and he goes the way of all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from rest_framework.exceptions import PermissionDenied

from jobs.api import submitting
from jobs.api.submitting import Ground, Places
from jobs.door import once, throttle
from jobs.door.once import Keyed
from jobs.journal import Author
from jobs.models import Job, Scope
from jobs.rights import Caller
from jobs.spec import BadSpec
from jobs.submit_actions import Wanted, refuse_observed, submit_within


@dataclass(frozen=True, kw_only=True)
class Ask:
    caller: Caller
    author: Author
    job: Mapping[str, Any]
    address: str  # of the list of jobs; the new one's is told as Location
    keyed: Keyed | None = None

    def location(self, job: Job) -> str:
        return f"{self.address}{job.public_id}/"


Told = tuple[dict[str, Any], str]  # what was submitted, and where it is


def submit(asks: Mapping[Any, Ask], now: datetime) -> dict[Any, Told]:
    """What each is told; those who are not in the answer were not served."""
    plain = _within_pace(asks, _readable(asks))
    if not plain:
        return {}
    with transaction.atomic():
        free = once.unanswered([keyed for name in plain if (keyed := asks[name].keyed)], now)
        chosen = {name: wanted for name, wanted in plain.items() if asks[name].keyed in {None, *free}}
        jobs = dict(zip(chosen, submit_within(list(chosen.values()), now), strict=True)) if chosen else {}
        told = {name: (submitting.told_of(rows), asks[name].location(rows[0])) for name, rows in jobs.items()}
        _keep({keyed: told[name] for name in told if (keyed := asks[name].keyed)})
        for cluster_id in {wanted.cluster.pk for wanted in chosen.values()}:
            submitting.soon(cluster_id)
    return told


def _readable(asks: Mapping[Any, Ask]) -> dict[Any, Wanted]:
    allowed = {name: ask for name, ask in asks.items() if ask.caller.scope.covers(Scope.SUBMIT)}
    ground = Ground.of([ask.caller for ask in allowed.values()])
    return {name: wanted for name, ask in allowed.items() if (wanted := _wanted(ask, ground))}


def _wanted(ask: Ask, ground: Ground) -> Wanted | None:
    try:
        team, cluster, spec = submitting.read(ask.job, {}, Places(ask.caller, ground))
        refuse_observed(cluster)
    except (BadSpec, PermissionDenied):
        return None
    if spec.array or spec.dependencies:
        return None
    return Wanted(specs=[spec], cluster=cluster, team=team, author=ask.author)


def _within_pace(asks: Mapping[Any, Ask], plain: Mapping[Any, Wanted]) -> dict[Any, Wanted]:
    """Only who is served here is counted here: Django counts those whom it is left."""
    may = throttle.counted([asks[name].caller.user.pk for name in plain])
    return {name: wanted for name, wanted in plain.items() if asks[name].caller.user.pk in may}


def _keep(told: Mapping[Keyed, Told]) -> None:
    if told:
        headers = {keyed: {"Location": where} for keyed, (_, where) in told.items()}
        once.keep({keyed: shown for keyed, (shown, _) in told.items()}, 201, headers)
