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

from acmeweb.requests import POLICY, SAFE_ID

LARGEST = 64 * 1024
MOST_AT_ONCE = 500
GATHER_SHARE, GATHER_MOST_S = 0.3, 0.01  # of the time that the last took, while many ask; who is alone never waits
LONGEST_TOKEN = 120  # they are remembered

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A POST of JSON by somebody with a token; nothing around its body is unusual."""

    token: str
    raw: bytes
    id: str
    source: str | None  # the caller's address
    home: str  # how the caller calls this server: https://acme.example
    headers: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Answer:
    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


class Shortcut:
    address = ""
    name = ""

    def __init__(self, django: Any) -> None:
        self.django = django

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != self.address or scope["method"] != "POST":
            return await self.django(scope, receive, send)
        read: list[Any] = []
        raw = await _small_body(receive, read)
        asked = None if raw is None else _plain(scope, raw)
        answer = await self.answer(asked) if asked else None
        if asked is None or answer is None:
            return await self.django(scope, _again(read, receive), send)
        await _send(answer, asked.id, send)

    async def answer(self, asked: Asked) -> Answer | None:
        """None: this one is Django's."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Waiting:
    key: Hashable
    asked: Any
    written: asyncio.Future[Any]


class Collected:
    """One thread that writes what waits, all of it at once. What has the same key is never written together."""

    def __init__(self, name: str, write: Callable[[Mapping[Any, Any]], Mapping[Any, Any]]) -> None:
        self.name, self.write = name, write
        self.waiting: deque[Waiting] = deque()
        self.writer: asyncio.Task[None] | None = None
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def written(self, key: Hashable, asked: Any) -> Any:
        """What `write` said of it; None if it could not be written."""
        one = Waiting(key=key, asked=asked, written=asyncio.get_running_loop().create_future())
        self.waiting.append(one)
        if self.writer is None or self.writer.done():
            self.writer = asyncio.create_task(self._write_all())
        return await one.written

    async def _write_all(self) -> None:
        while self.waiting:
            together, began = self._next(), time.monotonic()
            written = await self._written(together)
            for one in together.values():
                if not one.written.done():  # its caller may have hung up
                    one.written.set_result(written.get(one.key))
            if len(together) > 1:
                # Who was just answered asks again at once: let them come together
                await asyncio.sleep(min(GATHER_MOST_S, GATHER_SHARE * (time.monotonic() - began)))
            if not self.waiting:  # and look again afterwards: somebody may have come meanwhile
                await self._in_thread(connections.close_all)  # back to the pool

    async def _in_thread(self, work: Callable[..., Any], *words: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.thread, work, *words)

    async def _written(self, together: Mapping[Hashable, Waiting]) -> Mapping[Any, Any]:
        asked = {key: one.asked for key, one in together.items()}
        try:
            return await self._in_thread(self._write, asked)
        except Error:
            return {}  # Django tries each on its own, and says what is wrong
        except Exception:
            log.exception("%s %s could not be written together", len(together), self.name)
            return {}

    def _write(self, asked: Mapping[Hashable, Any]) -> Mapping[Any, Any]:
        try:
            return self.write(asked)
        except BaseException:
            connections.close_all()  # it may be the connection that is broken
            raise

    def _next(self) -> dict[Hashable, Waiting]:
        """One of each key: a second one has its turn with the next."""
        together: dict[Hashable, Waiting] = {}
        later: list[Waiting] = []
        while self.waiting and len(together) < MOST_AT_ONCE:
            one = self.waiting.popleft()
            if one.key in together:
                later.append(one)
            else:
                together[one.key] = one
        self.waiting.extendleft(reversed(later))
        return together


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


def _plain(scope: Any, raw: bytes) -> Asked | None:
    headers = {name.decode("latin1").lower(): value.decode("latin1") for name, value in scope["headers"]}
    if len(headers) < len(scope["headers"]):
        return None  # one is there twice
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    scheme, _, token = headers.get("authorization", "").partition(" ")
    host, token, safe = headers.get("host", ""), token.strip(), _scheme(scope, headers)
    if scope["query_string"] or kind != "application/json" or scheme.lower() != "bearer" or len(token) > LONGEST_TOKEN:
        return None
    if not _is_our_name(host) or (settings.SECURE_SSL_REDIRECT and safe != "https"):
        return None
    given, client = headers.get("x-request-id", ""), scope.get("client")
    return Asked(
        token=token,
        raw=raw,
        id=given if SAFE_ID.fullmatch(given) else uuid.uuid4().hex,
        source=client[0] if client else None,
        home=f"{safe}://{host}",
        headers=headers,
    )


def _scheme(scope: Any, headers: Mapping[str, str]) -> str:
    """As Django finds it: what a proxy says counts only where one was configured."""
    if settings.SECURE_PROXY_SSL_HEADER and "x-forwarded-proto" in headers:
        return "https" if headers["x-forwarded-proto"].partition(",")[0].strip() == "https" else "http"
    return str(scope["scheme"])


@lru_cache(maxsize=100)
def _is_our_name(host: str) -> bool:
    domain, _ = split_domain_port(host)
    return bool(domain) and validate_host(domain, settings.ALLOWED_HOSTS)


async def _send(answer: Answer, id: str, send: Any) -> None:
    headers = {
        "Content-Type": "application/json",
        "Content-Length": str(len(answer.body)),
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "X-Request-ID": id,
        **answer.headers,
    }
    written = [(name.encode(), value.encode("latin1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": written})
    await send({"type": "http.response.body", "body": answer.body})
