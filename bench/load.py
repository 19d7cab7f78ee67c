"""Generates HTTP load at low cost: requests are prepared as bytes and sent over open connections.

A client library would spend as much per request as the server, on the same two cores. This client implements only the
HTTP/1.1 that our server uses: every response has a Content-Length.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from urllib.parse import urlsplit

RequestStream = Iterator[bytes]


@dataclass(kw_only=True)
class LoadResult:
    """The result of a load; times in seconds."""

    wall_s: float = 0.0
    times: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    def at(self, share: float) -> float:
        times = sorted(self.times)
        return times[min(len(times) - 1, int(len(times) * share))]

    def figures(self) -> dict[str, float]:
        return {
            "requests": len(self.times),
            "per_s": round(len(self.times) / self.wall_s, 1),
            **{f"p{share}_ms": round(1000 * self.at(share / 100), 2) for share in (50, 95, 99)},
        }


def build_request(method: str, path: str, token: str, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if method == "POST":
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


class LoadConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, home: str) -> LoadConnection:
        place = urlsplit(home)
        return cls(*await asyncio.open_connection(place.hostname, place.port, limit=2**26))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        return int(head[9:12]), await self.reader.readexactly(length)


def run_load(
    home: str,
    requests: RequestStream,
    *,
    connections: int,
    count: int,
    per_s: float = 0.0,
    check: Callable = lambda *_: None,
) -> LoadResult:
    """Send the requests, as fast as they are answered or at a fixed rate; `check` gets each response."""
    return asyncio.run(_run_load(home, islice(requests, count), connections, per_s, check))


async def _run_load(home: str, requests: RequestStream, connections: int, per_s: float, check: Callable) -> LoadResult:
    lines = [await LoadConnection.to(home) for _ in range(connections)]
    measured = LoadResult()
    began = time.perf_counter()

    async def send_requests(line: LoadConnection) -> None:
        for request in requests:
            if per_s:
                # The schedule is fixed, however late earlier responses were
                due = began + len(measured.times) / per_s
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            sent = time.perf_counter()
            status, body = await line.ask(request)
            measured.times.append(time.perf_counter() - sent)
            measured.statuses[status] += 1
            check(status, body)

    await asyncio.gather(*(send_requests(line) for line in lines))
    measured.wall_s = time.perf_counter() - began
    for line in lines:
        line.writer.close()
    return measured
