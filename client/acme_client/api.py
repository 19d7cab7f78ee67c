"""HTTP client of the REST API: credentials, pagination, retries, and errors that are one sentence each.

AcmeError       exit code
├── Refused     1    the server rejected the request
├── Unreachable 3    no response, or not a response of Acme
└── NotAllowed  4    missing, invalid or insufficient token
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
STREAM_TIMEOUT_S = 60  # the server sends a comment every 15 s


class AcmeError(Exception):
    """Base of all errors; `exit_code` is that of the command line."""

    exit_code = 1


class Refused(AcmeError):
    def __init__(self, message: str, status: int, errors: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status, self.errors = status, dict(errors or {})


class Unreachable(AcmeError):
    exit_code = 3


class NotAllowed(AcmeError):
    exit_code = 4


class Acme:
    """Client of one server. `transport` is for tests and for custom proxies."""

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
        settings = config.load()
        if not settings.url or not settings.token:
            raise NotAllowed("No server is configured. Run acme login, or set ACME_URL and ACME_TOKEN.")
        return cls(settings.url, settings.token, transport)

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        return self._send_request("GET", path, params=query)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a POST with an idempotency key, so that a retry after a lost response has no second effect."""
        return self._send_request("POST", path, json=dict(body or {}), headers={"Idempotency-Key": str(uuid.uuid4())})

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._send_request("PATCH", path, json=dict(body))

    def pages(self, path: str, query: Mapping[str, Any], limit: int) -> Iterator[dict[str, Any]]:
        """Yield at most `limit` rows of a list, page after page."""
        response = self.get(path, {**query, "limit": max(1, min(PAGE_SIZE, limit))})
        while True:
            yield from response["results"][:limit]
            limit -= len(response["results"])
            if not response["next"] or limit <= 0:
                return
            # Use only the query of the link, so that the token is never sent to another host
            response = self._send_request("GET", f"{path}?{urlsplit(response['next']).query}")

    def raw(self, path: str, query: Mapping[str, Any] | None = None) -> httpx.Response:
        """Return a response that is not JSON, such as a log."""
        with self._stream_response(path, query, {}, None) as response:
            response.read()
            return response

    @contextmanager
    def _stream_response(
        self, path: str, query: Mapping[str, Any] | None, headers: Mapping[str, str], silence_s: float | None
    ) -> Iterator[httpx.Response]:
        more = {} if silence_s is None else {"timeout": httpx.Timeout(silence_s, connect=10)}
        try:
            with self.http.stream("GET", path, params=query, headers=headers, **more) as response:  # type: ignore[arg-type]
                if not response.is_success:
                    response.read()
                    _parse_response(response, self.url)
                yield response
        except httpx.TransportError as error:
            raise Unreachable(f"{self.url} is not responding ({_transport_error_text(error)}).") from None

    def events(self, path: str, query: Mapping[str, Any], at: int | None = None) -> Iterator[ServerSentEvent]:
        """Yield server-sent events until `end`; reconnect where a broken or finished connection stopped."""
        failures = 0
        while True:
            headers = {"Accept": "text/event-stream"} | ({} if at is None else {"Last-Event-ID": str(at)})
            try:
                with self._stream_response(path, query, headers, STREAM_TIMEOUT_S) as response:
                    for event in parse_events(response.iter_bytes()):
                        failures = 0
                        at = event.id if event.id is not None else at
                        if event.name == "reconnect":
                            break
                        yield event
                        if event.name == "end":
                            return
                    else:
                        time.sleep(0.5)  # the connection broke: a proxy or a restart
            except Unreachable:
                failures += 1
                if failures >= MAX_TRIES:
                    raise
                time.sleep(min(2**failures, MAX_RETRY_WAIT_S))

    def _send_request(self, method: str, path: str, **more: Any) -> Any:
        for retries_left in range(MAX_TRIES - 1, -1, -1):
            try:
                response = self.http.request(method, path, **more)
            except httpx.TransportError as error:
                if not retries_left:
                    raise Unreachable(f"{self.url} is not responding ({_transport_error_text(error)}).") from None
                time.sleep(0.2 * (MAX_TRIES - retries_left))
                continue
            wait = _retry_wait_s(response)
            if wait is None or not retries_left:
                return _parse_response(response, self.url)
            time.sleep(wait)
        raise AssertionError("unreachable")


@dataclass(frozen=True)
class ServerSentEvent:
    name: str
    data: str
    id: int | None


def parse_events(chunks: Iterable[bytes]) -> Iterator[ServerSentEvent]:
    """Parse server-sent events. Only \\n ends a line: job output may contain other characters that Python splits at."""
    remainder = b""
    fields: list[tuple[str, str]] = []
    for chunk in chunks:
        *lines, remainder = (remainder + chunk).split(b"\n")
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


def _retry_wait_s(response: httpx.Response) -> float | None:
    """Return the seconds until a retry makes sense; None if it does not."""
    if response.status_code in (502, 503, 504):
        return 1.0
    after = response.headers.get("Retry-After", "")
    if response.status_code in (409, 429) and after.isdigit() and int(after) <= MAX_RETRY_WAIT_S:
        return float(after)
    return None


def _parse_response(response: httpx.Response, url: str) -> Any:
    try:
        body = response.json()
    except ValueError:
        raise Unreachable(f"{url} did not return JSON (status {response.status_code}). Is it an Acme server?") from None
    if response.is_success:
        return body
    sentence = format_error_body(body)
    if response.status_code in (401, 403):
        raise NotAllowed(sentence)
    if response.status_code >= 500:
        raise Unreachable(f"{url} failed with status {response.status_code}. Check the server's log.")
    raise Refused(sentence, response.status_code, body if isinstance(body, dict) else None)


def format_error_body(errors: Any) -> str:
    """`{"nodes": ["is …"]}` as `nodes: is …`."""
    if not isinstance(errors, dict):
        return "The server refused the request."
    parts = []
    for field, body in errors.items():
        words = " ".join(map(str, body)) if isinstance(body, list) else str(body)
        parts.append(words if field in ("detail", "jobs") else f"{field}: {words}")
    return "; ".join([*(part.removesuffix(".") for part in parts[:-1]), *parts[-1:]])
