"""ASGI middleware that batches frequent requests and bypasses Django: one path each, hundreds of requests per second.

Requests that arrive during a write wait in the event loop and are then written together; each is answered after the
commit. Only plainly valid requests are answered here. All others go to Django unchanged, which reports the error. So
refusals have one implementation, and each of these middlewares can be removed.

If the process dies before the commit, no request was answered, and the callers retry.
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
from django.core.exceptions import DisallowedHost
from django.db import Error, connections
from django.http import HttpRequest

from acmeweb.middleware import CONTENT_SECURITY_POLICY, REQUEST_ID_PATTERN

MAX_BODY_BYTES = 64 * 1024
MAX_BATCH_SIZE = 500
# After a batch of several requests, wait this share of its duration for more. A single request never waits
GATHER_SHARE, MAX_GATHER_S = 0.3, 0.01
MAX_TOKEN_LENGTH = 120  # tokens are cache keys

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BatchableRequest:
    """A POST of JSON with a bearer token and without unusual headers."""

    token: str
    raw: bytes
    id: str
    source: str | None  # the caller's address
    home: str  # base URL that the caller used: https://acme.example
    headers: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class BatchResponse:
    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


class BatchingMiddleware:
    """Base of the middlewares: subclasses name the path and answer the requests."""

    address = ""
    name = ""

    def __init__(self, django: Any) -> None:
        self.django = django

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != self.address or scope["method"] != "POST":
            return await self.django(scope, receive, send)
        messages: list[Any] = []
        raw = await _read_small_body(receive, messages)
        request = None if raw is None else _parse_batchable(scope, raw)
        response = await self.answer(request) if request else None
        if request is None or response is None:
            return await self.django(scope, _replay_receive(messages, receive), send)
        await _send_response(response, request.id, send)

    async def answer(self, request: BatchableRequest) -> BatchResponse | None:
        """Return the response; None leaves the request to Django."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class PendingWrite:
    key: Hashable
    request: Any
    result: asyncio.Future[Any]


class BatchWriter:
    """Writes pending requests in batches, in one thread. Requests with the same key are never in the same batch."""

    def __init__(self, name: str, write: Callable[[Mapping[Any, Any]], Mapping[Any, Any]]) -> None:
        self.name, self.write = name, write
        self.waiting: deque[PendingWrite] = deque()
        self.writer: asyncio.Task[None] | None = None
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def submit_and_wait(self, key: Hashable, request: Any) -> Any:
        """Return the result of `write` for this request; None if it could not be written."""
        entry = PendingWrite(key=key, request=request, result=asyncio.get_running_loop().create_future())
        self.waiting.append(entry)
        if self.writer is None or self.writer.done():
            self.writer = asyncio.create_task(self._write_batches())
        return await entry.result

    async def _write_batches(self) -> None:
        while self.waiting:
            batch, began = self._next_batch(), time.monotonic()
            results = await self._write_batch(batch)
            for entry in batch.values():
                if not entry.result.done():  # the caller may have disconnected
                    entry.result.set_result(results.get(entry.key))
            if len(batch) > 1:
                # Callers just answered often send their next request at once: let those arrive in one batch
                await asyncio.sleep(min(MAX_GATHER_S, GATHER_SHARE * (time.monotonic() - began)))
            if not self.waiting:  # then the loop checks again: requests may arrive meanwhile
                await self._in_thread(connections.close_all)  # returns the connection to the pool

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.thread, work, *arguments)

    async def _write_batch(self, batch: Mapping[Hashable, PendingWrite]) -> Mapping[Any, Any]:
        requests = {key: entry.request for key, entry in batch.items()}
        try:
            return await self._in_thread(self._call_write, requests)
        except Error:
            return {}  # Django tries each request alone and reports what is wrong
        except Exception:
            log.exception("A batch of %s %s could not be written", len(batch), self.name)
            return {}

    def _call_write(self, requests: Mapping[Hashable, Any]) -> Mapping[Any, Any]:
        try:
            return self.write(requests)
        except BaseException:
            connections.close_all()  # the connection itself may be broken
            raise

    def _next_batch(self) -> dict[Hashable, PendingWrite]:
        """Return at most one pending request of each key; the others stay for the next batch."""
        batch: dict[Hashable, PendingWrite] = {}
        postponed: list[PendingWrite] = []
        while self.waiting and len(batch) < MAX_BATCH_SIZE:
            entry = self.waiting.popleft()
            if entry.key in batch:
                postponed.append(entry)
            else:
                batch[entry.key] = entry
        self.waiting.extendleft(reversed(postponed))
        return batch


async def _read_small_body(receive: Any, messages: list[Any]) -> bytes | None:
    """Return the body; None if it is too large or the sender disconnected. `messages` collects input for Django."""
    parts, size = [], 0
    while True:
        message = await receive()
        messages.append(message)
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


def _replay_receive(messages: Sequence[Any], receive: Any) -> Any:
    remaining = deque(messages)

    async def replay_message() -> Any:
        return remaining.popleft() if remaining else await receive()

    return replay_message


def _parse_batchable(scope: Any, raw: bytes) -> BatchableRequest | None:
    headers = {name.decode("latin1").lower(): value.decode("latin1") for name, value in scope["headers"]}
    if len(headers) < len(scope["headers"]):
        return None  # a header occurs twice
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
    request_id, client = headers.get("x-request-id", ""), scope.get("client")
    return BatchableRequest(
        token=token,
        raw=raw,
        id=request_id if REQUEST_ID_PATTERN.fullmatch(request_id) else uuid.uuid4().hex,
        source=client[0] if client else None,
        home=f"{safe}://{host}",
        headers=headers,
    )


def _request_scheme(scope: Any, headers: Mapping[str, str]) -> str:
    """Return the scheme as Django determines it: a proxy's header counts only if a proxy is configured."""
    if settings.SECURE_PROXY_SSL_HEADER and "x-forwarded-proto" in headers:
        return "https" if headers["x-forwarded-proto"].partition(",")[0].strip() == "https" else "http"
    return str(scope["scheme"])


@lru_cache(maxsize=100)
def _is_allowed_host(host: str) -> bool:
    request = HttpRequest()
    request.META["HTTP_HOST"] = host
    try:
        return request.get_host() == host
    except DisallowedHost:
        return False


async def _send_response(response: BatchResponse, id: str, send: Any) -> None:
    headers = {
        "Content-Type": "application/json",
        "Content-Length": str(len(response.body)),
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        "X-Content-Type-Options": "nosniff",
        "X-Request-ID": id,
        **response.headers,
    }
    encoded = [(name.encode(), value.encode("latin1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": response.status, "headers": encoded})
    await send({"type": "http.response.body", "body": response.body})
