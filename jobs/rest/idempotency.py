"""`Idempotency-Key`: a repeated request is performed once.

The response is stored in the transaction of the work. If the process dies after the commit, the next try gets the
stored response. Refusals change nothing, so they are not stored and are evaluated again. Of two concurrent requests
with the same key, a transaction-level advisory lock lets one through; the other gets 409 with Retry-After.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from django.db import connection, transaction
from django.db.models import QuerySet
from rest_framework.response import Response
from rest_framework.utils.encoders import JSONEncoder

from acmeweb.common.errors import InvalidField, StateConflict
from jobs.models import IdempotencyKey, clock
from jobs.rest.errors import CONFLICT_RETRY_S, RequestFailed

T = TypeVar("T")

MAX_KEY_LENGTH = 200
STORED_HEADERS = ("Location", "ETag")


@dataclass(frozen=True, kw_only=True)
class IdempotentRequest:
    """A request with an Idempotency-Key; the digest covers method, path and body."""

    user_id: int
    key: str
    digest: str


def run_once(request: Any, work: Callable[[], Response], keyed: IdempotentRequest | None = None) -> Response:
    """Run `work` in one transaction, or return the response stored for the request's key."""
    with transaction.atomic():
        keyed = keyed or user_request(request)
        return (_stored_response(keyed) or _store_response(keyed, work())) if keyed else work()


def run_once_outside_transaction(request: Any, compute: Callable[[], Response]) -> Response:
    """Like `run_once`, for a slow computation that changes no rows.

    No transaction is open during the computation, so two concurrent requests with the same key both compute.
    """
    keyed = user_request(request)
    if keyed is None:
        return compute()
    with transaction.atomic():
        stored = _stored_response(keyed)
    if stored:
        return stored
    response = compute()
    with transaction.atomic():
        return _stored_response(keyed) or _store_response(keyed, response)


def compute_then_run_once(request: Any, compute: Callable[[], T], work: Callable[[T], Response]) -> Response:
    """Like `run_once`, with a slow computation first. No transaction is open during the computation."""
    keyed = user_request(request)
    if keyed:
        with transaction.atomic():
            if stored := _stored_response(keyed):
                return stored
    result = compute()
    return run_once(request, lambda: work(result), keyed)


def user_request(request: Any) -> IdempotentRequest | None:
    key = idempotency_key_of(request)
    return IdempotentRequest(user_id=request.user.pk, key=key, digest=_request_digest(request)) if key else None


def attempt_request(request: Any, run: str, owner: int) -> IdempotentRequest | None:
    """The keyed request of an attempt. Keys are scoped to the attempt, so two jobs of one user cannot collide."""
    key = idempotency_key_of(request)
    scoped_key = f"{run} {hashlib.sha256((key or '').encode()).hexdigest()}"
    return IdempotentRequest(user_id=owner, key=scoped_key, digest=_request_digest(request)) if key else None


def idempotency_key_of(request: Any) -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is not None and not is_valid_key(key):
        raise InvalidField("Idempotency-Key", f"must have 1 to {MAX_KEY_LENGTH} printable ASCII characters")
    return key


def _request_digest(request: Any) -> str:
    return digest_request(request.method, request.get_full_path(), request.raw_body)


def is_valid_key(key: str) -> bool:
    return 1 <= len(key) <= MAX_KEY_LENGTH and key.isascii() and key.isprintable()


def digest_request(method: str, path: str, body: bytes) -> str:
    digest = hashlib.sha256(f"{method} {path}\n".encode())
    digest.update(body)
    return digest.hexdigest()


def _stored_response(keyed: IdempotentRequest) -> Response | None:
    """The stored response, or None for a new key. Locks the key; raises a 409 if it is in use."""
    if not _try_lock_keys([keyed])[0]:
        raise RequestFailed(409, "Another request with this Idempotency-Key is in progress.", CONFLICT_RETRY_S)
    row = _stored_keys([keyed], clock.now()).first()
    if row is None:
        return None
    if row.digest != keyed.digest:
        raise StateConflict("This Idempotency-Key was used for another request within the last 24 hours.")
    headers = {**row.headers, "Idempotency-Replayed": "true"}
    return Response(json.loads(row.body), status=row.status, headers=headers)


def _store_response(keyed: IdempotentRequest, response: Response) -> Response:
    store_responses({keyed: response.data}, response.status_code, {keyed: response.headers})
    return response


# --- batches


def claim_new_requests(batch: Sequence[IdempotentRequest], now: datetime) -> set[IdempotentRequest]:
    """The requests of the batch that are new, locked until the end of the transaction.

    Requests with a stored response, or in progress elsewhere, are left out.
    """
    if not batch:
        return set()
    locked = [keyed for keyed, got in zip(batch, _try_lock_keys(batch), strict=True) if got]
    stored = {(row.user_id, row.key) for row in _stored_keys(locked, now)}
    return {keyed for keyed in locked if (keyed.user_id, keyed.key) not in stored}


def store_responses(
    payloads: Mapping[IdempotentRequest, Any], status: int, headers: Mapping[IdempotentRequest, Mapping[str, str]]
) -> None:
    rows = (
        IdempotencyKey(
            user_id=keyed.user_id,
            key=keyed.key,
            digest=keyed.digest,
            status=status,
            headers={name: headers[keyed][name] for name in STORED_HEADERS if name in headers[keyed]},
            body=json.dumps(payload, cls=JSONEncoder),
        )
        for keyed, payload in payloads.items()
    )
    IdempotencyKey.objects.bulk_create(rows)


def _stored_keys(batch: Sequence[IdempotentRequest], now: datetime) -> QuerySet[IdempotencyKey]:
    """The stored rows of these requests. Deletes those that have expired, so that their keys can be used again."""
    rows = IdempotencyKey.objects.filter(user__in={row.user_id for row in batch}, key__in=[row.key for row in batch])
    rows.forgotten(now).delete()
    return rows


def lock_number(user_id: int, key: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{user_id}:{key}".encode()).digest()[:8], signed=True)


def _try_lock_keys(batch: Iterable[IdempotentRequest]) -> list[bool]:
    """Try to lock each key until the end of the transaction, without waiting."""
    numbers = [lock_number(keyed.user_id, keyed.key) for keyed in batch]
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(n) FROM unnest(%s::bigint[]) AS n", [numbers])
        return [got for (got,) in cursor.fetchall()]
