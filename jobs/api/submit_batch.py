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

from jobs.actions import submissions
from jobs.actions.journal import Author
from jobs.actions.submissions import CallerTargets, SubmissionTargets
from jobs.actions.submit import SubmissionGroup, refuse_observe_mode, submit_in_transaction
from jobs.core.spec import InvalidField
from jobs.models import Job, TokenScope
from jobs.models.permissions import Caller
from jobs.rest import idempotency, throttle
from jobs.rest.idempotency import IdempotentRequest


@dataclass(frozen=True, kw_only=True)
class BatchSubmission:
    caller: Caller
    author: Author
    job: Mapping[str, Any]
    address: str  # of the list of jobs; the new one's is told as Location
    idempotency: IdempotentRequest | None = None

    def job_url(self, job: Job) -> str:
        return f"{self.address}{job.public_id}/"


SubmissionReply = tuple[dict[str, Any], str]  # what was submitted, and where it is


def submit_jobs_together(asks: Mapping[Any, BatchSubmission], now: datetime) -> dict[Any, SubmissionReply]:
    """What each is told; those who are not in the answer were not served."""
    plain = _within_rate_limit(asks, _valid_submissions(asks))
    if not plain:
        return {}
    with transaction.atomic():
        free = idempotency.claim_new_requests([keyed for name in plain if (keyed := asks[name].idempotency)], now)
        chosen = {name: wanted for name, wanted in plain.items() if asks[name].idempotency in {None, *free}}
        jobs = dict(zip(chosen, submit_in_transaction(list(chosen.values()), now), strict=True)) if chosen else {}
        told = {
            name: (submissions.submission_response(rows), asks[name].job_url(rows[0])) for name, rows in jobs.items()
        }
        _store_replies({keyed: told[name] for name in told if (keyed := asks[name].idempotency)})
        for cluster_id in {wanted.cluster.pk for wanted in chosen.values()}:
            submissions.request_turn_after_commit(cluster_id)
    return told


def _valid_submissions(asks: Mapping[Any, BatchSubmission]) -> dict[Any, SubmissionGroup]:
    allowed = {name: ask for name, ask in asks.items() if ask.caller.scope.covers(TokenScope.SUBMIT)}
    ground = SubmissionTargets.of([ask.caller for ask in allowed.values()])
    return {name: wanted for name, ask in allowed.items() if (wanted := _validate_submission(ask, ground))}


def _validate_submission(ask: BatchSubmission, ground: SubmissionTargets) -> SubmissionGroup | None:
    try:
        team, cluster, spec = submissions.parse_submission(ask.job, {}, CallerTargets(ask.caller, ground))
        refuse_observe_mode(cluster)
    except (InvalidField, PermissionDenied):
        return None
    if spec.array or spec.dependencies:
        return None
    return SubmissionGroup(specs=[spec], cluster=cluster, team=team, author=ask.author)


def _within_rate_limit(
    asks: Mapping[Any, BatchSubmission], plain: Mapping[Any, SubmissionGroup]
) -> dict[Any, SubmissionGroup]:
    """Only who is served here is counted here: Django counts those whom it is left."""
    may = throttle.users_within_limit([asks[name].caller.user.pk for name in plain])
    return {name: wanted for name, wanted in plain.items() if asks[name].caller.user.pk in may}


def _store_replies(told: Mapping[IdempotentRequest, SubmissionReply]) -> None:
    if told:
        headers = {keyed: {"Location": where} for keyed, (_, where) in told.items()}
        idempotency.store_responses({keyed: shown for keyed, (shown, _) in told.items()}, 201, headers)
