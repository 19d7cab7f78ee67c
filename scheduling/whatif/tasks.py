"""Celery tasks: work that a user requested and that runs for minutes."""

from __future__ import annotations

import logging
from datetime import datetime

from celery import shared_task
from django.db import transaction
from kombu.exceptions import OperationalError

from jobs.models import clock
from scheduling.whatif import loops

log = logging.getLogger(__name__)


# A replay runs longer than a message may stay unacknowledged, so the message is acknowledged early. If the worker dies,
# the loop starts another one.
@shared_task(name="scheduling.simulation", soft_time_limit=600, time_limit=630, acks_late=False)
def run_next_simulation() -> str:
    """Run the next waiting simulation."""
    return str(loops.run_simulation_once(clock.now) or "")


def queue_simulation_worker(now: datetime) -> None:
    """Start a worker if a simulation waits. A loop calls this too, in case a wake-up message was lost."""
    if loops.has_free_simulation(now):
        run_next_simulation.apply_async(expires=10)
    loops.delete_old_simulations(now)


def wake_simulation_worker() -> None:
    transaction.on_commit(_queue_next_simulation, robust=True)


def _queue_next_simulation() -> None:
    """Start a worker. If the message is lost, a loop starts one within seconds."""
    try:
        run_next_simulation.apply_async(retry=False, expires=10)
    except (OperationalError, OSError) as error:
        log.info("no simulation worker could be woken: %s", error)
