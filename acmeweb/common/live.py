"""Notifies open pages that a topic changed. The message is a name and a number, never data, and it may get lost.

`publish_on_commit()` waits for the commit, is cheap for the caller, and never fails it: a background thread collects
the topics, merges those of a short window, increments each topic's number in Valkey and publishes it. A page that
detects a gap in the numbers, or receives nothing for a while, reloads.
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

MERGE_WINDOW_S = 0.05


def publish_on_commit(*topics: str) -> None:
    """Publish the topics after the commit of the current transaction (or at once, outside of one)."""
    transaction.on_commit(partial(_enqueue_topics, topics), robust=True)


def channel_group(topic: str) -> str:
    """Return the channel group of a topic. Channels allows letters, digits, dashes and dots in its name."""
    return f"live.{topic.replace(':', '.')}"


class _TopicPublisher:
    """One thread with its own event loop, started at the first topic of a process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.topics: set[str] = set()
        self.lock = threading.Lock()
        self.loop = asyncio.new_event_loop()
        # One connection per process, opened at the first message by the event loop that uses it
        self.server = valkey.from_url(settings.VALKEY_URL, socket_timeout=5)
        threading.Thread(target=self.loop.run_forever, name="live", daemon=True).start()

    def take(self, topics: tuple[str, ...]) -> None:
        with self.lock:
            first = not self.topics
            self.topics.update(topics)
        if first:
            asyncio.run_coroutine_threadsafe(self._publish_soon(), self.loop)

    async def _publish_soon(self) -> None:
        await asyncio.sleep(MERGE_WINDOW_S)
        with self.lock:
            topics, self.topics = self.topics, set()
        try:
            await self._publish_topics(sorted(topics))
        except (RedisError, OSError) as error:
            log.debug("Topics %s were not published: %s", topics, error)

    async def _publish_topics(self, topics: list[str]) -> None:
        numbers = await self._increment_sequences(topics)
        layer = get_channel_layer()
        for topic, number in zip(topics, numbers, strict=True):
            message = {"type": "topic.moved", "topic": topic, "seq": number}
            await layer.group_send(channel_group(topic), message)

    async def _increment_sequences(self, topics: list[str]) -> list[int]:
        async with self.server.pipeline() as pipe:
            for topic in topics:
                pipe.incr(f"acme:live:{topic}")
                pipe.expire(f"acme:live:{topic}", 7 * 86400)
            answers = await pipe.execute()
        return [int(number) for number in answers[::2]]


_publisher: _TopicPublisher | None = None
_publisher_lock = threading.Lock()


def _enqueue_topics(topics: tuple[str, ...]) -> None:
    global _publisher
    if not settings.VALKEY_URL:
        return
    with _publisher_lock:
        # Celery forks its children, and threads do not survive a fork, so each process starts its own
        if _publisher is None or _publisher.pid != os.getpid():
            _publisher = _TopicPublisher()
    _publisher.take(topics)
