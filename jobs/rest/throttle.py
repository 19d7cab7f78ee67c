"""So many requests a minute and user; more are told when to come back.

A fixed window counted in Valkey, so that all web processes share it. Without Valkey each process counts for itself:
a limit that is too generous for a while is better than a door that is shut.
"""

from __future__ import annotations

import time
from collections import Counter as Times
from collections.abc import Iterable, Mapping
from typing import Any

import redis
from django.conf import settings
from rest_framework.throttling import BaseThrottle

WINDOW_S = 60
VALKEY_RETRY_S = 5  # how long a Valkey that did not answer is left alone


class PerUserThrottle(BaseThrottle):
    name = ""  # of the counter; an endpoint that costs more than others has one of its own

    @property
    def most(self) -> int:
        return settings.ACME_API_PER_MINUTE

    def allow_request(self, request: Any, view: Any) -> bool:
        if request.user is None:
            return True  # refused for another reason a moment later
        return counter.count(f"api:{self.name}{request.user.pk}", WINDOW_S) <= self.most

    def wait(self) -> float:
        return seconds_until_next_window(WINDOW_S)


def users_within_limit(user_ids: Iterable[int]) -> set[int]:
    """One request more of each that is named; those users who may go on."""
    seen = {f"api:{user_id}": times for user_id, times in Times(user_ids).items()}
    found = counter.increment_many(seen, WINDOW_S) if seen else {}
    return {int(what.removeprefix("api:")) for what, times in found.items() if times <= settings.ACME_API_PER_MINUTE}


def seconds_until_next_window(window_s: int) -> int:
    """Seconds until the next window."""
    return window_s - int(time.time()) % window_s


class WindowCounter:
    """Of what happened within a window; the name of the window is part of what is counted."""

    def __init__(self) -> None:
        self.server: redis.Redis | None = None
        self.away_until = 0.0
        self.here: dict[str, int] = {}

    def count(self, what: str, window_s: int) -> int:
        return self.increment_many({what: 1}, window_s)[what]

    def increment_many(self, seen: Mapping[str, int], window_s: int) -> dict[str, int]:
        """How often each has happened within this window, those with it."""
        window = int(time.time()) // window_s
        names = {what: f"{what}:{window}" for what in seen}
        found = self._increment_in_valkey({names[what]: times for what, times in seen.items()}, window_s * 2)
        if found is not None:
            return dict(zip(seen, found, strict=True))
        if len(self.here) > 10_000:
            self.here.clear()
        for what, times in seen.items():
            self.here[names[what]] = self.here.get(names[what], 0) + times
        return {what: self.here[name] for what, name in names.items()}

    def look(self, what: str, window_s: int) -> int:
        """As many as were counted, and none more."""
        name = f"{what}:{int(time.time()) // window_s}"
        found = self._increment_in_valkey({name: 0}, None)
        return self.here.get(name, 0) if found is None else found[0]

    def _increment_in_valkey(self, seen: Mapping[str, int], kept_s: int | None) -> list[int] | None:
        """None: each process counts for itself. Without `kept_s` nothing is added."""
        if not settings.VALKEY_URL or time.monotonic() < self.away_until:
            return None
        try:
            if self.server is None:
                url, most_s = settings.VALKEY_URL, settings.VALKEY_COUNTING_S
                self.server = redis.Redis.from_url(url, socket_timeout=most_s, socket_connect_timeout=most_s)
            if kept_s is None:
                return [int(number or 0) for number in self.server.mget([f"acme:{name}" for name in seen])]  # type: ignore[union-attr]
            pipe = self.server.pipeline(transaction=False)
            for name, times in seen.items():
                pipe.incrby(f"acme:{name}", times)
                pipe.expire(f"acme:{name}", kept_s)
            return [int(number) for number in pipe.execute()[::2]]
        except redis.RedisError:
            self.away_until = time.monotonic() + VALKEY_RETRY_S
            return None


counter = WindowCounter()
