"""HTTP to the server: credentials, pages, retries, and errors that are one sentence each.

AcmeError       exit code
├── Refused     1    the server understood and said no
├── Unreachable 3    no answer, or none that is Acme's
└── NotAllowed  4    no valid token, or one that does not reach
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from acme_client import config

MAX_TRIES = 4
MAX_RETRY_WAIT_S = 30
PAGE_SIZE = 500
STREAM_TIMEOUT_S = 60  # the server says every 15 s that it is still there


class AcmeError(Exception):
    exit_code = 1


class Refused(AcmeError):
    def __init__(self, said: str, status: int, errors: Mapping[str, Any] | None = None) -> None:
        super().__init__(said)
        self.status, self.errors = status, dict(errors or {})


class Unreachable(AcmeError):
    exit_code = 3


class NotAllowed(AcmeError):
    exit_code = 4


class Acme:
    """One server. `transport` is for tests and for those who need a proxy of their own."""

    def __init__(self, url: str, token: str, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        self.http = httpx.Client(
            base_url=f"{self.url}/api/v1/",
            headers={"Authorization": f"Bearer {token}", "User-Agent": "acme-client"},
            timeout=httpx.Timeout(60, connect=10),
            transport=transport,
        )

    @classmethod
    def configured(cls, transport: httpx.BaseTransport | None = None) -> Acme:
        found = config.load()
        if not found.url or not found.token:
            raise NotAllowed("No server is configured: run acme login, or set ACME_URL and ACME_TOKEN.")
        return cls(found.url, found.token, transport)

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        return self._send_request("GET", path, params=query)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """With a key, so that a retry after a lost answer does the work once."""
        return self._send_request("POST", path, json=dict(body or {}), headers={"Idempotency-Key": str(uuid.uuid4())})

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._send_request("PATCH", path, json=dict(body))

    def pages(self, path: str, query: Mapping[str, Any], most: int) -> Iterator[dict[str, Any]]:
        """Rows of a list, page after page, at most so many."""
        answer = self.get(path, {**query, "limit": max(1, min(PAGE_SIZE, most))})
        while True:
            yield from answer["results"][:most]
            most -= len(answer["results"])
            if not answer["next"] or most <= 0:
                return
            # Only the query of the link is followed: our token goes to no other address than the configured one
            answer = self._send_request("GET", f"{path}?{urlsplit(answer['next']).query}")

    def raw(self, path: str, query: Mapping[str, Any] | None = None) -> httpx.Response:
        """An answer that is no JSON, such as a log."""
        with self._stream_response(path, query, {}, None) as answer:
            answer.read()
            return answer

    @contextmanager
    def _stream_response(
        self, path: str, query: Mapping[str, Any] | None, headers: Mapping[str, str], silence_s: float | None
    ) -> Iterator[httpx.Response]:
        more = {} if silence_s is None else {"timeout": httpx.Timeout(silence_s, connect=10)}
        try:
            with self.http.stream("GET", path, params=query, headers=headers, **more) as answer:  # type: ignore[arg-type]
                if not answer.is_success:
                    answer.read()
                    _parse_response(answer, self.url)
                yield answer
        except httpx.TransportError as error:
            raise Unreachable(f"{self.url} does not answer ({_transport_error_text(error)}).") from None

    def events(self, path: str, query: Mapping[str, Any], at: int | None = None) -> Iterator[ServerSentEvent]:
        """Server-sent events until `end`; a connection that breaks or is over is taken up where it ended."""
        fails = 0
        while True:
            headers = {"Accept": "text/event-stream"} | ({} if at is None else {"Last-Event-ID": str(at)})
            try:
                with self._stream_response(path, query, headers, STREAM_TIMEOUT_S) as answer:
                    for event in parse_events(answer.iter_bytes()):
                        fails = 0
                        at = event.id if event.id is not None else at
                        if event.name == "reconnect":
                            break
                        yield event
                        if event.name == "end":
                            return
                    else:
                        time.sleep(0.5)  # it broke off: a proxy or a restart
            except Unreachable:
                fails += 1
                if fails >= MAX_TRIES:
                    raise
                time.sleep(min(2**fails, MAX_RETRY_WAIT_S))

    def _send_request(self, method: str, path: str, **more: Any) -> Any:
        for left in range(MAX_TRIES - 1, -1, -1):
            try:
                answer = self.http.request(method, path, **more)
            except httpx.TransportError as error:
                if not left:
                    raise Unreachable(f"{self.url} does not answer ({_transport_error_text(error)}).") from None
                time.sleep(0.2 * (MAX_TRIES - left))
                continue
            wait = _retry_wait_s(answer)
            if wait is None or not left:
                return _parse_response(answer, self.url)
            time.sleep(wait)
        raise AssertionError("unreachable")


@dataclass(frozen=True)
class ServerSentEvent:
    name: str
    data: str
    id: int | None


def parse_events(chunks: Iterable[bytes]) -> Iterator[ServerSentEvent]:
    """Lines end at a newline and nowhere else: what a job printed may hold what Python takes for other line ends."""
    rest = b""
    fields: list[tuple[str, str]] = []
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if not line:
                if fields:
                    yield _build_event(fields)
                fields = []
            elif not line.startswith(b":"):
                name, _, value = line.decode("utf-8", errors="replace").partition(":")
                fields.append((name, value.removeprefix(" ")))


def _build_event(fields: list[tuple[str, str]]) -> ServerSentEvent:
    last = dict(fields)
    data = "\n".join(value for name, value in fields if name == "data")
    return ServerSentEvent(last.get("event", ""), data, int(last["id"]) if last.get("id", "").isdigit() else None)


def _transport_error_text(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__


def _retry_wait_s(answer: httpx.Response) -> float | None:
    """Seconds until a retry is worthwhile; None when it is not."""
    if answer.status_code in (502, 503, 504):
        return 1.0
    after = answer.headers.get("Retry-After", "")
    if answer.status_code in (409, 429) and after.isdigit() and int(after) <= MAX_RETRY_WAIT_S:
        return float(after)
    return None


def _parse_response(answer: httpx.Response, url: str) -> Any:
    try:
        said = answer.json()
    except ValueError:
        raise Unreachable(f"{url} answers, but not as Acme does (status {answer.status_code}).") from None
    if answer.is_success:
        return said
    sentence = format_error_body(said)
    if answer.status_code in (401, 403):
        raise NotAllowed(sentence)
    if answer.status_code >= 500:
        raise Unreachable(f"{url} has a problem of its own (status {answer.status_code}).")
    raise Refused(sentence, answer.status_code, said if isinstance(said, dict) else None)


def format_error_body(errors: Any) -> str:
    """`{"nodes": ["is …"]}` as `nodes: is …`."""
    if not isinstance(errors, dict):
        return "The server refused it."
    parts = []
    for field, said in errors.items():
        words = " ".join(map(str, said)) if isinstance(said, list) else str(said)
        parts.append(words if field in ("detail", "jobs") else f"{field}: {words}")
    return "; ".join([*(part.removesuffix(".") for part in parts[:-1]), *parts[-1:]])
