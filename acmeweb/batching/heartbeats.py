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

from acmeweb.batching.asgi_batching import BatchableRequest, BatchingMiddleware, BatchResponse, BatchWriter
from jobs.actions import progress
from jobs.actions.progress import HeartbeatResult, HeartbeatRows
from jobs.api.progress import ProgressReport, parse_report
from jobs.core.parsing import InvalidField
from jobs.rest import json_body

WriteHeartbeats = Callable[[Mapping[str, HeartbeatRows]], Mapping[str, HeartbeatResult]]


class HeartbeatBatching(BatchingMiddleware):
    address = "/api/v1/progress/"

    def __init__(self, django: Any, write: WriteHeartbeats = progress.record_heartbeats) -> None:
        super().__init__(django)
        self.collected = BatchWriter("heartbeats", write)
        self.pace = MinuteRateLimit()

    async def answer(self, asked: BatchableRequest) -> BatchResponse | None:
        key = _attempt_key(asked.token)
        report = _parse_heartbeats(asked.raw) if key and "idempotency-key" not in asked.headers else None
        if not (key and report and self.pace.allow_request(key)):
            return None
        noted = await self.collected.submit_and_wait(key, report.beats)
        return BatchResponse(body=json.dumps(noted.shown(), separators=(",", ":")).encode()) if noted else None


class MinuteRateLimit:
    """As many as the door allows each caller; beyond that Django counts, and says when to come back."""

    def __init__(self) -> None:
        self.minute, self.counted = 0, Counter[str]()

    def allow_request(self, key: str) -> bool:
        minute = int(time.time()) // 60
        if minute != self.minute:
            self.minute, self.counted = minute, Counter()
        self.counted[key] += 1
        return self.counted[key] <= settings.ACME_API_PER_MINUTE


@lru_cache(maxsize=50_000)
def _attempt_key(token: str) -> str | None:
    return progress.run_token_key(token)


def _parse_heartbeats(raw: bytes) -> ProgressReport | None:
    """Heartbeats that can be read, and nothing else."""
    try:
        asked = json_body.read(raw)
        report = parse_report(asked) if isinstance(asked, dict) else None
    except (APIException, InvalidField):
        return None
    return report if report and report.only_heartbeats else None
