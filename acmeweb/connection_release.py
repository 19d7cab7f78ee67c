"""Returns the database connections of a thread to the pool while it waits for somebody else.

A process has fewer connections than threads, so a receiver or a cluster that hangs must not keep one.
"""

from __future__ import annotations

from django.db import connections


def release_connections() -> None:
    """Return this thread's connections to the pool. The next query gets one again. Open transactions keep theirs."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()
