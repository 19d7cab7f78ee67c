"""Outgoing calls: one deadline for the whole call, no forbidden address, and a limit on the size of the response.

httpx limits each read and each write, so a server that sends one byte per second blocks a caller forever. Here every
operation on the socket gets the time that remains until the deadline, including name resolution, headers and the TLS
handshake, and several requests may share one deadline. Each address is checked after the name was resolved, and the
connection is opened to the address that was checked, so a name that resolves differently a moment later gains nothing.
"""

from __future__ import annotations

import ipaddress
import os
import queue
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any
from urllib.request import getproxies

import httpcore
import httpx

from acmeweb.common.special_addresses import is_metadata_service

Resolve = Callable[[str, int], Sequence[str]]
CheckAddress = Callable[[str, str], object]  # host and one of its addresses; raises an error to refuse it

MAX_RESPONSE_BYTES = 64 << 20
NO_CACHE_HEADERS = {"Cache-Control": "no-cache"}  # makes caches in between ask the cluster
MAX_CONNECTIONS = 100
KEEPALIVE_EXPIRY_S = 5.0
# The request was certainly not sent
NOT_SENT_ERRORS = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.LocalProtocolError,
    httpx.UnsupportedProtocol,
)


_before_calls: list[Callable[[], None]] = []


def before_each_call(work: Callable[[], None]) -> None:
    """From now on, do this before each outgoing call, in the thread that makes it."""
    if work not in _before_calls:
        _before_calls.append(work)


def prepare_call() -> None:
    """Must be called before each outgoing call that does not go through this module."""
    for work in _before_calls:
        work()


def resolve(host: str, port: int) -> list[str]:
    """Return the IP addresses of a host."""
    return [str(row[4][0]) for row in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def refuse_metadata_service(host: str, address: str) -> None:
    if is_metadata_service(address):
        raise httpcore.ConnectError(f"{host} has the address {address} of a metadata service, which Acme never calls")


class ResponseTooLarge(httpx.TransportError):
    pass


class RequestDeadline:
    """A point in time on the monotonic clock, shared by all requests of one call to a cluster."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.at = time.monotonic() + seconds

    @property
    def remaining_s(self) -> float:
        return self.at - time.monotonic()

    @property
    def over(self) -> bool:
        return self.remaining_s <= 0


class HttpClient:
    """Keeps connections to one address. Raises httpx.HTTPError if there is no complete response.

    `server_name` is the name expected in the server's certificate, if it differs from the address.
    """

    def __init__(
        self,
        address: str,
        headers: Mapping[str, str],
        *,
        largest: int = MAX_RESPONSE_BYTES,
        ssl_context: ssl.SSLContext | None = None,
        server_name: str = "",
    ) -> None:
        base, socket_path = (
            ("http://slurm", address.removeprefix("unix://")) if address.startswith("unix://") else (address, None)
        )
        self._largest = largest
        self._transport = DeadlineTransport(socket_path=socket_path, ssl_context=ssl_context, server_name=server_name)
        self._client = httpx.Client(
            base_url=base,
            headers={**NO_CACHE_HEADERS, "Accept-Encoding": "identity", **headers},
            transport=self._transport,
            trust_env=False,
        )

    def request(
        self,
        method: str,
        path: str,
        deadline: RequestDeadline,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send a request and return the complete response. `headers` override those of the client.

        PoolTimeout means that the deadline passed before anything was sent.
        """
        if deadline.over:
            raise httpx.PoolTimeout(f"no response within {deadline.seconds:g} s")
        extensions = {"deadline": deadline.at}
        with self._client.stream(method, path, json=body, headers=headers, extensions=extensions) as response:
            content = b"".join(self._limit_size(response.iter_raw()))
        return httpx.Response(response.status_code, content=content, request=response.request)

    def open_stream(self, path: str, deadline: RequestDeadline, headers: Mapping[str, str]) -> httpx.Response:
        """Send a GET request and return the response before its body. The caller reads it with `iter_raw`, closes it,
        and limits its size. The deadline covers the body too."""
        request = self._client.build_request("GET", path, headers=headers, extensions={"deadline": deadline.at})
        return self._client.send(request, stream=True)

    def close(self) -> None:
        """Requests of other threads go on. New ones get a ConnectError."""
        self._transport.close()

    def _limit_size(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        size = 0
        for chunk in chunks:
            size += len(chunk)
            if size > self._largest:
                raise ResponseTooLarge(f"the response is larger than {self._largest >> 20} MiB")
            yield chunk


class DeadlineTransport(httpx.BaseTransport):
    """httpx over a connection pool whose timeouts are points in time: the "deadline" extension of each request. Without
    one, httpx's timeout is the time for the whole request.

    While other threads wait for responses, `close` leaves all connections open; the last of these threads closes them.
    A descriptor that one thread closes can become a pipe or a database connection at once, and OpenSSL in the other
    thread would read from it, or write an alert to it. The pool keeps all idle connections until they expire for the
    same reason: httpcore would close one that another thread has got and not used yet.
    """

    def __init__(
        self,
        *,
        socket_path: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        server_name: str = "",
        check: CheckAddress = refuse_metadata_service,
        resolve: Resolve = resolve,
    ) -> None:
        self._lock = threading.Lock()
        self._open_requests = 0  # their response has not come, or was not closed
        self._closed = False
        self._extensions = {"sni_hostname": server_name} if server_name else {}
        self._pool = httpcore.ConnectionPool(
            ssl_context=ssl_context,
            uds=socket_path,
            network_backend=_DeadlineNetwork(check, resolve),
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=MAX_CONNECTIONS,
            keepalive_expiry=KEEPALIVE_EXPIRY_S,
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        prepare_call()
        at = request.extensions.get("deadline") or time.monotonic() + request.extensions["timeout"]["read"]
        url = httpcore.URL(
            scheme=request.url.raw_scheme,
            host=request.url.raw_host,
            port=request.url.port,
            target=request.url.raw_path,
        )
        timeouts = {"connect": at, "read": at, "write": at, "pool": max(at - time.monotonic(), 0)}
        outgoing = httpcore.Request(
            method=request.method,
            url=url,
            headers=request.headers.raw,
            content=request.stream,
            extensions={"timeout": timeouts, **self._extensions},
        )
        self._begin_request()
        try:
            answer = _translate_errors(lambda: self._pool.handle_request(outgoing))
        except BaseException:
            self._end_request()
            raise
        stream = _ResponseStream(answer, self._end_request)
        extensions = {"network_stream": answer.extensions["network_stream"]}
        return httpx.Response(answer.status, headers=answer.headers, stream=stream, extensions=extensions)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._open_requests:
                return
        self._pool.close()

    def _begin_request(self) -> None:
        with self._lock:
            if self._closed:
                raise httpx.ConnectError("the client was closed")
            self._open_requests += 1

    def _end_request(self) -> None:
        with self._lock:
            self._open_requests -= 1
            if self._open_requests or not self._closed:
                return
        self._pool.close()


def new_client() -> httpx.Client:
    """A client for servers that the environment names, with its proxies and certificates. The timeout of a request is
    one for the whole request; behind a proxy it is httpx's own, for each read."""
    if {"http", "https", "all"}.intersection(getproxies()):
        return httpx.Client(event_hooks={"request": [lambda _: prepare_call()]})
    return httpx.Client(transport=DeadlineTransport(ssl_context=httpx.create_ssl_context()))


def copy_of_socket(plain: socket.socket) -> socket.socket:
    """Any thread may shut the copy down: its descriptor stays that of this connection when the other one is closed."""
    return socket.socket(fileno=os.dup(plain.fileno()))


def shut_down(plain: socket.socket) -> None:
    """Wake a thread that reads the connection. When its descriptors are closed, the other side gets a reset: its writes
    fail at once, while after an orderly end they could wait for minutes."""
    with suppress(OSError):
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        plain.shutdown(socket.SHUT_RDWR)


class _ResponseStream(httpx.SyncByteStream):
    def __init__(self, answer: httpcore.Response, on_close: Callable[[], None]) -> None:
        self._answer = answer
        self._on_close: Callable[[], None] | None = on_close

    def __iter__(self) -> Iterator[bytes]:
        chunks = self._answer.iter_stream()
        while (chunk := _translate_errors(lambda: next(chunks, None))) is not None:
            yield chunk

    def close(self) -> None:
        on_close, self._on_close = self._on_close, None
        try:
            self._answer.close()
        finally:
            if on_close:
                on_close()


def _translate_errors(call: Callable[[], Any]) -> Any:
    """Run the call and raise errors of httpcore as the httpx exceptions of the same name."""
    try:
        return call()
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, httpcore.PoolTimeout) as error:
        kind: type[httpx.TransportError] = getattr(httpx, type(error).__name__, httpx.TransportError)
        raise kind(str(error)) from error
    except httpcore.UnsupportedProtocol as error:
        raise httpx.UnsupportedProtocol(str(error)) from error


def _remaining_s(at: float | None, error: type[Exception]) -> float:
    remaining = (at or 0.0) - time.monotonic()
    if remaining <= 0:
        raise error("the deadline passed")
    return remaining


class _DeadlineNetwork(httpcore.NetworkBackend):
    """Opens sockets whose `timeout` is the point in time at which to give up."""

    def __init__(self, check: CheckAddress, resolve: Resolve) -> None:
        self._plain, self._check, self._resolve = httpcore.SyncBackend(), check, resolve

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to the first address of the host that works; all attempts share the one deadline. One forbidden
        address is enough to refuse the host."""
        last_error: Exception = httpcore.ConnectError(f"{host} has no address")
        addresses = resolve_in_time(self._resolve, host, port, _remaining_s(timeout, httpcore.ConnectTimeout))
        for address in addresses:
            self._check(host, address)
        for address in addresses:
            remaining = _remaining_s(timeout, httpcore.ConnectTimeout)
            try:
                return _DeadlineStream(self._plain.connect_tcp(address, port, remaining, local_address, socket_options))
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                last_error = error
        raise last_error

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        remaining = _remaining_s(timeout, httpcore.ConnectTimeout)
        return _DeadlineStream(self._plain.connect_unix_socket(path, remaining, socket_options))


def resolve_in_time(resolve: Resolve, host: str, port: int, seconds: float) -> list[str]:
    """Return the addresses, or raise httpcore.ConnectError or ConnectTimeout. The system's resolver has no limit of
    ours, so a thread waits for it and may be left behind."""
    if _is_address(host):
        return [host]
    answers: queue.SimpleQueue[Sequence[str] | Exception] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            answers.put(resolve(host, port))
        except (OSError, UnicodeError) as error:
            answers.put(error)

    threading.Thread(target=look_up, name="name resolution", daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise httpcore.ConnectTimeout(f"{host} was not resolved in time") from None
    if isinstance(answer, Exception):
        raise httpcore.ConnectError(f"{host} cannot be resolved ({answer})") from answer
    return list(dict.fromkeys(answer))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def open_socket(host: str, port: int, deadline: RequestDeadline) -> socket.socket:
    """Connect to a server of a cluster, for another protocol than HTTP. Raises OSError."""
    prepare_call()
    try:
        stream = _DeadlineNetwork(refuse_metadata_service, resolve).connect_tcp(host, port, deadline.at)
    except httpcore.ConnectTimeout as error:
        raise TimeoutError(str(error)) from error
    except httpcore.ConnectError as error:
        raise ConnectionError(str(error)) from error
    plain: socket.socket = stream.get_extra_info("socket")
    return plain


class _DeadlineStream(httpcore.NetworkStream):
    def __init__(self, plain: httpcore.NetworkStream) -> None:
        self._plain = plain

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._plain.read(max_bytes, _remaining_s(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send the whole buffer. The plain stream would restart the timeout after each piece that it sends."""
        plain, unsent = self._plain.get_extra_info("socket"), memoryview(buffer)
        try:
            while unsent:
                plain.settimeout(_remaining_s(timeout, httpcore.WriteTimeout))
                unsent = unsent[plain.send(unsent) :]
        except TimeoutError as error:
            raise httpcore.WriteTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.WriteError(str(error)) from error

    def close(self) -> None:
        self._plain.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> _DeadlineStream:
        remaining = _remaining_s(timeout, httpcore.ConnectTimeout)
        return _DeadlineStream(self._plain.start_tls(ssl_context, server_hostname, remaining))

    def get_extra_info(self, info: str) -> Any:
        return self._plain.get_extra_info(info)


def fetch_text(address: str, *, timeout_s: float, largest: int) -> str:
    """Fetch one page over a new connection. Raises httpx.HTTPError or httpx.InvalidURL."""
    with closing(HttpClient(address, {}, largest=largest)) as client:
        return client.request("GET", address, RequestDeadline(timeout_s)).raise_for_status().text
