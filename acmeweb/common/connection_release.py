"""Returns the database connections of a thread to the pool while it waits for somebody else.

A process has fewer connections than threads, so a receiver or a cluster that hangs must not keep one. A thread whose
session proves that it lives (`scheduling.models.Lease`) keeps its connection: the pool may close it or lend it.
"""

from __future__ import annotations

import threading

from django.db import connections


class _ThreadNeeds(threading.local):
    def __init__(self) -> None:
        self.names: set[str] = set()


_needs = _ThreadNeeds()


def keep_connection_for(name: str) -> None:
    """Let this thread keep its connection until `release_connection_of` with the same name."""
    _needs.names.add(name)


def release_connection_of(name: str) -> None:
    _needs.names.discard(name)


def release_connections() -> None:
    """Return this thread's connections to the pool. The next query gets one again. Open transactions keep theirs."""
    if _needs.names:
        return
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()
