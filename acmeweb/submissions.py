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

from acmeweb import authentication
from acmeweb.shortcut import Answer, Asked, Collected, Shortcut
from jobs import progress
from jobs.api import submitting_together
from jobs.api.submitting_together import Ask, Told
from jobs.door import body, once
from jobs.door.once import Keyed
from jobs.door.rights import caller_with
from jobs.journal import Author
from jobs.models import Token
from jobs.readers import BadSpec


@dataclass(frozen=True, kw_only=True)
class Submission:
    asked: Asked
    job: Mapping[str, Any]
    digest: str  # of the token
    key: str | None  # Idempotency-Key


Write = Callable[[Mapping[Any, Submission]], Mapping[Any, Told]]


class Submissions(Shortcut):
    address = "/api/v1/jobs/"

    def __init__(self, django: Any, write: Write | None = None) -> None:
        super().__init__(django)
        self.collected = Collected("submissions", write or submit_together)

    async def answer(self, asked: Asked) -> Answer | None:
        job, key = _job(asked.raw), asked.headers.get("idempotency-key")
        if job is None or not _is_a_persons(asked.token) or not (key is None or once.is_key(key)):
            return None
        one = Submission(asked=asked, job=job, digest=Token.digest_of(asked.token), key=key)
        # The same key twice: the second finds the answer of the first
        name: Hashable = object() if key is None else (one.digest, key)
        told = await self.collected.written(name, one)
        return _created(*told) if told else None


def _is_a_persons(token: str) -> bool:
    return token.startswith(Token.MARK) and not token.startswith(progress.MARK)


def _job(raw: bytes) -> dict[str, Any] | None:
    try:
        asked = body.read(raw)
    except (APIException, BadSpec):
        return None
    return asked if isinstance(asked, dict) else None


def _created(shown: Mapping[str, Any], where: str) -> Answer:
    return Answer(status=201, body=json.dumps(shown, separators=(",", ":")).encode(), headers={"Location": where})


def submit_together(asked: Mapping[Any, Submission]) -> Mapping[Any, Told]:
    tokens, now = authentication.known(sorted({one.digest for one in asked.values()}))
    asks = {}
    for name, one in asked.items():
        token = tokens.get(one.digest)
        if token and not authentication.refusal(token, one.asked.source or "", now):
            asks[name] = _ask(one, token)
    authentication.note_use({token for one in asks.values() if (token := one.caller.token)}, now)
    return submitting_together.submit(asks, now)


def _ask(one: Submission, token: Token) -> Ask:
    digest = once.digest_of("POST", Submissions.address, one.asked.raw)
    return Ask(
        caller=caller_with(token),
        author=Author.of_user(token.user, one.asked.id, one.asked.source),
        job=one.job,
        address=f"{one.asked.home}{Submissions.address}",
        keyed=Keyed(user_id=token.user_id, key=one.key, digest=digest) if one.key is not None else None,
    )
