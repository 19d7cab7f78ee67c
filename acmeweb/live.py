"""Tell open pages that a topic moved. A hint: it carries a name and a number, never data, and may get lost.

`changed()` waits for the commit, costs the caller next to nothing, and never fails it: a thread of its own takes the
topics, merges what comes within a moment, counts each topic's number up in Valkey and passes it on. A page that sees a
gap in the numbers, or none for a while, simply asks again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from functools import partial

from channels.layers import get_channel_layer
from django.conf import settings
from django.db import transaction
from redis import asyncio as valkey
from redis.exceptions import RedisError

log = logging.getLogger(__name__)

MERGE_S = 0.05


def changed(*topics: str) -> None:
    """After the commit of the transaction we are in (or at once, outside of one)."""
    transaction.on_commit(partial(_enqueue, topics), robust=True)


def group_of(topic: str) -> str:
    """Channels allows letters, digits, dashes and dots in the name of a group."""
    return f"live.{topic.replace(':', '.')}"


class _Teller:
    """One thread with an event loop of its own, started at the first topic of a process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.topics: set[str] = set()
        self.lock = threading.Lock()
        self.loop = asyncio.new_event_loop()
        # One connection for as long as the process lives; it is made at the first word, by the loop it belongs to
        self.server = valkey.from_url(settings.VALKEY_URL, socket_timeout=5)
        threading.Thread(target=self.loop.run_forever, name="live", daemon=True).start()

    def take(self, topics: tuple[str, ...]) -> None:
        with self.lock:
            first = not self.topics
            self.topics.update(topics)
        if first:
            asyncio.run_coroutine_threadsafe(self._tell_soon(), self.loop)

    async def _tell_soon(self) -> None:
        await asyncio.sleep(MERGE_S)
        with self.lock:
            topics, self.topics = self.topics, set()
        try:
            await self._tell(sorted(topics))
        except (RedisError, OSError) as error:
            log.debug("nobody heard of %s: %s", topics, error)

    async def _tell(self, topics: list[str]) -> None:
        numbers = await self._count_up(topics)
        layer = get_channel_layer()
        for topic, number in zip(topics, numbers, strict=True):
            message = {"type": "topic.moved", "topic": topic, "seq": number}
            await layer.group_send(group_of(topic), message)

    async def _count_up(self, topics: list[str]) -> list[int]:
        async with self.server.pipeline() as pipe:
            for topic in topics:
                pipe.incr(f"acme:live:{topic}")
                pipe.expire(f"acme:live:{topic}", 7 * 86400)
            answers = await pipe.execute()
        return [int(number) for number in answers[::2]]


_teller: _Teller | None = None
_birth = threading.Lock()


def _enqueue(topics: tuple[str, ...]) -> None:
    global _teller
    if not settings.VALKEY_URL:
        return
    with _birth:
        # Celery forks its children: a thread does not survive that, so each process has its own
        if _teller is None or _teller.pid != os.getpid():
            _teller = _Teller()
    _teller.take(topics)
