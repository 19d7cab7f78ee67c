"""An API server for commands in containers, which answers as a test scripts it."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager, suppress

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

from scheduling.backends.kubernetes.connection.access import Connection
from tests.patience import PATIENCE_S

SUCCESS = b'\x03{"status":"Success"}'


def failure(code="3", reason="NonZeroExitCode"):
    causes = [{"reason": "ExitCode", "message": code}]
    return b"\x03" + json.dumps({"status": "Failure", "reason": reason, "details": {"causes": causes}}).encode()


def connection(server, **changes):
    empty = {"server_name": "", "ca": "", "token": "secret", "certificate": "", "key": ""}
    return Connection(server=server, **{**empty, **changes})


@contextmanager
def serving(handler, answer=None, **options):
    """A server on a free port. Yields its port and the requests that it got; `answer` may answer one without a
    connection.
    """
    requests = []

    def process_request(websocket, request):
        requests.append(request)
        return answer(websocket, request) if answer else None

    def handle(websocket):
        with suppress(ConnectionClosed):
            handler(websocket)

    patient = {"open_timeout": PATIENCE_S, "close_timeout": 1}
    options = {"subprotocols": ["v4.channel.k8s.io"], "process_request": process_request, **patient, **options}
    with serve(handle, "127.0.0.1", 0, compression=None, **options) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.socket.getsockname()[1], requests
        finally:
            server.shutdown()
            thread.join()
