"""An API server that answers as a test scripts it: pages of lists, watches that break in every way, and errors."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.patience import until
from tests.scheduling.backends.kubernetes.objects import node

Query = dict[str, str]
FAILURE = "Status"


def status(code: int, message: str = "refused") -> dict[str, Any]:
    return {"kind": FAILURE, "code": code, "message": message}


class ScriptedApi:
    """Lists what `objects` has. A list or a watch may be replaced for one request by an entry of `scripts`."""

    def __init__(self) -> None:
        self.objects: dict[str, list[dict[str, Any]]] = {"/api/v1/nodes": [node()], "/api/v1/pods": []}
        self.groups: dict[str, dict[str, list[str]]] = {}  # group/version → kinds
        self.version = 1_000_000  # above those of the objects
        self.page_size = 500
        self.requests: list[tuple[str, Query]] = []
        self.scripts: dict[str, list[Callable[[Query], Any]]] = {}
        self.expire_before = 0  # watches from an older version get 410
        self._watchers: dict[str, list[Watcher]] = {}
        self._lock = threading.Lock()

    def change(self, path: str, kind: str, item: dict[str, Any]) -> None:
        """Change the objects, and send the event to those who watch."""
        with self._lock:
            self.version += 1
            item = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self.version)}}
            name = item["metadata"]["uid"]
            rest = [known for known in self.objects[path] if known["metadata"]["uid"] != name]
            self.objects[path] = rest if kind == "DELETED" else [*rest, item]
            for watcher in self._watchers.get(path, []):
                watcher.send({"type": kind, "object": item})

    def send_raw(self, path: str, data: bytes) -> None:
        """Send bytes to those who watch, and cut their connections."""
        with self._lock:
            for watcher in self._watchers.pop(path, []):
                watcher.end_with(data)

    def is_watched(self, path: str) -> bool:
        with self._lock:
            return bool(self._watchers.get(path))

    def answer(self, path: str, query: Query) -> Any:
        with self._lock:
            self.requests.append((path, query))
            script = self.scripts.get(path, [])
            if script and "watch" not in query and query.get("limit") != "1":
                return script.pop(0)(query)
            if path == "/version":
                return {"gitVersion": "v1.99.0"}
            if path == "/apis":
                return {"groups": [_group(name) for name in self.groups]}
            if (group := path.removeprefix("/apis/")) in self.groups:
                return {"resources": [_resource(kind) for kind in self.groups[group]["kinds"]]}
            if path in self.objects:
                return self._page(self.objects[path], query)
            base, _, plural = path.rpartition("/")
            if (collection := f"{base.partition('/namespaces/')[0]}/{plural}") in self.objects:
                return self._page(self._selected(self.objects[collection], base.rpartition("/")[2], query), query)
            return self._named(path) or status(404, "the server could not find the requested resource")

    def _selected(self, items: list[dict[str, Any]], namespace: str, query: Query) -> list[dict[str, Any]]:
        """Those of a namespace with one of the values in a selector `KEY in (A,B)`."""
        key, _, listed = query["labelSelector"].rstrip(")").partition(" in (")
        values, parts = listed.split(","), [one["metadata"] for one in items]
        wanted = {one["uid"] for one in parts if one["namespace"] == namespace and one["labels"].get(key) in values}
        return [one for one in items if one["metadata"]["uid"] in wanted]

    def _named(self, path: str) -> dict[str, Any] | None:
        collection, _, name = path.rpartition("/")
        return next((one for one in self.objects.get(collection, []) if one["metadata"]["name"] == name), None)

    def _page(self, items: list[dict[str, Any]], query: Query) -> dict[str, Any]:
        begin, size = int(query.get("continue", "0")), min(int(query.get("limit", "500")), self.page_size)
        metadata = {"resourceVersion": str(self.version)}
        if begin + size < len(items):
            metadata["continue"] = str(begin + size)
        return {"metadata": metadata, "items": items[begin : begin + size]}

    def watch(self, path: str, query: Query, watcher: Watcher) -> None:
        with self._lock:
            self.requests.append((path, query))
            since = int(query["resourceVersion"])
            if since < self.expire_before:
                watcher.send({"type": "ERROR", "object": status(410, "too old resource version")})
                watcher.end_with(b"")
                return
            for item in self.objects[path]:
                if int(item["metadata"]["resourceVersion"]) > since:
                    watcher.send({"type": "MODIFIED", "object": item})
            self._watchers.setdefault(path, []).append(watcher)


def _group(name: str) -> dict[str, Any]:
    group, _, version = name.rpartition("/")
    return {"name": group, "versions": [{"version": version}], "preferredVersion": {"version": version}}


def _resource(kind: str) -> dict[str, Any]:
    return {"name": f"{kind.lower()}s", "kind": kind, "verbs": ["list", "watch"]}


class Watcher:
    """One open watch."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self.ended, self.cut = threading.Event(), False

    def send(self, event: object) -> None:
        self._chunk(json.dumps(event).encode() + b"\n")

    def end_with(self, data: bytes) -> None:
        """Send the rest and end: without data as a server does, with data by breaking off."""
        self.cut = bool(data)
        if data:
            self._chunk(data)
        else:
            self._write(b"0\r\n\r\n")
        self.ended.set()

    def _chunk(self, data: bytes) -> None:
        self._write(b"%x\r\n%s\r\n" % (len(data), data))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are separate writes
    api: ScriptedApi

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if query.get("watch") == "true":
            self._watch(parts.path, query)
            return
        answer = self.api.answer(parts.path, query)
        raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        failed = isinstance(answer, dict) and answer.get("kind") == FAILURE
        self.send_response(answer["code"] if failed else 200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _watch(self, path: str, query: Query) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        watcher = Watcher(self.wfile.write)
        self.api.watch(path, query, watcher)
        watcher.ended.wait()
        self.close_connection = watcher.cut

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    """Keeps its connections, to close them when it ends: the handlers of kept connections would go on answering."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any) -> None:
        self.connections: list[socket.socket] = []
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.append(request)
        super().process_request(request, client_address)

    def server_close(self) -> None:
        super().server_close()
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *_: object) -> None:
        """A client that went away is not an error."""


@contextmanager
def serving(api: ScriptedApi | None = None) -> Iterator[tuple[ScriptedApi, str]]:
    api = api or ScriptedApi()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": api}))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield api, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def until_watched(api: ScriptedApi, path: str) -> None:
    until(lambda: api.is_watched(path), what=f"{path} is watched")
