"""Records which logs Acme has copied completely."""

from __future__ import annotations

from collections.abc import Collection

from jobs.models import Attempt


def mark_logs_complete(attempt_ids: Collection[int]) -> int:
    """Return how many were not complete before."""
    if not attempt_ids:
        return 0
    return Attempt.objects.with_pending_log().filter(pk__in=attempt_ids).update(log_pending=False)
