"""Wake-ups of loops through Valkey: a hint that a loop is due early, which may be lost.

The due time is in the database (`jobs.models.Loop`). A process that waits for its next loop listens on one list per
loop name; a wake-up is taken by one of the processes that wait. Without Valkey, loops run at their usual times.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import redis
from django.conf import settings

from acmeweb.common import metrics_store

log = logging.getLogger(__name__)

MAX_PENDING = 4  # wake-ups of one loop that nobody has taken yet
RETRY_S = 5.0
SOCKET_TIMEOUT_S, CONNECT_TIMEOUT_S = 7.0, 1.0  # the first is longer than any wait


def wake(loop: str) -> None:
    metrics_store.valkey.ask([("LPUSH", _list_name(loop), "1"), ("LTRIM", _list_name(loop), "0", str(MAX_PENDING - 1))])


class WakeupListener:
    """Waits for wake-ups of these loops, over a connection of its own."""

    def __init__(self, loops: Sequence[str]) -> None:
        self.lists = [_list_name(loop) for loop in loops]
        self.server: redis.Redis | None = None
        self.retry_at = 0.0

    def wait(self, seconds: float) -> None:
        """Return after a wake-up, or after this time."""
        if not settings.VALKEY_URL or time.monotonic() < self.retry_at:
            time.sleep(seconds)
            return
        ends_at = time.monotonic() + seconds
        try:
            if self.server is None:
                self.server = redis.Redis.from_url(
                    settings.VALKEY_URL, socket_timeout=SOCKET_TIMEOUT_S, socket_connect_timeout=CONNECT_TIMEOUT_S
                )
            self.server.blpop(self.lists, timeout=max(seconds, 0.01))
        except redis.RedisError as error:
            log.info("Wake-ups cannot be received: %s", error)
            self.server, self.retry_at = None, time.monotonic() + RETRY_S
            time.sleep(max(0.0, ends_at - time.monotonic()))


def _list_name(loop: str) -> str:
    return f"acme:wake:{loop}"
