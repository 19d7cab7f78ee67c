"""What `/metrics` is told through Valkey: durations that several processes measure, added up (how many, how long
together, how many within each bound), and figures that a loop works out now and then.

As everything there they can be lost; then they begin at nothing again, which Prometheus expects of counters. Whoever
measures never waits for a Valkey that is away, and never fails because of it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis
from django.conf import settings

log = logging.getLogger(__name__)

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
VALKEY_RETRY_S = 5.0


@dataclass(frozen=True, kw_only=True)
class DurationCounts:
    count: int
    total_s: float
    within: Sequence[int]  # for each bound, those that took no longer


class _ValkeyConnection:
    """One connection a process; one that did not answer is left alone for a while."""

    def __init__(self) -> None:
        self.away_until = 0.0
        self.server: redis.Redis | None = None

    def ask(self, work: list[tuple[object, ...]]) -> list[object] | None:
        if not settings.VALKEY_URL or time.monotonic() < self.away_until:
            return None
        try:
            if self.server is None:
                url, most_s = settings.VALKEY_URL, settings.VALKEY_COUNTING_S
                self.server = redis.Redis.from_url(url, socket_timeout=most_s, socket_connect_timeout=most_s)
            pipe = self.server.pipeline(transaction=False)
            for words in work:
                pipe.execute_command(*words)
            return pipe.execute()
        except redis.RedisError as error:
            self.away_until = time.monotonic() + VALKEY_RETRY_S
            log.info("a measurement was lost: %s", error)
            return None


valkey = _ValkeyConnection()


@contextmanager
def measure_duration(what: str, of: str) -> Iterator[None]:
    began = time.perf_counter()
    try:
        yield
    finally:
        record_duration(what, of, time.perf_counter() - began)


def record_duration(what: str, of: str, seconds: float) -> None:
    place = f"acme:tally:{what}"
    bound = next((str(number) for number, bound in enumerate(BOUNDS_S) if seconds <= bound), "over")
    valkey.ask([("HINCRBY", place, f"{of}\n{bound}", 1), ("HINCRBYFLOAT", place, f"{of}\ntotal", f"{seconds:.6f}")])


def read_durations(what: str) -> dict[str, DurationCounts]:
    """By what was measured; empty when nobody answers."""
    answers = valkey.ask([("HGETALL", f"acme:tally:{what}")])
    found: dict[str, dict[str, float]] = {}
    kept = answers[0] if answers else {}
    for field, value in kept.items() if isinstance(kept, dict) else ():
        of, _, part = field.decode().partition("\n")
        found.setdefault(of, {})[part] = float(value)
    return {of: _duration_counts(parts) for of, parts in found.items()}


def _duration_counts(parts: dict[str, float]) -> DurationCounts:
    within, so_far = [], 0
    for number in range(len(BOUNDS_S)):
        so_far += int(parts.get(str(number), 0))
        within.append(so_far)
    return DurationCounts(count=so_far + int(parts.get("over", 0)), total_s=parts.get("total", 0.0), within=within)


def store_figures(what: str, of: str, figures: Mapping[str, Any], kept_s: int) -> None:
    """Until the next ones, or for so long: old figures are worse than none."""
    valkey.ask([("SET", f"acme:figures:{what}:{of}", json.dumps(figures), "EX", kept_s)])


def read_figures(what: str, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Of those that there are any of."""
    asked = list(names)
    answers = valkey.ask([("MGET", *(f"acme:figures:{what}:{of}" for of in asked))]) if asked else None
    kept = answers[0] if answers else []
    found = zip(asked, kept if isinstance(kept, list) else [], strict=False)
    return {of: json.loads(text) for of, text in found if text}
