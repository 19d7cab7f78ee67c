"""Single jobs, many at a time: what comes while the last ones are written is one transaction.

Alone, a submission costs Django nine questions and a commit. Here its token is looked up, its wish is read and its rows
are written by the same functions, together with those of everybody else who waits; each is answered for itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from rest_framework.exceptions import APIException

from acmeweb.auth import api_authentication
from acmeweb.batching.asgi_batching import BatchableRequest, BatchingMiddleware, BatchResponse, BatchWriter
from jobs.actions import progress
from jobs.actions.journal import Author
from jobs.api import submit_batch
from jobs.api.submit_batch import BatchSubmission, SubmissionReply
from jobs.core.parsing import InvalidField
from jobs.models import Token
from jobs.rest import idempotency, json_body
from jobs.rest.idempotency import IdempotentRequest
from jobs.rest.permissions import caller_with


@dataclass(frozen=True, kw_only=True)
class PendingSubmission:
    asked: BatchableRequest
    job: Mapping[str, Any]
    digest: str  # of the token
    key: str | None  # Idempotency-Key


WriteSubmissions = Callable[[Mapping[Any, PendingSubmission]], Mapping[Any, SubmissionReply]]


class SubmissionBatching(BatchingMiddleware):
    address = "/api/v1/jobs/"

    def __init__(self, django: Any, write: WriteSubmissions | None = None) -> None:
        super().__init__(django)
        self.collected = BatchWriter("submissions", write or submit_pending)

    async def answer(self, asked: BatchableRequest) -> BatchResponse | None:
        job, key = _parse_job(asked.raw), asked.headers.get("idempotency-key")
        if job is None or not _is_user_token(asked.token) or not (key is None or idempotency.is_valid_key(key)):
            return None
        one = PendingSubmission(asked=asked, job=job, digest=Token.secret_digest(asked.token), key=key)
        # The same key twice: the second finds the answer of the first
        name: Hashable = object() if key is None else (one.digest, key)
        told = await self.collected.submit_and_wait(name, one)
        return _created_response(*told) if told else None


def _is_user_token(token: str) -> bool:
    return token.startswith(Token.MARK) and not token.startswith(progress.RUN_TOKEN_PREFIX)


def _parse_job(raw: bytes) -> dict[str, Any] | None:
    try:
        asked = json_body.read(raw)
    except (APIException, InvalidField):
        return None
    return asked if isinstance(asked, dict) else None


def _created_response(shown: Mapping[str, Any], where: str) -> BatchResponse:
    return BatchResponse(
        status=201, body=json.dumps(shown, separators=(",", ":")).encode(), headers={"Location": where}
    )


def submit_pending(asked: Mapping[Any, PendingSubmission]) -> Mapping[Any, SubmissionReply]:
    tokens, now = api_authentication.find_tokens(sorted({one.digest for one in asked.values()}))
    asks = {}
    for name, one in asked.items():
        token = tokens.get(one.digest)
        if token and not api_authentication.token_refusal(token, one.asked.source or "", now):
            asks[name] = _batch_submission(one, token)
    api_authentication.update_last_used({token for one in asks.values() if (token := one.caller.token)}, now)
    return submit_batch.submit_jobs_together(asks, now)


def _batch_submission(one: PendingSubmission, token: Token) -> BatchSubmission:
    digest = idempotency.digest_request("POST", SubmissionBatching.address, one.asked.raw)
    return BatchSubmission(
        caller=caller_with(token),
        author=Author.from_user(token.user, one.asked.id, one.asked.source),
        job=one.job,
        address=f"{one.asked.home}{SubmissionBatching.address}",
        idempotency=IdempotentRequest(user_id=token.user_id, key=one.key, digest=digest)
        if one.key is not None
        else None,
    )
