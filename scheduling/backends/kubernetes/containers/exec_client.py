"""Runs one command in a container, as `kubectl exec` does: over a WebSocket to the API server.

The protocol is v4.channel.k8s.io: the first byte of each message says which stream it belongs to, and the last message
has the exit status. Everything that arrives is untrusted: frames and output are bounded, and one deadline covers the
whole command. Redirects are not followed.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from websockets.exceptions import InvalidHandshake, InvalidMessage, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from acmeweb.common.http_client import RequestDeadline, copy_of_socket, open_socket, shut_down

from ...base import ClusterUnreachable, OutcomeUnknown, RequestTimedOut
from ..api_errors import ApiRefusal
from ..connection.access import Connection
from ..fields import mapping_at, mappings_at, text_at

PROTOCOL = Subprotocol("v4.channel.k8s.io")
STDOUT, STDERR, STATUS = 1, 2, 3
MAX_FRAME_BYTES = 1 << 20  # kubelets send at most 32 KiB
MAX_OUTPUT_BYTES = 64 << 10  # of each stream; what follows is dropped
MAX_DROPPED_BYTES = 8 << 20  # a command that prints more is not one of ours
MAX_STATUS_BYTES = 64 << 10
CLOSE_S = 0.5


@dataclass(frozen=True, kw_only=True)
class ExecResult:
    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True, kw_only=True)
class ContainerPlace:
    """Which container of which pod."""

    namespace: str
    pod: str
    container: str


class ExecClient:
    """Commands over one connection each, all with the same credentials. Threads may share it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        secure = connection.server.startswith("https://")
        self._context = connection.ssl_context() if secure else None

    def run(self, place: ContainerPlace, command: Sequence[str], deadline: RequestDeadline) -> ExecResult:
        """Run the command. Raises ApiRefusal or ClusterUnreachable if it certainly did not begin, otherwise
        OutcomeUnknown."""
        with self._opened(place, command, deadline) as websocket:
            try:
                return _read_result(websocket, deadline)
            except TimeoutError:
                raise RequestTimedOut(self._text(f"a command did not end within {deadline.seconds:g} s")) from None
            except (WebSocketException, OSError, EOFError) as error:
                raise OutcomeUnknown(self._text(f"the answer of a command was lost: {_one_line(error)}")) from error
            except ValueError as error:
                raise OutcomeUnknown(self._text(str(error))) from error

    @contextmanager
    def _opened(
        self, place: ContainerPlace, command: Sequence[str], deadline: RequestDeadline
    ) -> Iterator[ClientConnection]:
        websocket = self._open(place, command, deadline)
        try:
            yield websocket
        finally:
            websocket.close_socket()  # without a closing handshake, which the other side may never answer

    def _open(self, place: ContainerPlace, command: Sequence[str], deadline: RequestDeadline) -> ClientConnection:
        try:
            return connect(
                f"ws{self._connection.server.removeprefix('http')}{_path(place, command)}",
                sock=_open_socket(self._connection.server, deadline),  # with a socket, redirects are not followed
                ssl=self._context,
                server_hostname=(self._connection.server_name or None) if self._context else None,
                subprotocols=[PROTOCOL],
                additional_headers=self._connection.headers,
                user_agent_header="acme",
                compression=None,
                proxy=None,
                open_timeout=max(deadline.remaining_s, 0.001),
                close_timeout=CLOSE_S,
                ping_interval=None,
                max_size=MAX_FRAME_BYTES,
                legacy=True,
                create_connection=_ClientConnection,
            )
        except InvalidStatus as error:
            raise self._refusal(error) from None
        except InvalidMessage as error:
            raise ClusterUnreachable(self._text(f"no answer of an API server: {_one_line(error)}")) from error
        except TimeoutError:
            raise ClusterUnreachable(self._text(f"no connection within {deadline.seconds:g} s")) from None
        except (InvalidHandshake, WebSocketException, ssl.SSLError, OSError, ValueError, EOFError) as error:
            raise ClusterUnreachable(self._text(_one_line(error))) from error

    def _refusal(self, error: InvalidStatus) -> ApiRefusal:
        status, body = error.response.status_code, error.response.body or b""
        return ApiRefusal(self._text(f"HTTP {status}: {text_at(_json(body), 'message') or 'no message'}"), status)

    def _text(self, text: str) -> str:
        return f"{self._connection.server}: {text}"


class _ClientConnection(ClientConnection):
    """Its socket is closed by the thread that reads it, for the reason that `DeadlineTransport` names."""

    def __init__(self, sock: socket.socket, *values: Any, **options: Any) -> None:
        self._socket_copy = copy_of_socket(sock)
        super().__init__(sock, *values, **options)

    def close_socket(self) -> None:
        if threading.current_thread() is not self.recv_events_thread:
            shut_down(self._socket_copy)
            # In vain if it does not read because too many frames wait; then the socket may be closed here
            self.recv_events_thread.join(CLOSE_S)
            self._socket_copy.close()
        super().close_socket()


def _path(place: ContainerPlace, command: Sequence[str]) -> str:
    query = [("container", place.container), ("stdout", "true"), ("stderr", "true")]
    query += [("command", word) for word in command]
    namespace, pod = quote(place.namespace, safe=""), quote(place.pod, safe="")
    return f"/api/v1/namespaces/{namespace}/pods/{pod}/exec?{urlencode(query)}"


def _open_socket(server: str, deadline: RequestDeadline) -> socket.socket:
    parts = urlsplit(server)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return open_socket(parts.hostname or "", port, deadline)


def _read_result(websocket: ClientConnection, deadline: RequestDeadline) -> ExecResult:
    """Collect the output until the status arrives. Raises ValueError for what the protocol does not allow."""
    streams: dict[int, bytearray] = {STDOUT: bytearray(), STDERR: bytearray()}
    total = 0
    while True:
        message = websocket.recv(timeout=max(deadline.remaining_s, 0))
        if deadline.over:
            raise TimeoutError
        if not isinstance(message, bytes):
            raise ValueError("a command was answered in another protocol")
        channel, content = message[:1], message[1:]
        if channel == bytes([STATUS]) and content:
            texts = {name: bytes(raw).decode("utf-8", "replace") for name, raw in streams.items()}
            return ExecResult(exit_code=_exit_code(content), stdout=texts[STDOUT], stderr=texts[STDERR])
        total += len(message) + 1
        if total > MAX_DROPPED_BYTES:
            raise ValueError(f"a command printed more than {MAX_DROPPED_BYTES >> 20} MiB")
        if channel and channel[0] in streams:
            stream = streams[channel[0]]
            stream += content[: MAX_OUTPUT_BYTES - len(stream)]


def _exit_code(content: bytes) -> int:
    """The exit code in a Status object. Raises ValueError if it has none: then the command may not have begun."""
    status = _json(content[:MAX_STATUS_BYTES])
    if status.get("status") == "Success":
        return 0
    if status.get("reason") == "NonZeroExitCode":
        for cause in mappings_at(status, "details", "causes"):
            code = text_at(cause, "message", largest=4)
            if cause.get("reason") == "ExitCode" and code.isascii() and code.isdigit():
                return int(code)
    raise ValueError(f"a command did not end normally: {text_at(status, 'message') or 'no message'}")


def _json(raw: bytes | bytearray) -> Mapping[str, Any]:
    try:
        return mapping_at(json.loads(raw))
    except (ValueError, RecursionError):
        return {}


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
