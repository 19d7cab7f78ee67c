"""Following a log: server-sent events from the event loop, no thread and no database connection for each follower.

The endpoint runs as every other one: credentials, rights, throttle. What it leaves is a Wish. Under ASGI, `Following`
(around Django, in acmeweb.asgi) takes the wish up when Django is done with the request and has given its thread and
connection back; a follower then costs a descriptor and a look at the file each second.

Events: `start` {attempt, offset}; text without a name, cleaned, whose id is the byte after it; `truncated` when the
file became shorter; `end` {attempt, why} when the attempt is over and all is read; `reconnect` when the time of this
connection is over: rights are looked at anew with the next one, which resumes where this one ended.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db import close_old_connections
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from jobs.logs import allowed_paths, log_files, storage
from jobs.logs.job_log import LogNotCreated, LogReadError, StorageUnresponsive, decode_log_text
from jobs.models import Attempt
from jobs.rest.streaming import write_until_disconnect

STREAM_SCOPE_KEY = "acme.following"  # where the wish lies in the ASGI scope
EVENT_STREAM_TYPE = "text/event-stream; charset=utf-8"
STREAM_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class LogStreamRequest:
    root: str
    path: str
    attempt_id: int
    number: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class LogStreamTiming:
    """How often a follower looks, and how long it may."""

    look_s: float = 1.0
    beat_s: float = 15.0
    longest_s: float = 300.0
    settle_s: float = 3.0  # after the end of an attempt its last lines may still be on their way to the file


DEFAULT_TIMING = LogStreamTiming()


def stream_response(request: Any, wish: LogStreamRequest) -> HttpResponseBase:
    headers = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}
    if isinstance(request, ASGIRequest) and STREAM_SCOPE_KEY in request.scope:
        request.scope[STREAM_SCOPE_KEY].append(wish)
        return HttpResponse(content_type=EVENT_STREAM_TYPE, headers=headers)
    events = follow_log(wish, attempt_has_ended)
    chunks = events if isinstance(request, ASGIRequest) else _sync_chunks(events)
    return StreamingHttpResponse(chunks, content_type=EVENT_STREAM_TYPE, headers=headers)


def _sync_chunks(events: AsyncIterator[bytes]) -> Iterator[bytes]:
    """For a server without an event loop: a thread for each follower, which is why ours is another one."""
    with asyncio.Runner() as runner:
        while True:
            try:
                yield runner.run(anext(events))  # type: ignore[arg-type]
            except StopAsyncIteration:
                return


class LogStreamMiddleware:
    """ASGI around Django: what the endpoint granted is streamed here."""

    def __init__(self, django: Any, pace: LogStreamTiming = DEFAULT_TIMING) -> None:
        self.django, self.pace = django, pace

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].endswith("/log/follow/"):
            return await self.django(scope, receive, send)
        wishes: list[LogStreamRequest] = []
        head: list[dict[str, Any]] = []

        async def intercept_response(message: dict[str, Any]) -> None:
            if not wishes:
                await send(message)
            elif message["type"] == "http.response.start":
                head.append(message)

        await self.django({**scope, STREAM_SCOPE_KEY: wishes}, receive, intercept_response)
        if wishes and head:
            await self._stream_events(wishes[0], head[0], scope["method"], receive, send)

    async def _stream_events(
        self, wish: LogStreamRequest, head: dict[str, Any], method: str, receive: Any, send: Any
    ) -> None:
        head["headers"] = [pair for pair in head["headers"] if pair[0].lower() != b"content-length"]
        await send(head)
        if method == "HEAD":
            return await send({"type": "http.response.body", "body": b""})
        await write_until_disconnect(receive, _send_events(follow_log(wish, attempt_has_ended, self.pace), send))


async def _send_events(events: Any, send: Any) -> None:
    try:
        async for event in events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        await events.aclose()


@sync_to_async(thread_sensitive=False)
def attempt_has_ended(attempt_id: int) -> bool:
    try:
        return not Attempt.objects.filter(pk=attempt_id, ended_at__isnull=True).exists()
    finally:
        close_old_connections()  # back to the pool: this thread has no request that would do it


# --- the events


AttemptEndedCheck = Callable[[int], Awaitable[bool]]


async def follow_log(
    wish: LogStreamRequest, ended: AttemptEndedCheck, pace: LogStreamTiming = DEFAULT_TIMING
) -> AsyncIterator[bytes]:
    began = beaten = time.monotonic()
    log = _LogTail(wish.root, wish.path, wish.offset)
    over_since: float | None = None
    yield b"retry: 1000\n" + server_sent_event("start", json.dumps({"attempt": wish.number, "offset": wish.offset}))
    while True:
        # Asked before the look: what was printed before the end is then in what is read
        now = time.monotonic()
        if over_since is None and await ended(wish.attempt_id):
            over_since = now
        finished = over_since is not None and now - over_since >= pace.settle_s
        try:
            text, truncated = await asyncio.to_thread(log.more, finished)
        except LogReadError as nothing:
            if finished or not isinstance(nothing, LogNotCreated | StorageUnresponsive):
                yield _end_event(wish, log.at, str(nothing))
                return
            text, truncated = "", False
        if truncated:
            yield server_sent_event("truncated", "", 0)
        if text:
            yield server_sent_event("", text, log.at)
            beaten = time.monotonic()
        elif finished:
            yield _end_event(wish, log.at, "The attempt has ended.")
            return
        now = time.monotonic()
        if now - began >= pace.longest_s:
            yield server_sent_event(
                "reconnect", "This connection has lasted long enough; come back with Last-Event-ID."
            )
            return
        if now - beaten >= pace.beat_s:
            beaten = now
            yield b": still here\n\n"
        if not text:
            await asyncio.sleep(pace.look_s)


def _end_event(wish: LogStreamRequest, at: int, why: str) -> bytes:
    return server_sent_event("end", json.dumps({"attempt": wish.number, "why": why}), at)


def server_sent_event(name: str, text: str, at: int | None = None) -> bytes:
    lines = [f"id: {at}"] if at is not None else []
    lines += [f"event: {name}"] if name else []
    lines += [f"data: {line}" for line in text.split("\n")]
    return ("\n".join(lines) + "\n\n").encode()


class _LogTail:
    """Reads on from where it was, as soon as there is a file."""

    def __init__(self, root: str, path: str, at: int) -> None:
        self.root, self.path, self.at = root, path, at
        self.waits_with = -1  # bytes of a line without its end, at the last look

    def more(self, finished: bool) -> tuple[str, bool]:
        """The next text, cleaned, and whether the file became shorter than what was read of it."""
        found = self._read_chunk()
        truncated = found.size < self.at
        if truncated:
            self.at = 0
            found = self._read_chunk()
        (raw,) = found.pieces
        taken = self._complete_lines(raw, finished)
        self.at += len(taken)
        return decode_log_text(taken), truncated

    def _complete_lines(self, raw: bytes, finished: bool) -> bytes:
        """Up to the last newline, so that neither a character nor a terminal sequence is cut in two. A line that does
        not end is given out when it is as long as a piece, or when nothing was added to it since the last look."""
        whole = raw.rfind(b"\n") + 1
        if whole:
            self.waits_with = -1
            return raw[:whole]
        rests = len(raw) == self.waits_with
        self.waits_with = -1 if rests else len(raw)
        return raw if finished or len(raw) == STREAM_CHUNK_BYTES else (_complete_characters(raw) if rests else b"")

    def _read_chunk(self) -> log_files.LogReadResult:
        words = (self.root, self.path, ((STREAM_CHUNK_BYTES, self.at),), None, allowed_paths.load_allowed_paths())
        return storage.call(self.root, log_files.read_log_pieces, *words)


def _complete_characters(raw: bytes) -> bytes:
    """Without a UTF-8 character or an escape sequence that has only begun."""
    if (escape := raw.rfind(b"\x1b", max(0, len(raw) - 64))) >= 0 and b"m" not in raw[escape:]:
        raw = raw[:escape]
    for back in range(1, min(4, len(raw)) + 1):
        byte = raw[-back]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return raw[:-back] if back < needed else raw
        if byte < 0x80:
            break
    return raw
