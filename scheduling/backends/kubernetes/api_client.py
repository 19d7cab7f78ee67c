"""Requests to an API server: single objects, lists in pages, watches, and commands.

httpx over JSON, because Acme needs few kinds of requests, and one deadline for each as for Slurm. Several threads may
send requests at once, each over a connection of its own. A command is never repeated here: its error says whether it
may have been carried out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import partial
from typing import Any
from urllib.parse import urlencode

import httpx

from acmeweb.common.http_client import NOT_SENT_ERRORS, HttpClient, RequestDeadline

from ..base import ClusterUnreachable, OutcomeUnknown, RequestTimedOut
from .api_errors import ApiRefusal, command_error
from .connection.access import Connection, KubernetesAddress, ReadFile, load_connection
from .fields import mappings_at, text_at
from .watch_stream import WatchStream

PAGE_SIZE = 500  # as kubectl; objects may have 128 KiB on average until a page exceeds MAX_RESPONSE_BYTES
WATCH_S = 280  # the server ends the watch then, before anything in between does
WATCH_GRACE_S = 20
MAX_ERROR_BYTES = 64 << 10
JSON, MERGE_PATCH, JSON_PATCH = (f"application/{name}json" for name in ("", "merge-patch+", "json-patch+"))


class ApiClient:
    """One API server, with the credentials that its files contain now."""

    def __init__(
        self, address: KubernetesAddress, read_file: ReadFile, timeout_s: float, *, plain_http: bool = False
    ) -> None:
        self._timeout_s = timeout_s
        self._load_connection = partial(load_connection, address, read_file, plain_http=plain_http)
        self._connection = self._load_connection()
        self._client = self._new_client()
        self.generation = 0  # increases when the connection changes, which ends all watches

    @property
    def server(self) -> str:
        return self._connection.server

    @property
    def connection(self) -> Connection:
        """The server and the credentials as they were last read."""
        return self._connection

    def new_deadline(self) -> RequestDeadline:
        return RequestDeadline(self._timeout_s)

    def refresh_credentials(self) -> None:
        """Read the files again. Anything but a new token needs new connections."""
        fresh, before = self._load_connection(), self._connection
        self._connection = fresh
        if fresh.with_token("") != before.with_token(""):
            self._client.close()
            self._client = self._new_client()
            self.generation += 1

    def get(self, path: str, deadline: RequestDeadline, **query: str | int) -> Mapping[str, Any]:
        """Raises ClusterUnreachable, or ApiRefusal if the API server answered with an error."""
        try:
            response = self._request(_with_query(path, query), deadline)
        except httpx.HTTPError as error:
            raise ClusterUnreachable(f"{self.server}: {self._error_text(error)}") from error
        answer = _json_object(response)
        if response.is_success and answer is not None:
            return answer
        raise self._refusal(response.status_code, answer)

    def read_start(self, path: str, deadline: RequestDeadline, largest: int, **query: str | int) -> bytes:
        """The first bytes of a response that is not JSON, at most `largest`. Raises as `get` does.

        With follow=true, what the response has until the deadline.
        """
        target = _with_query(path, query)
        try:
            with closing(self._open_stream(target, deadline)) as response:
                is_followed = response.is_success and "follow" in query
                limit = largest if response.is_success else MAX_ERROR_BYTES
                content = _first_bytes(response.iter_raw(), limit, ends_late=is_followed)
        except httpx.HTTPError as error:
            raise ClusterUnreachable(f"{self.server}: {self._error_text(error)}") from error
        if response.is_success:
            return content
        raise self._refusal(response.status_code, _json_object(httpx.Response(200, content=content)))

    def _request(self, target: str, deadline: RequestDeadline) -> httpx.Response:
        """Send the request again if the server closed a kept connection at the moment it was used. Reads may repeat."""
        try:
            return self._client.request("GET", target, deadline, headers=self._headers)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            return self._client.request("GET", target, deadline, headers=self._headers)

    def _open_stream(self, target: str, deadline: RequestDeadline) -> httpx.Response:
        headers = {**self._headers, "Accept": "*/*"}
        try:
            return self._client.open_stream(target, deadline, headers)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            return self._client.open_stream(target, deadline, headers)

    def command(
        self,
        method: str,
        path: str,
        deadline: RequestDeadline,
        body: object = None,
        content_type: str = JSON,
        **query: str,
    ) -> Mapping[str, Any]:
        """Send a command once. Raises ClusterUnreachable, OutcomeUnknown, or CommandRefused with the status."""
        headers = {**self._headers, "Content-Type": content_type}
        try:
            response = self._client.request(method, _with_query(path, query), deadline, body, headers)
        except NOT_SENT_ERRORS as error:
            raise ClusterUnreachable(f"{self.server}: {self._error_text(error)}") from error
        except httpx.TimeoutException as error:
            raise RequestTimedOut(f"{self.server}: {self._error_text(error)} after the request was sent") from error
        except httpx.HTTPError as error:
            raise OutcomeUnknown(f"{self.server}: {self._error_text(error)} after the request was sent") from error
        answer = _json_object(response)
        if not response.is_success:
            raise command_error(self.server, response.status_code, answer)
        if answer is None:
            raise OutcomeUnknown(f"{self.server} accepted a command, but its response is not JSON")
        return answer

    def list_page(
        self, path: str, deadline: RequestDeadline, after: str, selector: str = ""
    ) -> tuple[list[Mapping[str, Any]], str, str]:
        """One page of a collection: its items, the token of the next page (empty: this is the last), its version."""
        query: dict[str, str | int] = {
            "limit": PAGE_SIZE,
            **_selected(selector),
            **({"continue": after} if after else {}),
        }
        page = self.get(path, deadline, **query)
        version = text_at(page, "metadata", "resourceVersion")
        if not version:
            raise ClusterUnreachable(f"{self.server}: the list {path} has no resourceVersion")
        return mappings_at(page, "items"), text_at(page, "metadata", "continue", largest=10_000), version

    def current_version(self, deadline: RequestDeadline) -> str:
        """The version of the cluster's state now, from its storage. Also shows that Acme may read."""
        return text_at(self.get("/api/v1/nodes", deadline, limit=1), "metadata", "resourceVersion")

    def watch(self, path: str, resource_version: str, selector: str = "") -> WatchStream:
        """Watch a collection from this version on, with bookmarks."""
        query: dict[str, str | int] = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": WATCH_S}
        query |= _selected(selector)
        target = _with_query(path, {**query, "resourceVersion": resource_version})
        return WatchStream(self._client, target, self._headers, RequestDeadline(WATCH_S + WATCH_GRACE_S))

    def refused_watch(self, stream: WatchStream) -> ApiRefusal | ClusterUnreachable:
        """The error of a watch that did not begin."""
        if stream.status is not None:
            return ApiRefusal(f"{self.server}: the watch was answered with HTTP {stream.status}", stream.status)
        return ClusterUnreachable(f"{self.server}: {stream.error or f'no response within {self._timeout_s:g} s'}")

    def close(self) -> None:
        self._client.close()

    @property
    def _headers(self) -> dict[str, str]:
        return {"Accept": "application/json", **self._connection.headers}

    def _new_client(self) -> HttpClient:
        secure = self._connection.server.startswith("https://")
        context = self._connection.ssl_context() if secure else None
        return HttpClient(self._connection.server, {}, ssl_context=context, server_name=self._connection.server_name)

    def _error_text(self, error: httpx.HTTPError) -> str:
        if isinstance(error, httpx.TimeoutException):
            return f"no complete response within {self._timeout_s:g} s"
        return str(error) or type(error).__name__

    def _refusal(self, status: int, answer: Mapping[str, Any] | None) -> ApiRefusal:
        message = text_at(answer, "message") or "the response is not JSON"
        return ApiRefusal(f"{self.server}: HTTP {status}: {message}", status)


def _selected(selector: str) -> dict[str, str]:
    return {"labelSelector": selector} if selector else {}


def _with_query(path: str, query: Mapping[str, str | int]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _first_bytes(chunks: Iterable[bytes], largest: int, *, ends_late: bool) -> bytes:
    content = bytearray()
    try:
        for chunk in chunks:
            content += chunk
            if len(content) >= largest:
                break
    except httpx.ReadTimeout:
        if not ends_late:
            raise
    return bytes(content[:largest])


def _json_object(response: httpx.Response) -> Mapping[str, Any] | None:
    try:
        answer = response.json()
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, Mapping) else None
