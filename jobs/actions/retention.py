"""Deletes old rows in bounded batches.

Each batch is a separate transaction. So an interrupted run keeps what it has deleted, locks are short, and a backlog of
any size is deleted over several runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.contrib.sessions.models import Session
from django.db.models import QuerySet

from jobs.models import BulkAction, IdempotencyKey

DELETE_BATCH_SIZE = 5_000
BULK_ACTION_RETENTION = timedelta(days=30)
TABLE_BUDGET_S = 4.0  # per run and table


@dataclass(kw_only=True)
class DeleteDeadline:
    """The time limit of one run for one table."""

    seconds: float = TABLE_BUDGET_S
    monotonic: Callable[[], float] = time.monotonic
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.monotonic()

    @property
    def is_over(self) -> bool:
        return self.monotonic() - self.began >= self.seconds


def delete_all(rows: QuerySet[Any], deadline: DeleteDeadline | None = None, size: int = DELETE_BATCH_SIZE) -> int:
    """Delete as many batches as fit before the deadline, at least one. Return the number of deleted rows."""
    deadline, total = deadline or DeleteDeadline(), 0
    while deleted := delete_batch(rows, size):
        total += deleted
        # A batch that is not full was the last one
        if deleted < size or deadline.is_over:
            break
    return total


def delete_batch(rows: QuerySet[Any], size: int = DELETE_BATCH_SIZE) -> int:
    """Delete at most `size` rows. Return their number."""
    # Select keys first: DELETE has no LIMIT in PostgreSQL
    keys = list(rows.order_by().values_list("pk", flat=True)[:size])
    if keys:
        rows.model._default_manager.filter(pk__in=keys).delete()
    return len(keys)


def delete_expired_web_state(now: datetime) -> int:
    """Delete expired sessions, stored API responses that are too old to be repeated, and old bulk actions."""
    old_actions = BulkAction.objects.filter(ended_at__lt=now - BULK_ACTION_RETENTION)
    return (
        delete_all(Session.objects.filter(expire_date__lt=now))
        + delete_all(IdempotencyKey.objects.forgotten(now))
        + delete_all(old_actions)
    )
