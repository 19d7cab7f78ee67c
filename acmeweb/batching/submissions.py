"""Batched submissions of single jobs: all that arrive during a write are one transaction.

In Django, one submission costs nine queries and a commit. Here the same functions look up its token, parse it and write
its rows, together with all other pending submissions. Each gets its own response.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from rest_framework.exceptions import APIException

from acmeweb.auth import api_authentication
from acmeweb.batching.asgi_batching import BatchableRequest, BatchingMiddleware, BatchResponse, BatchWriter
from acmeweb.common.errors import InvalidField
from jobs.actions import progress
from jobs.actions.journal import Author
from jobs.api import submit_batch
from jobs.api.submit_batch import BatchSubmission, SubmissionReply
from jobs.models import Token
from jobs.rest import idempotency, json_body
from jobs.rest.idempotency import IdempotentRequest
from jobs.rest.permissions import caller_with


@dataclass(frozen=True, kw_only=True)
class PendingSubmission:
    request: BatchableRequest
    job: Mapping[str, Any]
    digest: str  # of the token
    key: str | None  # Idempotency-Key


WriteSubmissions = Callable[[Mapping[Any, PendingSubmission]], Mapping[Any, SubmissionReply]]


class SubmissionBatching(BatchingMiddleware):
    address = "/api/v1/jobs/"

    def __init__(self, django: Any, write: WriteSubmissions | None = None) -> None:
        super().__init__(django)
        self.collected = BatchWriter("submissions", write or submit_pending)

    async def answer(self, request: BatchableRequest) -> BatchResponse | None:
        job, key = _parse_job(request.raw), request.headers.get("idempotency-key")
        if job is None or not _is_user_token(request.token) or not (key is None or idempotency.is_valid_key(key)):
            return None
        entry = PendingSubmission(request=request, job=job, digest=Token.secret_digest(request.token), key=key)
        # Requests with the same Idempotency-Key never share a batch, so the second finds the response of the first
        name: Hashable = object() if key is None else (entry.digest, key)
        reply = await self.collected.submit_and_wait(name, entry)
        return _created_response(*reply) if reply else None


def _is_user_token(token: str) -> bool:
    return token.startswith(Token.MARK) and not token.startswith(progress.RUN_TOKEN_PREFIX)


def _parse_job(raw: bytes) -> dict[str, Any] | None:
    try:
        payload = json_body.read(raw)
    except (APIException, InvalidField):
        return None
    return payload if isinstance(payload, dict) else None


def _created_response(shown: Mapping[str, Any], where: str) -> BatchResponse:
    return BatchResponse(
        status=201, body=json.dumps(shown, separators=(",", ":")).encode(), headers={"Location": where}
    )


def submit_pending(requests: Mapping[Any, PendingSubmission]) -> Mapping[Any, SubmissionReply]:
    """Write the submissions in one transaction; a submission without a reply is left to Django."""
    tokens, now = api_authentication.find_tokens(sorted({entry.digest for entry in requests.values()}))
    accepted = {}
    for name, entry in requests.items():
        token = tokens.get(entry.digest)
        if token and not api_authentication.token_refusal(token, entry.request.source or "", now):
            accepted[name] = _batch_submission(entry, token)
    api_authentication.update_last_used({token for entry in accepted.values() if (token := entry.caller.token)}, now)
    return submit_batch.submit_jobs_together(accepted, now)


def _batch_submission(entry: PendingSubmission, token: Token) -> BatchSubmission:
    digest = idempotency.digest_request("POST", SubmissionBatching.address, entry.request.raw)
    return BatchSubmission(
        caller=caller_with(token),
        author=Author.from_user(token.user, entry.request.id, entry.request.source),
        job=entry.job,
        address=f"{entry.request.home}{SubmissionBatching.address}",
        idempotency=IdempotentRequest(user_id=token.user_id, key=entry.key, digest=digest)
        if entry.key is not None
        else None,
    )
