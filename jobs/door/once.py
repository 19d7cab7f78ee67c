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

from jobs import clock
from jobs.door.errors import RETRY_S, BadField, Conflict
from jobs.models import IdempotencyKey

T = TypeVar("T")

LONGEST_KEY = 200
KEPT_HEADERS = ("Location", "ETag")


@dataclass(frozen=True, kw_only=True)
class Keyed:
    """One request under its key; the digest is of all that it asks."""

    user_id: int
    key: str
    digest: str


def once(request: Any, work: Callable[[], Response], asked: Keyed | None = None) -> Response:
    """Do the work in one transaction, or answer as it was answered before."""
    with transaction.atomic():
        asked = asked or of_person(request)
        return (_answered(asked) or _keep(asked, work())) if asked else work()


def once_apart(request: Any, think: Callable[[], Response]) -> Response:
    """The same for what takes long and changes no row: nothing is open meanwhile, so of two at once both think."""
    asked = of_person(request)
    if asked is None:
        return think()
    with transaction.atomic():
        known = _answered(asked)
    if known:
        return known
    answer = think()
    with transaction.atomic():
        return _answered(asked) or _keep(asked, answer)


def once_after(request: Any, think: Callable[[], T], work: Callable[[T], Response]) -> Response:
    """The same where a part of the work takes long and changes nothing: nothing is open while that is done."""
    asked = of_person(request)
    if asked:
        with transaction.atomic():
            if known := _answered(asked):
                return known
    thought = think()
    return once(request, lambda: work(thought), asked)


def of_person(request: Any) -> Keyed | None:
    key = key_of(request)
    return Keyed(user_id=request.user.pk, key=key, digest=_digest(request)) if key else None


def of_run(request: Any, run: str, owner: int) -> Keyed | None:
    """A run counts its keys for itself: what its user's other runs call theirs is not its business."""
    key = key_of(request)
    known_as = f"{run} {hashlib.sha256((key or '').encode()).hexdigest()}"
    return Keyed(user_id=owner, key=known_as, digest=_digest(request)) if key else None


def key_of(request: Any) -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is not None and not is_key(key):
        raise BadField("Idempotency-Key", f"is no text of 1 to {LONGEST_KEY} printable ASCII characters")
    return key


def _digest(request: Any) -> str:
    return digest_of(request.method, request.get_full_path(), request.raw_body)


def is_key(key: str) -> bool:
    return 1 <= len(key) <= LONGEST_KEY and key.isascii() and key.isprintable()


def digest_of(method: str, path: str, body: bytes) -> str:
    asked = hashlib.sha256(f"{method} {path}\n".encode())
    asked.update(body)
    return asked.hexdigest()


def _answered(asked: Keyed) -> Response | None:
    if not _locked([asked])[0]:
        raise Conflict("A request with this Idempotency-Key is being worked on.", RETRY_S)
    kept = _kept([asked], clock.now()).first()
    if kept is None:
        return None
    if kept.digest != asked.digest:
        raise Conflict("This Idempotency-Key was used for another request within the last 24 hours.")
    headers = {**kept.headers, "Idempotency-Replayed": "true"}
    return Response(json.loads(kept.body), status=kept.status, headers=headers)


def _keep(asked: Keyed, answer: Response) -> Response:
    keep({asked: answer.data}, answer.status_code, {asked: answer.headers})
    return answer


# --- of many at once


def unanswered(asked: Sequence[Keyed], now: datetime) -> set[Keyed]:
    """Those that nobody has done yet and nobody is doing; until the end of the transaction nobody else will."""
    if not asked:
        return set()
    mine = [one for one, got in zip(asked, _locked(asked), strict=True) if got]
    known = {(kept.user_id, kept.key) for kept in _kept(mine, now)}
    return {one for one in mine if (one.user_id, one.key) not in known}


def keep(answers: Mapping[Keyed, Any], status: int, headers: Mapping[Keyed, Mapping[str, str]]) -> None:
    rows = (
        IdempotencyKey(
            user_id=one.user_id,
            key=one.key,
            digest=one.digest,
            status=status,
            headers={name: headers[one][name] for name in KEPT_HEADERS if name in headers[one]},
            body=json.dumps(said, cls=JSONEncoder),
        )
        for one, said in answers.items()
    )
    IdempotencyKey.objects.bulk_create(rows)


def _kept(asked: Sequence[Keyed], now: datetime) -> QuerySet[IdempotencyKey]:
    """What is kept of these. An answer that is too old makes room for a new one; the others go with the sweep."""
    mine = IdempotencyKey.objects.filter(user__in={one.user_id for one in asked}, key__in=[one.key for one in asked])
    mine.forgotten(now).delete()
    return mine


def lock_number(user_id: int, key: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{user_id}:{key}".encode()).digest()[:8], signed=True)


def _locked(asked: Iterable[Keyed]) -> list[bool]:
    numbers = [lock_number(one.user_id, one.key) for one in asked]
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(n) FROM unnest(%s::bigint[]) AS n", [numbers])
        return [got for (got,) in cursor.fetchall()]
