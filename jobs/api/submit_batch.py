"""Submits single jobs of many users in one transaction.

A batch takes only simple valid requests: one job, no array, dependencies or deadline, and an unused Idempotency-Key.
Each request gets its own response, event and idempotency record, as if it were submitted alone. A request that is left
out has no effect here and is handled by the normal endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from rest_framework.exceptions import PermissionDenied

from acmeweb.common.errors import InvalidField
from jobs.actions import submissions
from jobs.actions.journal import Author
from jobs.actions.submissions import CallerTargets, SubmissionTargets
from jobs.actions.submit import SubmissionGroup, refuse_observe_mode, submit_in_transaction
from jobs.actions.waiting.limits import waiting_limit_errors
from jobs.models import Job, TokenScope
from jobs.models.permissions import Caller
from jobs.rest import idempotency, throttle
from jobs.rest.idempotency import IdempotentRequest


@dataclass(frozen=True, kw_only=True)
class BatchSubmission:
    caller: Caller
    author: Author
    job: Mapping[str, Any]
    address: str  # URL of the job list, from which the job's Location is built
    idempotency: IdempotentRequest | None = None

    def job_url(self, job: Job) -> str:
        return f"{self.address}{job.public_id}/"


SubmissionReply = tuple[dict[str, Any], str]  # response body and URL of the new job


def submit_jobs_together(requests: Mapping[Any, BatchSubmission], now: datetime) -> dict[Any, SubmissionReply]:
    """Submit the requests that are simple and valid; returns their replies. The others are missing in the result."""
    accepted = _within_rate_limit(requests, _within_waiting_limits(_valid_submissions(requests)))
    if not accepted:
        return {}
    with transaction.atomic():
        keyed_requests = [keyed for name in accepted if (keyed := requests[name].idempotency)]
        new = idempotency.claim_new_requests(keyed_requests, now)
        groups = {name: group for name, group in accepted.items() if requests[name].idempotency in {None, *new}}
        jobs = dict(zip(groups, submit_in_transaction(list(groups.values()), now), strict=True)) if groups else {}
        replies = {
            name: (submissions.submission_response(rows), requests[name].job_url(rows[0]))
            for name, rows in jobs.items()
        }
        _store_replies({keyed: replies[name] for name in replies if (keyed := requests[name].idempotency)})
        for cluster_id in {group.cluster.pk for group in groups.values()}:
            submissions.request_turn_after_commit(cluster_id)
    return replies


def _valid_submissions(requests: Mapping[Any, BatchSubmission]) -> dict[Any, SubmissionGroup]:
    allowed = {name: row for name, row in requests.items() if row.caller.scope.covers(TokenScope.SUBMIT)}
    targets = SubmissionTargets.of([request.caller for request in allowed.values()])
    return {name: group for name, row in allowed.items() if (group := _validate_submission(row, targets))}


def _validate_submission(request: BatchSubmission, targets: SubmissionTargets) -> SubmissionGroup | None:
    """The parsed submission; None if it is invalid or not simple."""
    try:
        team, cluster, spec = submissions.parse_submission(request.job, {}, CallerTargets(request.caller, targets))
        refuse_observe_mode(cluster)
    except (InvalidField, PermissionDenied):
        return None
    if spec.array or spec.dependencies or spec.deadline_at:  # a forecast would delay the others
        return None
    return SubmissionGroup(specs=[spec], cluster=cluster, team=team, author=request.author)


def _within_waiting_limits(groups: Mapping[Any, SubmissionGroup]) -> dict[Any, SubmissionGroup]:
    errors = waiting_limit_errors(list(groups.values()))
    return {name: group for (name, group), error in zip(groups.items(), errors, strict=True) if error is None}


def _within_rate_limit(
    requests: Mapping[Any, BatchSubmission], groups: Mapping[Any, SubmissionGroup]
) -> dict[Any, SubmissionGroup]:
    """The groups of users within their rate limit. Counts only these requests; Django counts those it handles."""
    users = throttle.users_within_limit([requests[name].caller.user.pk for name in groups])
    return {name: group for name, group in groups.items() if requests[name].caller.user.pk in users}


def _store_replies(replies: Mapping[IdempotentRequest, SubmissionReply]) -> None:
    if replies:
        headers = {keyed: {"Location": url} for keyed, (_, url) in replies.items()}
        idempotency.store_responses({keyed: payload for keyed, (payload, _) in replies.items()}, 201, headers)
