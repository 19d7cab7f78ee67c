"""Rate limit per user and minute; requests beyond it get 429 with Retry-After.

Requests are counted per fixed window in Valkey, so that all web processes share the limit. While Valkey is
unavailable, each process counts on its own: a limit that is too generous for a while is better than an outage.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import redis
from django.conf import settings
from rest_framework.throttling import BaseThrottle

WINDOW_S = 60
VALKEY_RETRY_S = 5  # pause after Valkey did not respond, before it is used again


class PerUserThrottle(BaseThrottle):
    name = ""  # of the counter; expensive endpoints use a counter of their own

    @property
    def most(self) -> int:
        return settings.ACME_API_PER_MINUTE

    def allow_request(self, request: Any, view: Any) -> bool:
        if request.user is None:
            return True  # authentication refuses the request afterwards
        return is_within_limit(f"{self.name}{request.user.pk}", self.most)

    def wait(self) -> float:
        return seconds_until_next_window(WINDOW_S)


def is_within_limit(what: str, most: int) -> bool:
    """Count one event and return whether there were at most so many in the current window."""
    return counter.count(f"api:{what}", WINDOW_S) <= most


def users_within_limit(user_ids: Iterable[int]) -> set[int]:
    """Count one request per listed id (ids may repeat) and return the users who are within their limit."""
    increments = {f"api:{user_id}": times for user_id, times in Counter(user_ids).items()}
    totals = counter.increment_many(increments, WINDOW_S) if increments else {}
    return {int(what.removeprefix("api:")) for what, times in totals.items() if times <= settings.ACME_API_PER_MINUTE}


def seconds_until_next_window(window_s: int) -> int:
    return window_s - int(time.time()) % window_s


class WindowCounter:
    """Counts events per time window. The window's number is part of each counter's name."""

    def __init__(self) -> None:
        self.server: redis.Redis | None = None
        self.away_until = 0.0
        self.here: dict[str, int] = {}

    def count(self, what: str, window_s: int) -> int:
        return self.increment_many({what: 1}, window_s)[what]

    def increment_many(self, increments: Mapping[str, int], window_s: int) -> dict[str, int]:
        """Add to each counter; returns the new totals of the current window."""
        window = int(time.time()) // window_s
        names = {what: f"{what}:{window}" for what in increments}
        totals = self._increment_in_valkey({names[what]: times for what, times in increments.items()}, window_s * 2)
        if totals is not None:
            return dict(zip(increments, totals, strict=True))
        if len(self.here) > 10_000:  # old windows are never removed one by one
            self.here.clear()
        for what, times in increments.items():
            self.here[names[what]] = self.here.get(names[what], 0) + times
        return {what: self.here[name] for what, name in names.items()}

    def look(self, what: str, window_s: int) -> int:
        """The total of the current window, without adding to it."""
        name = f"{what}:{int(time.time()) // window_s}"
        totals = self._increment_in_valkey({name: 0}, None)
        return self.here.get(name, 0) if totals is None else totals[0]

    def _increment_in_valkey(self, increments: Mapping[str, int], expire_s: int | None) -> list[int] | None:
        """The totals after adding, or unchanged if `expire_s` is None. Returns None if Valkey is unavailable."""
        if not settings.VALKEY_URL or time.monotonic() < self.away_until:
            return None
        try:
            if self.server is None:
                url, most_s = settings.VALKEY_URL, settings.VALKEY_COUNTING_S
                self.server = redis.Redis.from_url(url, socket_timeout=most_s, socket_connect_timeout=most_s)
            if expire_s is None:
                keys = [f"acme:{name}" for name in increments]
                return [int(number or 0) for number in self.server.mget(keys)]  # type: ignore[union-attr]
            pipe = self.server.pipeline(transaction=False)
            for name, times in increments.items():
                pipe.incrby(f"acme:{name}", times)
                pipe.expire(f"acme:{name}", expire_s)
            return [int(number) for number in pipe.execute()[::2]]
        except redis.RedisError:
            self.away_until = time.monotonic() + VALKEY_RETRY_S
            return None


counter = WindowCounter()
