"""The websocket of a page: it joins the topics that the page shows and reports when they change.

The page sends `{"join": ["queue", "job:01k3v9q2m7t"]}` and receives the current number of each topic; after that,
`{"topic": …, "seq": …}` per change. After a gap in the numbers or a new connection, the page reloads its fragments. A
page may only join what its user may see. The session is checked regularly, and the socket closes after a logout.

A socket may name 50 topics in its life, and a user may have 30 sockets in each web process: beyond that the socket
closes with a sentence. The permissions of one message cost at most one query per kind of topic.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from channels.auth import get_user
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.contrib.sessions.backends.db import SessionStore

from acmeweb.updates import fragment_cache, subscriptions, web_load
from failures.models import permissions as failure_permissions
from jobs.models import Job, Team, TeamRole
from scheduling.models import Campaign, Simulation

SHARED_TOPICS = frozenset({"queue", "nodes", "failures", "rules", "campaigns"})
TOPIC_PATTERN = re.compile(
    r"(job:[0-9a-z_]{11,24}|node:\d{1,18}|incident:\d{1,18}|(simulation|campaign):[0-9a-z]{11,16})", re.ASCII
)
MAX_TOPICS = 50
MAX_SOCKETS_PER_USER = 30  # of this process; a user with many tabs has a dozen
SESSION_RECHECK_S = 30
SIGNED_OUT, INVALID, TOO_MANY_SOCKETS = 4401, 4400, 4429

open_sockets: Counter[int] = Counter()  # of this process, by user; only its event loop changes it


def _visible_jobs(user: Any, keys: set[str]) -> set[str]:
    return set(Job.objects.visible_to(user).filter(public_id__in=keys).values_list("public_id", flat=True))


def _visible_incidents(user: Any, keys: set[str]) -> set[str]:
    rows = failure_permissions.visible_incidents(failure_permissions.caller_of_user(user))
    return {str(key) for key in rows.filter(pk__in=keys).values_list("pk", flat=True)}


def _visible_rows(model: type[Simulation] | type[Campaign], user: Any, keys: set[str]) -> set[str]:
    teams = Team.objects.where(user, TeamRole.VIEWER)
    return set(model.objects.filter(public_id__in=keys, team__in=teams).values_list("public_id", flat=True))


# For each kind of topic, which of these keys the user may see. Nodes are open to everybody who is signed in
VISIBLE_KEYS: Mapping[str, Callable[[Any, set[str]], set[str]]] = {
    "job": _visible_jobs,
    "incident": _visible_incidents,
    "simulation": partial(_visible_rows, Simulation),
    "campaign": partial(_visible_rows, Campaign),
}


class LiveConsumer(AsyncJsonWebsocketConsumer):
    channel_layer_alias = None  # SubscriptionHub listens for all pages of the process

    def __init__(self, *args: Any, session_recheck_s: float = SESSION_RECHECK_S, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.session_recheck_s = session_recheck_s
        self.user_id: int | None = None  # of the user for whom this socket counts

    async def __call__(self, *connection: Any) -> None:
        try:
            await super().__call__(*connection)
        finally:  # after an error there is no disconnect
            if self.user_id is not None:
                open_sockets[self.user_id] -= 1
                if not open_sockets[self.user_id]:
                    del open_sockets[self.user_id]

    async def connect(self) -> None:
        self.named: set[str] = set()
        self.topics: set[str] = set()
        self.listener = subscriptions.PageListener(self.send)
        self.checks: asyncio.Task[None] | None = None
        # Browsers see a refused handshake as 1006 whatever the code; accept first, so the page learns it is signed out
        await self.accept()
        user = self.scope["user"]
        if not user.is_authenticated:
            await self.close(code=SIGNED_OUT)
            return
        if open_sockets[user.pk] >= MAX_SOCKETS_PER_USER:
            await self.close(code=TOO_MANY_SOCKETS, reason=f"More than {MAX_SOCKETS_PER_USER} pages are open.")
            return
        self.user_id = user.pk
        open_sockets[user.pk] += 1
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
        if self.user_id is None:
            return  # it is closing
        if not isinstance(names, list):
            await self.close(code=INVALID)
            return
        self.named.update(name for name in names if isinstance(name, str))
        if len(names) > MAX_TOPICS or len(self.named) > MAX_TOPICS:
            await self.close(code=INVALID, reason=f"A page may show at most {MAX_TOPICS} topics.")
            return
        allowed = await self._allowed_topics(list(dict.fromkeys(name for name in names if isinstance(name, str))))
        for topic in allowed:
            if topic not in self.topics:
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

    async def _allowed_topics(self, names: list[str]) -> list[str]:
        """Return the topics that the user may see, in the same order. One query per kind of topic."""
        by_kind: dict[str, set[str]] = {}
        for name in names:
            if TOPIC_PATTERN.fullmatch(name):
                kind, _, key = name.partition(":")
                by_kind.setdefault(kind, set()).add(key)
        nodes = by_kind.pop("node", set())
        seen = {"node": nodes} | (await database_sync_to_async(self.visible_keys)(by_kind) if by_kind else {})
        visible = {f"{kind}:{key}" for kind, keys in seen.items() for key in keys}
        return [name for name in names if name in SHARED_TOPICS or name in visible]

    def visible_keys(self, by_kind: Mapping[str, set[str]]) -> dict[str, set[str]]:
        return {kind: VISIBLE_KEYS[kind](self.scope["user"], keys) for kind, keys in by_kind.items()}

    async def _is_still_logged_in(self) -> bool:
        """Read the session again: the user may have signed out, been deactivated or changed the password."""
        session = SessionStore(self.scope["session"].session_key)
        return bool((await get_user({"session": session})).is_authenticated)

    async def _recheck_session(self) -> None:
        while True:
            await asyncio.sleep(self.session_recheck_s)
            if not await self._is_still_logged_in():
                await self.close(code=SIGNED_OUT)
                return
            await sync_to_async(web_load.reporter.report)(open_sockets.total())
