"""Batched heartbeats: the one request that arrives a thousand times per second.

In Django, a report of heartbeats costs two milliseconds and a transaction; here all pending reports are one statement.
Django handles everything else: checkpoints, an Idempotency-Key, an invalid token, an ended attempt, and a database that
is unavailable.
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
from acmeweb.common.errors import InvalidField
from jobs.actions import progress
from jobs.actions.progress import HeartbeatResult, HeartbeatRows
from jobs.api.progress import ProgressReport, parse_report
from jobs.rest import json_body

WriteHeartbeats = Callable[[Mapping[str, HeartbeatRows]], Mapping[str, HeartbeatResult]]


class HeartbeatBatching(BatchingMiddleware):
    address = "/api/v1/progress/"

    def __init__(self, django: Any, write: WriteHeartbeats = progress.record_heartbeats) -> None:
        super().__init__(django)
        self.collected = BatchWriter("heartbeats", write)
        self.pace = MinuteRateLimit()

    async def answer(self, request: BatchableRequest) -> BatchResponse | None:
        key = _attempt_key(request.token)
        report = _parse_heartbeats(request.raw) if key and "idempotency-key" not in request.headers else None
        if not (key and report and self.pace.allow_request(key)):
            return None
        result = await self.collected.submit_and_wait(key, report.beats)
        return BatchResponse(body=json.dumps(result.as_dict(), separators=(",", ":")).encode()) if result else None


class MinuteRateLimit:
    """Allows each caller as many requests as the API does. Beyond that, Django counts and sends Retry-After."""

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
    """Return the report if it is valid and contains only heartbeats."""
    try:
        payload = json_body.read(raw)
        report = parse_report(payload) if isinstance(payload, dict) else None
    except (APIException, InvalidField):
        return None
    return report if report and report.only_heartbeats else None
