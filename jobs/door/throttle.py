"""So many requests a minute and user; more are told when to come back.

A fixed window counted in Valkey, so that all web processes share it. Without Valkey each process counts for itself:
a limit that is too generous for a while is better than a door that is shut.
"""

from __future__ import annotations

import time
from collections import Counter
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
        now = time.time()
        self.rest_s = WINDOW_S - int(now) % WINDOW_S
        return _counter.count(f"{self.name}{request.user.pk}:{int(now) // WINDOW_S}") <= self.most

    def wait(self) -> float:
        return self.rest_s


class _Counter:
    def __init__(self) -> None:
        self.server: redis.Redis | None = None
        self.away_until = 0.0
        self.here: Counter[str] = Counter()

    def count(self, name: str) -> int:
        if settings.VALKEY_URL and time.monotonic() >= self.away_until:
            try:
                return self._shared(name)
            except redis.RedisError:
                self.away_until = time.monotonic() + AWAY_S
        if len(self.here) > 10_000:
            self.here.clear()
        self.here[name] += 1
        return self.here[name]

    def _shared(self, name: str) -> int:
        if self.server is None:
            self.server = redis.Redis.from_url(settings.VALKEY_URL, socket_timeout=0.5, socket_connect_timeout=0.5)
        pipe = self.server.pipeline(transaction=False)
        pipe.incr(f"acme:api:{name}")
        pipe.expire(f"acme:api:{name}", WINDOW_S * 2)
        return int(pipe.execute()[0])


_counter = _Counter()
