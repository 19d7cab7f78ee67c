"""Who listens in this process: a topic is subscribed to once, however many pages show it.

A message is put into words once and handed to every page. A page has one word of each topic on its way at most: a newer
one takes its place, so a page that reads slowly costs neither memory nor the time of others; it sees a gap in the
numbers, and asks again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from weakref import WeakKeyDictionary

from channels.layers import get_channel_layer
from redis.exceptions import RedisError

from acmeweb.common.live import channel_group


class PageListener:
    """One open page."""

    def __init__(self, send: Callable[[str], Awaitable[None]]) -> None:
        self.send = send
        self.waiting: dict[str, str] = {}
        self.telling: asyncio.Task[None] | None = None

    def queue_message(self, topic: str, words: str) -> None:
        self.waiting[topic] = words
        if self.telling is None:
            self.telling = asyncio.create_task(self._send_messages())

    async def _send_messages(self) -> None:
        # Who is gone is told nothing more; its consumer hears of that by itself
        try:
            with suppress(OSError, RuntimeError):
                while self.waiting:
                    await self.send(self.waiting.pop(next(iter(self.waiting))))
        finally:
            self.telling = None

    def close(self) -> None:
        if self.telling:
            self.telling.cancel()


class SubscriptionHub:
    def __init__(self) -> None:
        self.layer = get_channel_layer()
        self.listeners: dict[str, set[PageListener]] = {}
        self.lock = asyncio.Lock()  # of joining and leaving, which both ask Valkey
        self.channel = ""
        self.hearing: asyncio.Task[None] | None = None

    async def join(self, topic: str, listener: PageListener) -> None:
        async with self.lock:
            if self.hearing is None or self.hearing.done():
                self.channel = await self.layer.new_channel()
                for known in self.listeners:
                    await self.layer.group_add(channel_group(known), self.channel)
                self.hearing = asyncio.create_task(self._receive_messages())
            if topic not in self.listeners:
                await self.layer.group_add(channel_group(topic), self.channel)
            self.listeners.setdefault(topic, set()).add(listener)

    async def leave(self, topic: str, listener: PageListener) -> None:
        async with self.lock:
            there = self.listeners.get(topic, set())
            there.discard(listener)
            if there:
                return
            self.listeners.pop(topic, None)
            with suppress(RedisError, OSError):  # nobody is told anything by what was not taken back
                await self.layer.group_discard(channel_group(topic), self.channel)
            if not self.listeners and self.hearing:
                self.hearing.cancel()
                self.hearing = None

    async def _receive_messages(self) -> None:
        while True:
            message = await self.layer.receive(self.channel)
            topic = message["topic"]
            words = json.dumps({"topic": topic, "seq": message["seq"]})
            for listener in self.listeners.get(topic, ()):
                listener.queue_message(topic, words)


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, SubscriptionHub] = WeakKeyDictionary()


def process_hub() -> SubscriptionHub:
    """A server has one loop; tests have many."""
    return _hubs.setdefault(asyncio.get_running_loop(), SubscriptionHub())
