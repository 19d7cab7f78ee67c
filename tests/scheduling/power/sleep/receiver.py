"""A site's webhook for sleeping nodes, on the loopback. It checks the signature and calls a function of the test."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Site:
    """What the webhook got: messages with a valid signature, and the number of others."""

    def __init__(self, act: Callable[[str, str], None]) -> None:
        self.act, self.secret, self.status, self.url = act, "", 200, ""
        self.messages: list[dict[str, Any]] = []
        self.deliveries: list[str] = []
        self.unsigned = 0

    def is_signed(self, header: str, body: bytes) -> bool:
        at, _, made = header.removeprefix("t=").partition(",v1=")
        expected = hmac.new(self.secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
        return hmac.compare_digest(expected, made)

    def receive(self, headers: Any, body: bytes) -> int:
        if not self.is_signed(headers["Acme-Signature"], body):
            self.unsigned += 1
            return 403
        message = json.loads(body)
        self.messages.append(message)
        self.deliveries.append(headers["Acme-Delivery"])
        if self.status == 200:
            self.act(message["action"], message["node"])
        return self.status


@contextmanager
def site_webhook(act: Callable[[str, str], None] = lambda action, node: None) -> Iterator[Site]:
    site = Site(act)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            status = site.receive(self.headers, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        site.url = f"http://127.0.0.1:{server.server_port}/power"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()
