"""What the web processes hold: open sockets, and connections of their database pools.

Each process stores its own figures in Valkey while it has sockets. Figures that are older than `MAX_AGE_S` belong to a
process that has ended, or that has no socket any more.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass

from django.db import connection

from acmeweb.common import metrics_store

PLACE = "acme:web"
REPORT_INTERVAL_S = 15.0
MAX_AGE_S = 90.0


@dataclass(frozen=True, kw_only=True)
class WebLoad:
    """Sums over the web processes. `waiting`: requests that wait for a connection of their process's pool."""

    sockets: int = 0
    connections: int = 0
    max_connections: int = 0
    waiting: int = 0


class LoadReporter:
    """Stores the figures of this process, at most once per interval."""

    def __init__(self) -> None:
        self.due_at = 0.0

    def report(self, sockets: int) -> None:
        if time.monotonic() < self.due_at:
            return
        self.due_at = time.monotonic() + REPORT_INTERVAL_S
        pool = connection.pool.get_stats() if getattr(connection, "pool", None) else {}
        figures = {
            "at": time.time(),
            "sockets": sockets,
            "connections": pool.get("pool_size", 0) - pool.get("pool_available", 0),
            "max_connections": pool.get("pool_max", 0),
            "waiting": pool.get("requests_waiting", 0),
        }
        metrics_store.valkey.ask([("HSET", PLACE, f"{socket.gethostname()}:{os.getpid()}", json.dumps(figures))])


reporter = LoadReporter()


def read_web_load() -> WebLoad:
    """Return the sums; zeros if Valkey is unavailable."""
    answers = metrics_store.valkey.ask([("HGETALL", PLACE)])
    stored = answers[0] if answers and isinstance(answers[0], dict) else {}
    processes = {key: json.loads(text) for key, text in stored.items()}
    if ended := [key for key, row in processes.items() if time.time() - row["at"] > MAX_AGE_S]:
        metrics_store.valkey.ask([("HDEL", PLACE, *ended)])
    live = [row for key, row in processes.items() if key not in ended]
    names = ("sockets", "connections", "max_connections", "waiting")
    return WebLoad(**{name: sum(int(row[name]) for row in live) for name in names})
