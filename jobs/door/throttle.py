"""So many requests a minute and user; more are told when to come back.

A fixed window counted in Valkey, so that all web processes share it. Without Valkey each process counts for itself:
a limit that is too generous for a while is better than a door that is shut.
"""

from __future__ import annotations

import time
from typing import Any

import redis
from django.conf import settings
from rest_framework.throttling import BaseThrottle

WINDOW_S = 60
AWAY_S = 5  # how long a Valkey that did not answer is left alone


class PerUser(BaseThrottle):
    name = ""  # of the counter; an endpoint that costs more than others has one of its own

    @property
    def most(self) -> int:
        return settings.ACME_API_PER_MINUTE

    def allow_request(self, request: Any, view: Any) -> bool:
        if request.user is None:
            return True  # refused for another reason a moment later
        return counter.count(f"api:{self.name}{request.user.pk}", WINDOW_S) <= self.most

    def wait(self) -> float:
        return rest_of(WINDOW_S)


def rest_of(window_s: int) -> int:
    """Seconds until the next window."""
    return window_s - int(time.time()) % window_s


class Counter:
    """Of what happened within a window; the name of the window is part of what is counted."""

    def __init__(self) -> None:
        self.server: redis.Redis | None = None
        self.away_until = 0.0
        self.here: dict[str, int] = {}

    def count(self, what: str, window_s: int) -> int:
        name = f"{what}:{int(time.time()) // window_s}"
        found = self._shared(name, window_s * 2)
        if found is not None:
            return found
        if len(self.here) > 10_000:
            self.here.clear()
        self.here[name] = self.here.get(name, 0) + 1
        return self.here[name]

    def look(self, what: str, window_s: int) -> int:
        """As many as were counted, and none more."""
        name = f"{what}:{int(time.time()) // window_s}"
        found = self._shared(name, None)
        return self.here.get(name, 0) if found is None else found

    def _shared(self, name: str, kept_s: int | None) -> int | None:
        """None: each process counts for itself. Without `kept_s` nothing is added."""
        if not settings.VALKEY_URL or time.monotonic() < self.away_until:
            return None
        try:
            if self.server is None:
                url, most_s = settings.VALKEY_URL, settings.VALKEY_COUNTING_S
                self.server = redis.Redis.from_url(url, socket_timeout=most_s, socket_connect_timeout=most_s)
            if kept_s is None:
                return int(self.server.get(f"acme:{name}") or 0)  # type: ignore[arg-type]
            pipe = self.server.pipeline(transaction=False)
            pipe.incr(f"acme:{name}")
            pipe.expire(f"acme:{name}", kept_s)
            return int(pipe.execute()[0])
        except redis.RedisError:
            self.away_until = time.monotonic() + AWAY_S
            return None


counter = Counter()
