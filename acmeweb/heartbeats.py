"""Heartbeats, many at a time: ASGI around Django, for the one request that comes a thousand times a second.

A report of heartbeats costs Django two milliseconds and the database a transaction. Here those that come while the last
ones are written wait in the event loop, and are then written by one statement; each is answered after its commit. Only
what is plainly right is answered here: anything else (checkpoints, a wrong token, an attempt that has ended, a
body that cannot be read, a database that is away) goes to Django as it came, which has the sentence for it. So there is
one place that refuses, and this one can be taken away.

If the process dies, nobody was told that the heartbeats were kept, and who sent them sends them again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.db import Error, connections
from django.http.request import split_domain_port, validate_host
from rest_framework.exceptions import APIException

from acmeweb.requests import POLICY, SAFE_ID
from jobs import progress
from jobs.api.progress import Report, read_report
from jobs.door import body
from jobs.progress import Beats, Noted
from jobs.readers import BadSpec

ADDRESS = "/api/v1/progress/"
LARGEST = 64 * 1024
MOST_AT_ONCE = 500
LONGEST_TOKEN = 120  # they are remembered

log = logging.getLogger(__name__)

Write = Callable[[Mapping[str, Beats]], Mapping[str, Noted]]


@dataclass(frozen=True, kw_only=True)
class Waiting:
    key: str
    beats: Beats
    noted: asyncio.Future[Noted | None]


class Heartbeats:
    def __init__(self, django: Any, write: Write = progress.note_many) -> None:
        self.django, self.write = django, write
        self.waiting: deque[Waiting] = deque()
        self.writer: asyncio.Task[None] | None = None
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="heartbeats")
        self.pace = PerMinute()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != ADDRESS or scope["method"] != "POST":
            return await self.django(scope, receive, send)
        headers = {name.decode("latin1").lower(): value.decode("latin1") for name, value in scope["headers"]}
        read: list[Any] = []
        raw = await _small_body(receive, read)
        key = _key(scope, headers)
        report = _report(raw) if key and raw is not None else None
        noted = None
        if key and report and self.pace.allows(key):
            noted = await self._noted(key, report.beats)
        if noted is None:
            return await self.django(scope, _again(read, receive), send)
        await _answer(noted, headers.get("x-request-id", ""), send)

    async def _noted(self, key: str, beats: Beats) -> Noted | None:
        one = Waiting(key=key, beats=beats, noted=asyncio.get_running_loop().create_future())
        self.waiting.append(one)
        if self.writer is None or self.writer.done():
            self.writer = asyncio.create_task(self._write_all())
        return await one.noted

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        while self.waiting:
            together = self._next()
            try:
                noted = await loop.run_in_executor(self.thread, self._write, together)
            except Error:
                noted = {}  # Django tries each on its own, and says what is wrong
            except Exception:
                log.exception("%s reports of heartbeats could not be written together", len(together))
                noted = {}
            for one in together.values():
                if not one.noted.done():  # its caller may have hung up
                    one.noted.set_result(noted.get(one.key))

    def _next(self) -> dict[str, Waiting]:
        """One report of each attempt: a second one of the same has its turn with the next."""
        together: dict[str, Waiting] = {}
        later: list[Waiting] = []
        while self.waiting and len(together) < MOST_AT_ONCE:
            one = self.waiting.popleft()
            if one.key in together:
                later.append(one)
            else:
                together[one.key] = one
        self.waiting.extendleft(reversed(later))
        return together

    def _write(self, together: Mapping[str, Waiting]) -> Mapping[str, Noted]:
        try:
            return self.write({key: one.beats for key, one in together.items()})
        finally:
            connections.close_all()  # back to the pool


class PerMinute:
    """As many as the door allows each caller; beyond that Django counts, and says when to come back."""

    def __init__(self) -> None:
        self.minute, self.counted = 0, Counter[str]()

    def allows(self, key: str) -> bool:
        minute = int(time.time()) // 60
        if minute != self.minute:
            self.minute, self.counted = minute, Counter()
        self.counted[key] += 1
        return self.counted[key] <= settings.ACME_API_PER_MINUTE


async def _small_body(receive: Any, read: list[Any]) -> bytes | None:
    """None when it is too large for here, or its sender hung up; what was read is kept for Django."""
    parts, size = [], 0
    while True:
        message = await receive()
        read.append(message)
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > LARGEST:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


def _again(read: Sequence[Any], receive: Any) -> Any:
    left = deque(read)

    async def replay() -> Any:
        return left.popleft() if left else await receive()

    return replay


def _key(scope: Any, headers: Mapping[str, str]) -> str | None:
    """Of the attempt that reports, if everything around the body is as it should be."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scope["query_string"] or kind != "application/json" or scheme.lower() != "bearer":
        return None
    if not _is_our_name(headers.get("host", "")):
        return None
    if settings.SECURE_SSL_REDIRECT and "https" not in (scope["scheme"], headers.get("x-forwarded-proto")):
        return None
    token = token.strip()
    return _key_of(token) if len(token) <= LONGEST_TOKEN else None


@lru_cache(maxsize=50_000)
def _key_of(token: str) -> str | None:
    return progress.key_of(token)


@lru_cache(maxsize=100)
def _is_our_name(host: str) -> bool:
    return validate_host(split_domain_port(host)[0], settings.ALLOWED_HOSTS)


def _report(raw: bytes) -> Report | None:
    """Heartbeats that can be read, and nothing else."""
    try:
        asked = body.read(raw)
        report = read_report(asked) if isinstance(asked, dict) else None
    except (APIException, BadSpec):
        return None
    return report if report and not report.saved else None


async def _answer(noted: Noted, asked_id: str, send: Any) -> None:
    said = json.dumps(noted.shown(), separators=(",", ":")).encode()
    headers = {
        "Content-Type": "application/json",
        "Content-Length": str(len(said)),
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "X-Request-ID": asked_id if SAFE_ID.fullmatch(asked_id) else uuid.uuid4().hex,
    }
    written = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": written})
    await send({"type": "http.response.body", "body": said})
