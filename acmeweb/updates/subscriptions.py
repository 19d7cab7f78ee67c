"""Subscriptions of this process: one per topic, however many pages show it.

Each message is encoded once and sent to every page. At most one message per topic is pending for a page: a newer one
replaces it. So a slow page costs neither memory nor the time of other pages; it sees a gap in the numbers and reloads.
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
    """One open page, with the messages that wait to be sent to it."""

    def __init__(self, send: Callable[[str], Awaitable[None]]) -> None:
        self.send = send
        self.waiting: dict[str, str] = {}
        self.sender: asyncio.Task[None] | None = None

    def queue_message(self, topic: str, text: str) -> None:
        self.waiting[topic] = text
        if self.sender is None:
            self.sender = asyncio.create_task(self._send_messages())

    async def _send_messages(self) -> None:
        # A closed connection gets no more messages; its consumer learns of the disconnect by itself
        try:
            with suppress(OSError, RuntimeError):
                while self.waiting:
                    await self.send(self.waiting.pop(next(iter(self.waiting))))
        finally:
            self.sender = None

    def close(self) -> None:
        if self.sender:
            self.sender.cancel()


class SubscriptionHub:
    def __init__(self) -> None:
        self.layer = get_channel_layer()
        self.listeners: dict[str, set[PageListener]] = {}
        self.lock = asyncio.Lock()  # joining and leaving both await Valkey
        self.channel = ""
        self.receiver: asyncio.Task[None] | None = None

    async def join(self, topic: str, listener: PageListener) -> None:
        async with self.lock:
            if self.receiver is None or self.receiver.done():
                self.channel = await self.layer.new_channel()
                for known in self.listeners:
                    await self.layer.group_add(channel_group(known), self.channel)
                self.receiver = asyncio.create_task(self._receive_messages())
            if topic not in self.listeners:
                await self.layer.group_add(channel_group(topic), self.channel)
            self.listeners.setdefault(topic, set()).add(listener)

    async def leave(self, topic: str, listener: PageListener) -> None:
        async with self.lock:
            remaining = self.listeners.get(topic, set())
            remaining.discard(listener)
            if remaining:
                return
            self.listeners.pop(topic, None)
            with suppress(RedisError, OSError):  # a subscription that stays has no listeners, so it does no harm
                await self.layer.group_discard(channel_group(topic), self.channel)
            if not self.listeners and self.receiver:
                self.receiver.cancel()
                self.receiver = None

    async def _receive_messages(self) -> None:
        while True:
            message = await self.layer.receive(self.channel)
            topic = message["topic"]
            text = json.dumps({"topic": topic, "seq": message["seq"]})
            for listener in self.listeners.get(topic, ()):
                listener.queue_message(topic, text)


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, SubscriptionHub] = WeakKeyDictionary()


def process_hub() -> SubscriptionHub:
    """Return the hub of the running event loop. A server has one loop; tests have many."""
    return _hubs.setdefault(asyncio.get_running_loop(), SubscriptionHub())
