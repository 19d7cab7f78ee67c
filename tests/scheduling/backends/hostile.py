"""A server on the loopback address that responds in ways that no HTTP library produces on purpose."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Conversation = Callable[[socket.socket, threading.Event], None]
PAUSE_S = 0.02
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@contextmanager
def serving(conversation: Conversation) -> Iterator[str]:
    """Serve every connection with the conversation in its own thread, until it or the test ends."""
    over, listener = threading.Event(), socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def talk(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            conversation(connection, over)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threads.append(threading.Thread(target=talk, args=(connection,), daemon=True))
                threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in [acceptor, *threads]:
            thread.join()


def read_request(connection: socket.socket) -> bytes:
    """The head, and the part of the body that arrived with it."""
    received = b""
    while b"\r\n\r\n" not in received and (piece := connection.recv(65536)):
        received += piece
    return received


def silent(connection: socket.socket, over: threading.Event) -> None:
    read_request(connection)
    over.wait()


def deaf(connection: socket.socket, over: threading.Event) -> None:
    """Accept the connection, but do not read."""
    over.wait()


def trickling(connection: socket.socket, over: threading.Event) -> None:
    """Send an endless body, one byte at a time."""
    read_request(connection)
    connection.sendall(HEAD + b"Content-Length: 1000000\r\n\r\n")
    while not over.wait(PAUSE_S):
        connection.sendall(b" ")


def trickling_headers(connection: socket.socket, over: threading.Event) -> None:
    read_request(connection)
    connection.sendall(HEAD + b"X-Slow: ")
    while not over.wait(PAUSE_S):
        connection.sendall(b"x")


def endless_headers(connection: socket.socket, over: threading.Event) -> None:
    read_request(connection)
    connection.sendall(HEAD)
    while not over.is_set():
        connection.sendall(b"X-More: " + b"x" * 1000 + b"\r\n")


def endless_body(connection: socket.socket, over: threading.Event) -> None:
    read_request(connection)
    connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    while not over.is_set():
        connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")


def shorter_than_promised(connection: socket.socket, over: threading.Event) -> None:
    read_request(connection)
    connection.sendall(HEAD + b'Content-Length: 1000\r\n\r\n{"jobs": [], "nodes": [], "job_id": 7}')


def cut_off_chunks(connection: socket.socket, over: threading.Event) -> None:
    read_request(connection)
    body = b'{"jobs": [], "nodes": [], "job_id": 7}'
    connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + f"{len(body):x}\r\n".encode() + body + b"\r\n")


def cut_off_json(connection: socket.socket, over: threading.Event) -> None:
    read_request(connection)
    body = b'{"jobs": [{"job_id": 1, "job_state": ["RUN'
    connection.sendall(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
