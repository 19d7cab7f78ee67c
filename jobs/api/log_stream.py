"""Log streaming: server-sent events from the event loop, without a thread or database connection per client.

The endpoint checks credentials, permissions and rate limit like any other, and stores a LogStreamRequest in the ASGI
scope. LogStreamMiddleware (around Django, in acmeweb.asgi) streams the log after Django has finished the request and
released its thread and connection. A client then costs a file descriptor and one file read per second.

Events: `start` {attempt, offset}; unnamed events with cleaned text, whose id is the byte after the text; `truncated`
when the file became shorter; `end` {attempt, why} when the attempt has ended and everything is sent; `reconnect` when
the connection reaches its maximum age. The client then reconnects, which checks permissions again, and resumes where
the old connection ended.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from jobs.logs import allowed_paths, log_files, storage
from jobs.logs.job_log import LogNotCreated, LogReadError, StorageUnresponsive, decode_log_text
from jobs.logs.log_source import LogSource
from jobs.models import Attempt
from jobs.rest.streaming import is_asgi, write_until_disconnect

STREAM_SCOPE_KEY = "acme.following"  # key of the stream requests in the ASGI scope
EVENT_SCHEMA = {
    "type": "object",
    "description": "One event. `message`: more text of the log.",
    "properties": {
        "event": {"type": "string", "enum": ["start", "message", "truncated", "end", "reconnect"]},
        "data": {"type": "string"},
        "id": {"type": "string", "description": "Offset after the event, for Last-Event-ID.", "pattern": "^[0-9]*$"},
        "retry": {"type": "integer"},
    },
    "required": ["event", "data"],
}
EVENT_STREAM_TYPE = "text/event-stream; charset=utf-8"
STREAM_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class LogStreamRequest:
    source: LogSource
    attempt_id: int
    number: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class LogStreamTiming:
    """Intervals and limits of a log stream, in seconds."""

    look_s: float = 1.0  # between two reads of the file
    beat_s: float = 15.0  # keep-alive comment after this much silence
    longest_s: float = 300.0  # maximum age of a connection
    settle_s: float = 3.0  # the last lines may reach a shared file system after the attempt has ended


DEFAULT_TIMING = LogStreamTiming()


def stream_response(request: Any, stream: LogStreamRequest) -> HttpResponseBase:
    """Hand the stream to LogStreamMiddleware, or stream from Django if the middleware is not installed."""
    headers = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}
    if is_asgi(request) and STREAM_SCOPE_KEY in request.scope:
        request.scope[STREAM_SCOPE_KEY].append(stream)
        return HttpResponse(content_type=EVENT_STREAM_TYPE, headers=headers)
    events = follow_log(stream, attempt_has_ended)
    chunks = events if is_asgi(request) else _sync_chunks(events)
    return StreamingHttpResponse(chunks, content_type=EVENT_STREAM_TYPE, headers=headers)


def _sync_chunks(events: AsyncIterator[bytes]) -> Iterator[bytes]:
    """The events as a synchronous iterator, for WSGI servers. It blocks a thread per client."""
    with asyncio.Runner() as runner:
        while True:
            try:
                yield runner.run(anext(events))  # type: ignore[arg-type]
            except StopAsyncIteration:
                return


class LogStreamMiddleware:
    """ASGI middleware around Django that streams the logs for which the endpoint has stored a LogStreamRequest."""

    def __init__(self, django: Any, pace: LogStreamTiming = DEFAULT_TIMING) -> None:
        self.django, self.pace = django, pace

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].endswith("/log/follow/"):
            return await self.django(scope, receive, send)
        streams: list[LogStreamRequest] = []
        head: list[dict[str, Any]] = []

        async def intercept_response(message: dict[str, Any]) -> None:
            if not streams:  # an error, or a request that is not streamed
                await send(message)
            elif message["type"] == "http.response.start":
                head.append(message)

        await self.django({**scope, STREAM_SCOPE_KEY: streams}, receive, intercept_response)
        if streams and head:
            await self._stream_events(streams[0], head[0], scope["method"], receive, send)

    async def _stream_events(
        self, stream: LogStreamRequest, head: dict[str, Any], method: str, receive: Any, send: Any
    ) -> None:
        head["headers"] = [pair for pair in head["headers"] if pair[0].lower() != b"content-length"]
        await send(head)
        if method == "HEAD":
            return await send({"type": "http.response.body", "body": b""})
        await write_until_disconnect(receive, _send_events(follow_log(stream, attempt_has_ended, self.pace), send))


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
        close_old_connections()  # no request runs in this thread, so Django does not return the connection itself


# --- the events


AttemptEndedCheck = Callable[[int], Awaitable[bool]]


async def follow_log(
    stream: LogStreamRequest, ended: AttemptEndedCheck, pace: LogStreamTiming = DEFAULT_TIMING
) -> AsyncIterator[bytes]:
    """The events of a log from an offset on, until the attempt ends or the connection reaches its maximum age."""
    began = last_event = time.monotonic()
    log = _LogTail(stream.source, stream.offset)
    over_since: float | None = None
    yield b"retry: 1000\n" + server_sent_event("start", json.dumps({"attempt": stream.number, "offset": stream.offset}))
    while True:
        # Checks the end before it reads, so that the last read contains everything printed before the end
        now = time.monotonic()
        if over_since is None and await ended(stream.attempt_id):
            over_since = now
        finished = over_since is not None and now - over_since >= pace.settle_s
        try:
            text, truncated = await asyncio.to_thread(log.more, finished)
        except LogReadError as error:
            # A log that does not exist yet, or storage that does not respond, is retried until the attempt has ended
            if finished or not isinstance(error, LogNotCreated | StorageUnresponsive):
                yield _end_event(stream, log.at, str(error))
                return
            text, truncated = "", False
        if truncated:
            yield server_sent_event("truncated", "", 0)
        if text:
            yield server_sent_event("", text, log.at)
            last_event = time.monotonic()
        elif finished:
            yield _end_event(stream, log.at, "The attempt has ended.")
            return
        now = time.monotonic()
        if now - began >= pace.longest_s:
            yield server_sent_event("reconnect", "Maximum connection time reached. Reconnect with Last-Event-ID.")
            return
        if now - last_event >= pace.beat_s:
            last_event = now
            yield b": keep-alive\n\n"
        if not text:
            await asyncio.sleep(pace.look_s)


def _end_event(stream: LogStreamRequest, at: int, why: str) -> bytes:
    return server_sent_event("end", json.dumps({"attempt": stream.number, "why": why}), at)


def server_sent_event(name: str, text: str, at: int | None = None) -> bytes:
    lines = [f"id: {at}"] if at is not None else []
    lines += [f"event: {name}"] if name else []
    lines += [f"data: {line}" for line in text.split("\n")]
    return ("\n".join(lines) + "\n\n").encode()


class _LogTail:
    """Reads a growing log file from an offset on. The file need not exist yet."""

    def __init__(self, source: LogSource, at: int) -> None:
        self.source, self.at = source, at
        self.partial_bytes = -1  # length of the unfinished last line at the previous read

    def more(self, finished: bool) -> tuple[str, bool]:
        """The next cleaned text, and whether the file is now shorter than the part already read."""
        result = self._read_chunk()
        truncated = result.size < self.at
        if truncated:
            self.at = 0
            result = self._read_chunk()
        (raw,) = result.pieces
        complete = self._complete_lines(raw, finished)
        self.at += len(complete)
        return decode_log_text(complete), truncated

    def _complete_lines(self, raw: bytes, finished: bool) -> bytes:
        """The text up to the last newline, so that no character and no terminal sequence is split.

        An unfinished line is returned when it fills a chunk, or when it did not grow since the previous read, as a
        progress bar or a prompt.
        """
        end = raw.rfind(b"\n") + 1
        if end:
            self.partial_bytes = -1
            return raw[:end]
        unchanged = len(raw) == self.partial_bytes
        self.partial_bytes = -1 if unchanged else len(raw)
        return raw if finished or len(raw) == STREAM_CHUNK_BYTES else (_complete_characters(raw) if unchanged else b"")

    def _read_chunk(self) -> log_files.LogReadResult:
        source, pieces = self.source, ((STREAM_CHUNK_BYTES, self.at),)
        args = (source.root, source.path, pieces, None, allowed_paths.load_allowed_paths())
        return storage.call(source.root, log_files.read_log_pieces, *args)


def _complete_characters(raw: bytes) -> bytes:
    """The bytes without an incomplete UTF-8 character or escape sequence at the end."""
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
