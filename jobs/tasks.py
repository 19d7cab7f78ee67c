"""Celery tasks of the app. Each calls one function of `jobs.actions`."""

from __future__ import annotations

import time

from celery import shared_task

from jobs.actions.bulk import background
from jobs.models import clock

RUN_S = 30.0  # a message may not stay unacknowledged for long


@shared_task(name="jobs.bulk_actions")
def run_bulk_actions() -> int:
    """Perform bulk actions. What is left after 30 seconds is left to the next run."""
    end = time.monotonic() + RUN_S
    batches = background.run_bulk_actions_once(clock.now, lambda: time.monotonic() >= end)
    if batches and background.has_unfinished_bulk_actions():
        run_bulk_actions.apply_async()
    return batches
