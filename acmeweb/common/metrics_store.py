"""Metrics shared through Valkey for `/metrics`: durations that several processes measure (count, sum, histogram), and
figures that a loop computes periodically.

The data may be lost; counters then restart at zero, which Prometheus expects. A process that measures never waits for
an unavailable Valkey and never fails because of it.
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
    """A histogram of durations."""

    count: int
    total_s: float
    within: Sequence[int]  # for each bound, the durations up to it


class ValkeyConnection:
    """One connection per process. After a failure it is not used for VALKEY_RETRY_S."""

    def __init__(self) -> None:
        self.retry_at = 0.0
        self.server: redis.Redis | None = None

    def ask(self, commands: list[tuple[object, ...]]) -> list[object] | None:
        """Run the commands and return their results; None if Valkey is unavailable or not configured."""
        if not settings.VALKEY_URL or time.monotonic() < self.retry_at:
            return None
        try:
            if self.server is None:
                url, timeout_s = settings.VALKEY_URL, settings.VALKEY_COUNTING_S
                self.server = redis.Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)
            pipe = self.server.pipeline(transaction=False)
            for command in commands:
                pipe.execute_command(*command)
            return pipe.execute()
        except redis.RedisError as error:
            self.retry_at = time.monotonic() + VALKEY_RETRY_S
            log.info("Metrics were not stored: %s", error)
            return None


valkey = ValkeyConnection()


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
    """Return the durations by what was measured; empty if Valkey is unavailable."""
    answers = valkey.ask([("HGETALL", f"acme:tally:{what}")])
    counts: dict[str, dict[str, float]] = {}
    stored = answers[0] if answers else {}
    for field, value in stored.items() if isinstance(stored, dict) else ():
        of, _, part = field.decode().partition("\n")
        counts.setdefault(of, {})[part] = float(value)
    return {of: _duration_counts(parts) for of, parts in counts.items()}


def _duration_counts(parts: dict[str, float]) -> DurationCounts:
    within, total = [], 0
    for number in range(len(BOUNDS_S)):
        total += int(parts.get(str(number), 0))
        within.append(total)
    return DurationCounts(count=total + int(parts.get("over", 0)), total_s=parts.get("total", 0.0), within=within)


def store_figures(what: str, of: str, figures: Mapping[str, Any], lifetime_s: int) -> None:
    """Store figures until the next ones, at most for `lifetime_s`: outdated figures are worse than none."""
    valkey.ask([("SET", f"acme:figures:{what}:{of}", json.dumps(figures), "EX", lifetime_s)])


def read_figures(what: str, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the stored figures of these names; names without figures are omitted."""
    keys = list(names)
    answers = valkey.ask([("MGET", *(f"acme:figures:{what}:{of}" for of in keys))]) if keys else None
    stored = answers[0] if answers else []
    rows = zip(keys, stored if isinstance(stored, list) else [], strict=False)
    return {of: json.loads(text) for of, text in rows if text}
