"""What the ways around Django share: one address each, for requests that come hundreds of times a second.

Those that come while the last ones are written wait in the event loop, and are then written together; each is answered
after the commit. Only what is plainly right is answered here: everything else goes to Django as it came, which has the
sentence for it. So there is one place that refuses, and each of these can be taken away.

If the process dies, nobody was told that anything was kept, and who asked asks again.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.db import Error, connections
from django.http.request import split_domain_port, validate_host

from acmeweb.middleware import CONTENT_SECURITY_POLICY, REQUEST_ID_PATTERN

MAX_BODY_BYTES = 64 * 1024
MAX_BATCH_SIZE = 500
GATHER_SHARE, MAX_GATHER_S = 0.3, 0.01  # of the time that the last took, while many ask; who is alone never waits
MAX_TOKEN_LENGTH = 120  # they are remembered

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BatchableRequest:
    """A POST of JSON by somebody with a token; nothing around its body is unusual."""

    token: str
    raw: bytes
    id: str
    source: str | None  # the caller's address
    home: str  # how the caller calls this server: https://acme.example
    headers: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class BatchResponse:
    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


class BatchingMiddleware:
    address = ""
    name = ""

    def __init__(self, django: Any) -> None:
        self.django = django

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != self.address or scope["method"] != "POST":
            return await self.django(scope, receive, send)
        read: list[Any] = []
        raw = await _read_small_body(receive, read)
        asked = None if raw is None else _parse_batchable(scope, raw)
        answer = await self.answer(asked) if asked else None
        if asked is None or answer is None:
            return await self.django(scope, _replay_receive(read, receive), send)
        await _send_response(answer, asked.id, send)

    async def answer(self, asked: BatchableRequest) -> BatchResponse | None:
        """None: this one is Django's."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class PendingWrite:
    key: Hashable
    asked: Any
    result: asyncio.Future[Any]


class BatchWriter:
    """One thread that writes what waits, all of it at once. What has the same key is never written together."""

    def __init__(self, name: str, write: Callable[[Mapping[Any, Any]], Mapping[Any, Any]]) -> None:
        self.name, self.write = name, write
        self.waiting: deque[PendingWrite] = deque()
        self.writer: asyncio.Task[None] | None = None
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def submit_and_wait(self, key: Hashable, asked: Any) -> Any:
        """What `write` said of it; None if it could not be written."""
        one = PendingWrite(key=key, asked=asked, result=asyncio.get_running_loop().create_future())
        self.waiting.append(one)
        if self.writer is None or self.writer.done():
            self.writer = asyncio.create_task(self._write_batches())
        return await one.result

    async def _write_batches(self) -> None:
        while self.waiting:
            together, began = self._next_batch(), time.monotonic()
            written = await self._write_batch(together)
            for one in together.values():
                if not one.result.done():  # its caller may have hung up
                    one.result.set_result(written.get(one.key))
            if len(together) > 1:
                # Who was just answered asks again at once: let them come together
                await asyncio.sleep(min(MAX_GATHER_S, GATHER_SHARE * (time.monotonic() - began)))
            if not self.waiting:  # and look again afterwards: somebody may have come meanwhile
                await self._in_thread(connections.close_all)  # back to the pool

    async def _in_thread(self, work: Callable[..., Any], *words: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.thread, work, *words)

    async def _write_batch(self, together: Mapping[Hashable, PendingWrite]) -> Mapping[Any, Any]:
        asked = {key: one.asked for key, one in together.items()}
        try:
            return await self._in_thread(self._call_write, asked)
        except Error:
            return {}  # Django tries each on its own, and says what is wrong
        except Exception:
            log.exception("%s %s could not be written together", len(together), self.name)
            return {}

    def _call_write(self, asked: Mapping[Hashable, Any]) -> Mapping[Any, Any]:
        try:
            return self.write(asked)
        except BaseException:
            connections.close_all()  # it may be the connection that is broken
            raise

    def _next_batch(self) -> dict[Hashable, PendingWrite]:
        """One of each key: a second one has its turn with the next."""
        together: dict[Hashable, PendingWrite] = {}
        later: list[PendingWrite] = []
        while self.waiting and len(together) < MAX_BATCH_SIZE:
            one = self.waiting.popleft()
            if one.key in together:
                later.append(one)
            else:
                together[one.key] = one
        self.waiting.extendleft(reversed(later))
        return together


async def _read_small_body(receive: Any, read: list[Any]) -> bytes | None:
    """None when it is too large for here, or its sender hung up; what was read is kept for Django."""
    parts, size = [], 0
    while True:
        message = await receive()
        read.append(message)
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


def _replay_receive(read: Sequence[Any], receive: Any) -> Any:
    left = deque(read)

    async def replay_message() -> Any:
        return left.popleft() if left else await receive()

    return replay_message


def _parse_batchable(scope: Any, raw: bytes) -> BatchableRequest | None:
    headers = {name.decode("latin1").lower(): value.decode("latin1") for name, value in scope["headers"]}
    if len(headers) < len(scope["headers"]):
        return None  # one is there twice
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    scheme, _, token = headers.get("authorization", "").partition(" ")
    host, token, safe = headers.get("host", ""), token.strip(), _request_scheme(scope, headers)
    if (
        scope["query_string"]
        or kind != "application/json"
        or scheme.lower() != "bearer"
        or len(token) > MAX_TOKEN_LENGTH
    ):
        return None
    if not _is_allowed_host(host) or (settings.SECURE_SSL_REDIRECT and safe != "https"):
        return None
    given, client = headers.get("x-request-id", ""), scope.get("client")
    return BatchableRequest(
        token=token,
        raw=raw,
        id=given if REQUEST_ID_PATTERN.fullmatch(given) else uuid.uuid4().hex,
        source=client[0] if client else None,
        home=f"{safe}://{host}",
        headers=headers,
    )


def _request_scheme(scope: Any, headers: Mapping[str, str]) -> str:
    """As Django finds it: what a proxy says counts only where one was configured."""
    if settings.SECURE_PROXY_SSL_HEADER and "x-forwarded-proto" in headers:
        return "https" if headers["x-forwarded-proto"].partition(",")[0].strip() == "https" else "http"
    return str(scope["scheme"])


@lru_cache(maxsize=100)
def _is_allowed_host(host: str) -> bool:
    domain, _ = split_domain_port(host)
    return bool(domain) and validate_host(domain, settings.ALLOWED_HOSTS)


async def _send_response(answer: BatchResponse, id: str, send: Any) -> None:
    headers = {
        "Content-Type": "application/json",
        "Content-Length": str(len(answer.body)),
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        "X-Content-Type-Options": "nosniff",
        "X-Request-ID": id,
        **answer.headers,
    }
    written = [(name.encode(), value.encode("latin1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": written})
    await send({"type": "http.response.body", "body": answer.body})
