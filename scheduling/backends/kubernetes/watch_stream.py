"""One watch request: a thread that collects the lines of the response until somebody takes them.

The thread only reads the network. Lines are decoded and applied by the caller of `take_lines`, so a cluster's objects
change only while it is being looked at. A watch ends with the response, at its deadline, after an error, or when more
than `MAX_WAITING_BYTES` were not taken; the lines read until then are complete events and stay valid. The rest of a
line that was cut off is dropped: the next watch begins at the last complete event and gets it again.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from contextlib import closing

import httpx

from acmeweb.common.http_client import HttpClient, RequestDeadline, copy_of_socket, shut_down

MAX_WAITING_BYTES = 64 << 20
MAX_LINE_BYTES = 16 << 20  # an object has at most 1.5 MiB in etcd, but JSON is larger


class WatchStream:
    """A watch from the time at which it is created."""

    def __init__(self, client: HttpClient, path: str, headers: dict[str, str], lifetime: RequestDeadline) -> None:
        self._client, self._path, self._headers, self._lifetime = client, path, headers, lifetime
        self._lines: deque[bytes] = deque()
        self._waiting = 0
        self._lock = threading.Lock()
        self._answered, self._closed = threading.Event(), False
        self._arrived = threading.Event()
        self._socket_copy: socket.socket | None = None  # while the response is read
        self.status: int | None = None  # of the response, once there is one
        self.error = ""  # why it ended; empty while it runs and after the server ended it
        self.ended = False
        self._thread = threading.Thread(target=self._read, name=f"watch {path[:60]}", daemon=True)
        self._thread.start()

    def wait_for_status(self, deadline: RequestDeadline) -> bool:
        """Wait for the response to begin. False if it did not until the deadline."""
        return self._answered.wait(max(deadline.remaining_s, 0))

    def wait_for_lines(self, seconds: float) -> bool:
        """Wait until there are lines to take, or the watch has ended. False if neither happened in time."""
        return self._arrived.wait(max(seconds, 0))

    def take_lines(self) -> list[bytes]:
        with self._lock:
            if not self.ended:
                self._arrived.clear()
            lines, self._waiting = list(self._lines), 0
            self._lines.clear()
        return lines

    def close(self) -> None:
        """End the watch. Its thread may be blocked in a read, which ends when the socket is shut down. If the response
        has not begun, the thread waits for it until the deadline."""
        with self._lock:
            self._closed = True
            if self._socket_copy is not None:
                shut_down(self._socket_copy)

    def _read(self) -> None:
        try:
            # No other request gets this connection, so `close` may shut it down at any time
            headers = {**self._headers, "Connection": "close"}
            with closing(self._client.open_stream(self._path, self._lifetime, headers)) as response:
                with self._lock:
                    plain = response.extensions["network_stream"].get_extra_info("socket")
                    self._socket_copy, closed = copy_of_socket(plain), self._closed
                self.status = response.status_code
                self._answered.set()
                if not closed:
                    self._collect(response)
        except (httpx.HTTPError, OSError, ValueError, RuntimeError) as error:
            self.error = str(error) or type(error).__name__
        finally:
            with self._lock:
                if self._socket_copy is not None:
                    self._socket_copy.close()
                    self._socket_copy = None
                self.ended = True
                self._arrived.set()
            self._answered.set()

    def _collect(self, response: httpx.Response) -> None:
        rest = b""
        for chunk in response.iter_raw():
            *lines, rest = (rest + chunk).split(b"\n")
            if not self._add(lines) or len(rest) > MAX_LINE_BYTES:
                self.error = "more data than fits"
                return

    def _add(self, lines: list[bytes]) -> bool:
        with self._lock:
            self._lines.extend(line for line in lines if line)
            self._waiting += sum(map(len, lines))
            if self._lines:
                self._arrived.set()
            return self._waiting <= MAX_WAITING_BYTES and not self._closed
