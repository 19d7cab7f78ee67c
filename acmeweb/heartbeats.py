"""Heartbeats, many at a time: the one request that comes a thousand times a second.

A report of heartbeats costs Django two milliseconds and the database a transaction; here all that wait are one
statement. Checkpoints, an Idempotency-Key, a wrong token, an attempt that has ended, a database that is away: those are
Django's.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from django.conf import settings
from rest_framework.exceptions import APIException

from acmeweb.shortcut import Answer, Asked, Collected, Shortcut
from jobs import progress
from jobs.api.progress import Report, read_report
from jobs.door import body
from jobs.progress import Beats, Noted
from jobs.readers import BadSpec

Write = Callable[[Mapping[str, Beats]], Mapping[str, Noted]]


class Heartbeats(Shortcut):
    address = "/api/v1/progress/"

    def __init__(self, django: Any, write: Write = progress.note_many) -> None:
        super().__init__(django)
        self.collected = Collected("heartbeats", write)
        self.pace = PerMinute()

    async def answer(self, asked: Asked) -> Answer | None:
        key = _key_of(asked.token)
        report = _report(asked.raw) if key and "idempotency-key" not in asked.headers else None
        if not (key and report and self.pace.allows(key)):
            return None
        noted = await self.collected.written(key, report.beats)
        return Answer(body=json.dumps(noted.shown(), separators=(",", ":")).encode()) if noted else None


class PerMinute:
    """As many as the door allows each caller; beyond that Django counts, and says when to come back."""

    def __init__(self) -> None:
        self.minute, self.counted = 0, Counter[str]()

    def allows(self, key: str) -> bool:
        minute = int(time.time()) // 60
        if minute != self.minute:
            self.minute, self.counted = minute, Counter()
        self.counted[key] += 1
        return self.counted[key] <= settings.ACME_API_PER_MINUTE


@lru_cache(maxsize=50_000)
def _key_of(token: str) -> str | None:
    return progress.key_of(token)


def _report(raw: bytes) -> Report | None:
    """Heartbeats that can be read, and nothing else."""
    try:
        asked = body.read(raw)
        report = read_report(asked) if isinstance(asked, dict) else None
    except (APIException, BadSpec):
        return None
    return report if report and report.is_beats_alone else None
