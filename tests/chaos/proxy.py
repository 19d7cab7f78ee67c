"""A proxy between Acme and the cluster's HTTP port that damages responses while a fault is active.

Acme's cluster row has the proxy's address; the judge and the harness use the cluster directly. Each request is
forwarded over a new connection, and each response is read completely before any byte of it is passed on, so that a
fault can cut, change, delay or replace it. Watches of Kubernetes do not end, so their events are passed on one by one;
`watches` has their own faults. Connections that switch to another protocol are passed on as they are.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlsplit

HISTORY_S = 20.0  # how long responses are kept for the fault "stale"
STALE_S = 4.0
TRICKLE_PAUSE_S = 1.0
DELAY_S = (1.0, 6.0)
HOLD_S = 0.1
MOST_HEADER_BYTES = 64 * 1024
# Headers of a single connection, which the proxy sets itself
HOP_BY_HOP = frozenset({"connection", "keep-alive", "content-length", "transfer-encoding"})


@dataclass(frozen=True, kw_only=True)
class Message:
    """A complete HTTP/1.1 request or response."""

    first_line: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name), "")

    @property
    def method(self) -> str:
        return self.first_line.partition(" ")[0]

    @property
    def target(self) -> str:
        """The path and the query of a request."""
        return self.first_line.split(" ")[1]

    @property
    def watches(self) -> bool:
        """Whether this is the request of a watch, whose response does not end."""
        query = parse_qs(urlsplit(self.target).query)
        return self.method == "GET" and query.get("watch", [""])[0] in ("1", "true")

    def encoded(self, connection: str) -> bytes:
        header_lines = [f"{key}: {value}" for key, value in self.headers if key.lower() not in HOP_BY_HOP]
        head = [self.first_line, *header_lines, f"Content-Length: {len(self.body)}", f"Connection: {connection}"]
        return "\r\n".join([*head, "", ""]).encode("latin-1") + self.body


Fault = Callable[["Proxy", Message, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]


class Proxy:
    """Runs an event loop in its own thread. `active(fault)` damages responses during a with block."""

    def __init__(self, upstream: str, *, seed: int = 0, trickle_pause_s: float = TRICKLE_PAUSE_S) -> None:
        host, _, port = upstream.removeprefix("http://").partition(":")
        self._upstream = (host, int(port))
        self.random = Random(f"proxy:{seed}")
        self.trickle_pause_s = trickle_pause_s
        self.stale_s = STALE_S  # minimum age of a stale response
        self.delay_s = DELAY_S  # of a late response
        self.damaged = 0  # damaged responses since the start
        self._fault: Fault | None = None
        self._cut_watches = self._hold_watches = False
        self._watch_lag_s, self._lagging_share = 0.0, 1.0
        self._watching: set[asyncio.Task[Any]] = set()  # connections on which a watch runs
        self._history: dict[str, deque[tuple[float, Message]]] = defaultdict(deque)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @contextmanager
    def active(self, fault: Fault) -> Iterator[None]:
        self._fault = fault
        try:
            yield
        finally:
            self._fault = None

    @contextmanager
    def cut_watches(self) -> Iterator[None]:
        """Cut each watch in the middle of its next event. The client may watch again at once."""
        self._cut_watches = True
        try:
            yield
        finally:
            self._cut_watches = False

    @contextmanager
    def lagging_watches(self, lag_s: float, share: float = 1.0) -> Iterator[None]:
        """Pass on the events of this share of the watches, drawn by chance, so much later. All else stays current."""
        self._watch_lag_s, self._lagging_share = lag_s, share
        self.damaged += len(self._watching)
        try:
            yield
        finally:
            self._watch_lag_s = 0.0

    @contextmanager
    def held_watches(self) -> Iterator[None]:
        """End all watches, and let new ones wait until the block ends."""
        self._hold_watches = True
        self._call(self._cancel(self._watching))
        try:
            yield
        finally:
            self._hold_watches = False

    def close(self) -> None:
        self._call(self._shut_down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _shut_down(self) -> None:
        self._server.close()
        await self._cancel(task for task in asyncio.all_tasks() if task is not asyncio.current_task())

    async def _cancel(self, connections: Iterable[asyncio.Task[Any]]) -> None:
        tasks = list(connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await read_message(reader)) and await self._answer(request, reader, writer):
                pass
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # one side was killed, or the proxy is being closed
        finally:
            writer.close()

    async def _answer(self, request: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Respond to one request; returns whether the connection can be used again."""
        if request.header("upgrade"):
            return await self._tunnel(request, reader, writer)
        if request.watches:
            return await self._watch(request, writer)
        if fault := self._fault:
            return await fault(self, request, reader, writer)
        return await self.pass_on(await self.forward(request), writer)

    async def _watch(self, request: Message, writer: asyncio.StreamWriter) -> bool:
        """Pass on the events of a watch until it ends or is cut."""
        while self._hold_watches:
            await asyncio.sleep(HOLD_S)
        task = asyncio.current_task()
        assert task is not None
        self._watching.add(task)
        try:
            async with self._connected(request) as upstream:
                head = await upstream.readuntil(b"\r\n\r\n")
                writer.write(head)
                async with aclosing(self._events(upstream)) as events:
                    async for data in events:
                        if self._cut_watches:
                            self.damaged += 1
                            data = data[: len(data) // 2]
                        writer.write(data)
                        await writer.drain()
                        if self._cut_watches:
                            break
        finally:
            self._watching.discard(task)
        return False

    async def _events(self, upstream: asyncio.StreamReader) -> AsyncIterator[bytes]:
        """What a watch sends, some time after it has arrived if the watch lags."""
        arrived: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        collecting = asyncio.create_task(_collect(upstream, arrived))
        luck = self.random.random()
        try:
            while True:
                at, data = await arrived.get()
                while luck < self._lagging_share and time.monotonic() < at + self._watch_lag_s:
                    await asyncio.sleep(HOLD_S)
                if not data:
                    return
                yield data
        finally:
            collecting.cancel()

    async def _tunnel(self, request: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Pass on both directions of a connection that switches to another protocol."""
        upstream, to_upstream = await asyncio.open_connection(*self._upstream, limit=MOST_HEADER_BYTES)
        try:
            to_upstream.write(_for_upstream(request, self._upstream).encoded("Upgrade"))
            await asyncio.gather(_copy(upstream, writer), _copy(reader, to_upstream))
        finally:
            to_upstream.close()
        return False

    async def pass_on(self, answer: Message, writer: asyncio.StreamWriter) -> bool:
        writer.write(answer.encoded("keep-alive"))
        await writer.drain()
        return True

    async def forward(self, request: Message) -> Message:
        """The cluster's response; EOFError if the connection ends before it is complete."""
        async with self._connected(request) as upstream:
            answer = await read_message(upstream)
        if answer is None:
            raise EOFError("the cluster closed the connection without a response")
        self._remember(request, answer)
        return answer

    @asynccontextmanager
    async def _connected(self, request: Message) -> AsyncIterator[asyncio.StreamReader]:
        """A connection to the cluster over which the request was sent."""
        reader, writer = await asyncio.open_connection(*self._upstream, limit=MOST_HEADER_BYTES)
        try:
            writer.write(_for_upstream(request, self._upstream).encoded("close"))
            await writer.drain()
            yield reader
        finally:
            writer.close()

    def _remember(self, request: Message, answer: Message) -> None:
        if request.method != "GET":
            return
        answers, now = self._history[request.target], time.monotonic()
        answers.append((now, answer))
        while answers[0][0] < now - HISTORY_S:
            answers.popleft()

    def older_answer(self, request: Message) -> Message | None:
        """The newest recorded response to the same request that is at least `stale_s` old."""
        limit = time.monotonic() - self.stale_s
        return next((answer for at, answer in reversed(self._history[request.target]) if at < limit), None)


async def read_message(reader: asyncio.StreamReader) -> Message | None:
    """Read one request or response; None if the other side has closed the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as cut:
        if cut.partial:
            raise
        return None
    first_line, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = tuple((key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in lines))
    message = Message(first_line=first_line, headers=headers, body=b"")
    return replace(message, body=await _body(message, reader))


async def _body(message: Message, reader: asyncio.StreamReader) -> bytes:
    if message.header("transfer-encoding").lower() == "chunked":
        return b"".join([chunk async for chunk in _chunks(reader)])
    return await reader.readexactly(int(message.header("content-length") or 0))


async def _chunks(reader: asyncio.StreamReader) -> Any:
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")


def _for_upstream(request: Message, upstream: tuple[str, int]) -> Message:
    """The request for the cluster, without `Accept-Encoding`, because a fault must be able to parse the response."""
    headers = [pair for pair in request.headers if pair[0].lower() not in ("host", "accept-encoding")]
    return replace(request, headers=(("Host", f"{upstream[0]}:{upstream[1]}"), *headers))


async def _collect(upstream: asyncio.StreamReader, arrived: asyncio.Queue[tuple[float, bytes]]) -> None:
    """Read until the other side is done, with the times at which it was read. Empty data is the end."""
    data = b"begin"
    while data:
        try:
            data = await upstream.read(MOST_HEADER_BYTES)
        except OSError:
            data = b""
        arrived.put_nowait((time.monotonic(), data))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(MOST_HEADER_BYTES):
        writer.write(data)
        await writer.drain()
    writer.close()


# Faults


async def delayed(proxy: Proxy, request: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Answer some seconds later, as an overloaded server does."""
    answer = await proxy.forward(request)
    proxy.damaged += 1
    await asyncio.sleep(proxy.random.uniform(*proxy.delay_s))
    return await proxy.pass_on(answer, writer)


async def lost_writes(
    proxy: Proxy, request: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Carry out what would change the cluster, and close the connection without a response."""
    answer = await proxy.forward(request)
    if request.method == "GET":
        return await proxy.pass_on(answer, writer)
    proxy.damaged += 1
    return False


async def truncated(proxy: Proxy, request: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Cut the connection in the middle of the response."""
    whole = (await proxy.forward(request)).encoded("keep-alive")
    proxy.damaged += 1
    writer.write(whole[: proxy.random.randint(len(whole) // 4, len(whole) - 1)])
    await writer.drain()
    return False


async def trickling(proxy: Proxy, request: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Send one byte per second: no single read times out, and the response does not end."""
    whole = (await proxy.forward(request)).encoded("keep-alive")
    proxy.damaged += 1
    for byte in whole:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(proxy.trickle_pause_s)
    return True


async def unanswered(
    proxy: Proxy, request: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Accept the request and never respond. Half of the requests still reach the cluster."""
    proxy.damaged += 1
    if proxy.random.random() < 0.5:
        with suppress(OSError, EOFError):
            await proxy.forward(request)
    await reader.read()  # until the caller gives up
    return False


async def stale(proxy: Proxy, request: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Repeat a response of some seconds ago, like a cache or a lagging controller."""
    older = proxy.older_answer(request) if request.method == "GET" else None
    answer = await proxy.forward(request)
    if older:
        proxy.damaged += 1
    return await proxy.pass_on(older or answer, writer)


async def unreadable_row(
    proxy: Proxy, request: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Make one row of a list unreadable."""
    answer = await proxy.forward(request)
    changed = with_unreadable_row(answer.body, proxy.random) if request.method == "GET" else None
    if changed is not None:
        proxy.damaged += 1
        answer = replace(answer, body=changed)
    return await proxy.pass_on(answer, writer)


def with_unreadable_row(body: bytes, random: Random) -> bytes | None:
    """The body with one row changed; None if it has no rows."""
    with suppress(ValueError):
        answer = json.loads(body)
        for kind, changes in UNREADABLE.items():
            if isinstance(answer, dict) and (rows := answer.get(kind)):
                position = random.randrange(len(rows))
                rows[position] = {**rows[position], **_fitting(rows[position], changes, random)}
                return json.dumps(answer).encode()
    return None


def _fitting(row: dict[str, Any], changes: list[dict[str, Any]], random: Random) -> dict[str, Any]:
    """A change of fields that the row has; rows of the list of states have fewer fields."""
    return random.choice([change for change in changes if set(change) <= set(row)] or [{}])


UNREADABLE: dict[str, list[dict[str, Any]]] = {
    "jobs": [
        {"job_state": ["TELEPORTING"]},
        {"state": ["TELEPORTING"]},
        {"job_state": 7},
        {"nodes": "node-[001-"},
        {"start_time": {"set": True, "infinite": False, "number": "soon"}},
    ],
    "nodes": [{"name": ""}, {"name": None}, {"state": 7}, {"cpus": "many"}],
}
