"""The websocket of a page: it joins the topics that the page shows and reports when they change.

The page sends `{"join": ["queue", "job:01k3v9q2m7t"]}` and receives the current number of each topic; after that,
`{"topic": …, "seq": …}` per change. After a gap in the numbers or a new connection, the page reloads its fragments. A
page may only join what its user may see. The session is checked regularly, and the socket closes after a logout.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from asgiref.sync import sync_to_async
from channels.auth import get_user
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.contrib.sessions.backends.db import SessionStore

from acmeweb.updates import fragment_cache, subscriptions
from failures.models import permissions as failure_permissions
from jobs.models import Job, Team, TeamRole
from scheduling.models import Campaign, Simulation

SHARED_TOPICS = frozenset({"queue", "nodes", "failures", "rules", "campaigns"})
TOPIC_PATTERN = re.compile(
    r"(job:[0-9a-z_]{11,24}|node:\d{1,18}|incident:\d{1,18}|(simulation|campaign):[0-9a-z]{11,16})", re.ASCII
)
MAX_TOPICS = 50
SESSION_RECHECK_S = 30


class LiveConsumer(AsyncJsonWebsocketConsumer):
    channel_layer_alias = None  # SubscriptionHub listens for all pages of the process

    def __init__(self, *args: Any, session_recheck_s: float = SESSION_RECHECK_S, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.session_recheck_s = session_recheck_s

    async def connect(self) -> None:
        self.topics: set[str] = set()
        self.listener = subscriptions.PageListener(self.send)
        self.checks: asyncio.Task[None] | None = None
        # Browsers see a refused handshake as 1006 whatever the code; accept first, so the page learns it is signed out
        await self.accept()
        if not self.scope["user"].is_authenticated:
            await self.close(code=4401)
            return
        self.checks = asyncio.create_task(self._recheck_session())

    async def disconnect(self, code: int) -> None:
        if self.checks:
            self.checks.cancel()
        self.listener.close()
        for topic in self.topics:
            await subscriptions.process_hub().leave(topic, self.listener)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **_: Any) -> None:
        """Treat binary and empty frames as invalid messages instead of raising."""
        await self.receive_json(await self.decode_json(text_data or ""))

    async def receive_json(self, content: Any, **_: Any) -> None:
        names = content.get("join") if isinstance(content, dict) else None
        if not isinstance(names, list) or len(names) > MAX_TOPICS:
            await self.close(code=4400)
            return
        allowed = [name for name in names if isinstance(name, str) and await self._may_join(name)]
        for topic in allowed:
            if topic not in self.topics and len(self.topics) < MAX_TOPICS:
                self.topics.add(topic)
                await subscriptions.process_hub().join(topic, self.listener)
        # 0 if the number is unknown: then the page reloads at the next message
        await self.send_json({"joined": await sync_to_async(fragment_cache.topic_sequences)(allowed)})

    @classmethod
    async def decode_json(cls, text_data: str) -> Any:
        try:
            return await super().decode_json(text_data)
        except (ValueError, RecursionError):
            return None

    async def _may_join(self, topic: str) -> bool:
        if topic in SHARED_TOPICS:
            return True
        if not TOPIC_PATTERN.fullmatch(topic):
            return False
        kind, _, name = topic.partition(":")
        if kind == "incident":
            return await self._may_see_incident(int(name))
        if kind == "simulation":
            return await self._may_see_simulation(name)
        if kind == "campaign":
            return await self._may_see_campaign(name)
        return kind == "node" or await self._may_see_job(name)

    @database_sync_to_async
    def _may_see_job(self, public_id: str) -> bool:
        return Job.objects.visible_to(self.scope["user"]).filter(public_id=public_id).exists()

    @database_sync_to_async
    def _may_see_incident(self, number: int) -> bool:
        caller = failure_permissions.caller_of_user(self.scope["user"])
        return failure_permissions.visible_incidents(caller).filter(pk=number).exists()

    @database_sync_to_async
    def _may_see_simulation(self, public_id: str) -> bool:
        teams = Team.objects.where(self.scope["user"], TeamRole.VIEWER)
        return Simulation.objects.filter(public_id=public_id, team__in=teams).exists()

    @database_sync_to_async
    def _may_see_campaign(self, public_id: str) -> bool:
        teams = Team.objects.where(self.scope["user"], TeamRole.VIEWER)
        return Campaign.objects.filter(public_id=public_id, team__in=teams).exists()

    async def _is_still_logged_in(self) -> bool:
        """Read the session again: the user may have signed out, been deactivated or changed the password."""
        session = SessionStore(self.scope["session"].session_key)
        return bool((await get_user({"session": session})).is_authenticated)

    async def _recheck_session(self) -> None:
        while True:
            await asyncio.sleep(self.session_recheck_s)
            if not await self._is_still_logged_in():
                await self.close(code=4401)
                return
