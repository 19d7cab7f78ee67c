"""`Idempotency-Key`: the same request twice does its work once.

The stored answer is written in the transaction of the work, so a process that dies between commit and answer loses
nothing: the next try gets the answer that was on its way. Only what was carried out is stored; a refusal changed
nothing and is worked out anew. Two at once: an advisory lock of the transaction lets one through, the other is told
to come back, and no lock outlives its transaction.
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

from jobs.models import IdempotencyKey, clock
from jobs.rest.errors import CONFLICT_RETRY_S, Conflict, InvalidRequestField

T = TypeVar("T")

MAX_KEY_LENGTH = 200
STORED_HEADERS = ("Location", "ETag")


@dataclass(frozen=True, kw_only=True)
class IdempotentRequest:
    """One request under its key; the digest is of all that it asks."""

    user_id: int
    key: str
    digest: str


def run_once(request: Any, work: Callable[[], Response], asked: IdempotentRequest | None = None) -> Response:
    """Do the work in one transaction, or answer as it was answered before."""
    with transaction.atomic():
        asked = asked or user_request(request)
        return (_stored_response(asked) or _store_response(asked, work())) if asked else work()


def run_once_outside_transaction(request: Any, think: Callable[[], Response]) -> Response:
    """The same for what takes long and changes no row: nothing is open meanwhile, so of two at once both think."""
    asked = user_request(request)
    if asked is None:
        return think()
    with transaction.atomic():
        known = _stored_response(asked)
    if known:
        return known
    answer = think()
    with transaction.atomic():
        return _stored_response(asked) or _store_response(asked, answer)


def compute_then_run_once(request: Any, think: Callable[[], T], work: Callable[[T], Response]) -> Response:
    """The same where a part of the work takes long and changes nothing: nothing is open while that is done."""
    asked = user_request(request)
    if asked:
        with transaction.atomic():
            if known := _stored_response(asked):
                return known
    thought = think()
    return run_once(request, lambda: work(thought), asked)


def user_request(request: Any) -> IdempotentRequest | None:
    key = idempotency_key_of(request)
    return IdempotentRequest(user_id=request.user.pk, key=key, digest=_request_digest(request)) if key else None


def attempt_request(request: Any, run: str, owner: int) -> IdempotentRequest | None:
    """A run counts its keys for itself: what its user's other runs call theirs is not its business."""
    key = idempotency_key_of(request)
    known_as = f"{run} {hashlib.sha256((key or '').encode()).hexdigest()}"
    return IdempotentRequest(user_id=owner, key=known_as, digest=_request_digest(request)) if key else None


def idempotency_key_of(request: Any) -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is not None and not is_valid_key(key):
        raise InvalidRequestField("Idempotency-Key", f"is no text of 1 to {MAX_KEY_LENGTH} printable ASCII characters")
    return key


def _request_digest(request: Any) -> str:
    return digest_request(request.method, request.get_full_path(), request.raw_body)


def is_valid_key(key: str) -> bool:
    return 1 <= len(key) <= MAX_KEY_LENGTH and key.isascii() and key.isprintable()


def digest_request(method: str, path: str, body: bytes) -> str:
    asked = hashlib.sha256(f"{method} {path}\n".encode())
    asked.update(body)
    return asked.hexdigest()


def _stored_response(asked: IdempotentRequest) -> Response | None:
    if not _try_lock_keys([asked])[0]:
        raise Conflict("A request with this Idempotency-Key is being worked on.", CONFLICT_RETRY_S)
    kept = _stored_keys([asked], clock.now()).first()
    if kept is None:
        return None
    if kept.digest != asked.digest:
        raise Conflict("This Idempotency-Key was used for another request within the last 24 hours.")
    headers = {**kept.headers, "Idempotency-Replayed": "true"}
    return Response(json.loads(kept.body), status=kept.status, headers=headers)


def _store_response(asked: IdempotentRequest, answer: Response) -> Response:
    store_responses({asked: answer.data}, answer.status_code, {asked: answer.headers})
    return answer


# --- of many at once


def claim_new_requests(asked: Sequence[IdempotentRequest], now: datetime) -> set[IdempotentRequest]:
    """Those that nobody has done yet and nobody is doing; until the end of the transaction nobody else will."""
    if not asked:
        return set()
    mine = [one for one, got in zip(asked, _try_lock_keys(asked), strict=True) if got]
    known = {(kept.user_id, kept.key) for kept in _stored_keys(mine, now)}
    return {one for one in mine if (one.user_id, one.key) not in known}


def store_responses(
    answers: Mapping[IdempotentRequest, Any], status: int, headers: Mapping[IdempotentRequest, Mapping[str, str]]
) -> None:
    rows = (
        IdempotencyKey(
            user_id=one.user_id,
            key=one.key,
            digest=one.digest,
            status=status,
            headers={name: headers[one][name] for name in STORED_HEADERS if name in headers[one]},
            body=json.dumps(said, cls=JSONEncoder),
        )
        for one, said in answers.items()
    )
    IdempotencyKey.objects.bulk_create(rows)


def _stored_keys(asked: Sequence[IdempotentRequest], now: datetime) -> QuerySet[IdempotencyKey]:
    """What is kept of these. An answer that is too old makes room for a new one; the others go with the sweep."""
    mine = IdempotencyKey.objects.filter(user__in={one.user_id for one in asked}, key__in=[one.key for one in asked])
    mine.forgotten(now).delete()
    return mine


def lock_number(user_id: int, key: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{user_id}:{key}".encode()).digest()[:8], signed=True)


def _try_lock_keys(asked: Iterable[IdempotentRequest]) -> list[bool]:
    numbers = [lock_number(one.user_id, one.key) for one in asked]
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(n) FROM unnest(%s::bigint[]) AS n", [numbers])
        return [got for (got,) in cursor.fetchall()]
