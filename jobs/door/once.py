"""`Idempotency-Key`: the same request twice does its work once.

The stored answer is written in the transaction of the work, so a process that dies between commit and answer loses
nothing: the next try gets the answer that was on its way. Only what was carried out is stored; a refusal changed
nothing and is worked out anew. Two at once: an advisory lock of the transaction lets one through, the other is told
to come back, and no lock outlives its transaction.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from django.db import connection, transaction
from rest_framework.response import Response
from rest_framework.utils.encoders import JSONEncoder

from jobs import clock
from jobs.door.errors import RETRY_S, BadField, Conflict
from jobs.models import IdempotencyKey

LONGEST_KEY = 200
KEPT_HEADERS = ("Location", "ETag")


def once(request: Any, work: Callable[[], Response]) -> Response:
    """Do the work in one transaction, or answer as it was answered before."""
    key = request.headers.get("Idempotency-Key")
    with transaction.atomic():
        if key is None:
            return work()
        _check(key)
        return _kept(request, key) or _keep(request, key, work())


def _check(key: str) -> None:
    if not 1 <= len(key) <= LONGEST_KEY or not (key.isascii() and key.isprintable()):
        raise BadField("Idempotency-Key", f"is no text of 1 to {LONGEST_KEY} printable ASCII characters")


def _kept(request: Any, key: str) -> Response | None:
    if not _locked(lock_number(request.user.pk, key)):
        raise Conflict("A request with this Idempotency-Key is being worked on.", RETRY_S)
    mine = IdempotencyKey.objects.filter(user=request.user)
    mine.forgotten(clock.now()).delete()
    kept = mine.filter(key=key).first()
    if kept is None:
        return None
    if kept.digest != _digest(request):
        raise Conflict("This Idempotency-Key was used for another request within the last 24 hours.")
    headers = {**kept.headers, "Idempotency-Replayed": "true"}
    return Response(json.loads(kept.body), status=kept.status, headers=headers)


def lock_number(user_id: int, key: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{user_id}:{key}".encode()).digest()[:8], signed=True)


def _locked(number: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [number])
        return cursor.fetchone()[0]


def _keep(request: Any, key: str, answer: Response) -> Response:
    IdempotencyKey.objects.create(
        user=request.user,
        key=key,
        digest=_digest(request),
        status=answer.status_code,
        headers={name: answer.headers[name] for name in KEPT_HEADERS if name in answer.headers},
        body=json.dumps(answer.data, cls=JSONEncoder),
    )
    return answer


def _digest(request: Any) -> str:
    asked = hashlib.sha256(f"{request.method} {request.get_full_path()}\n".encode())
    asked.update(request.raw_body)
    return asked.hexdigest()
