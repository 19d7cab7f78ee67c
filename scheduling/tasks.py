"""Celery tasks: work that a user requested and that runs for minutes."""

from __future__ import annotations

from datetime import datetime

from celery import shared_task

from jobs.models import clock
from scheduling.loops import simulations


def queue_simulation_worker(now: datetime) -> None:
    """Start a worker if a simulation waits. A loop calls this too, in case a wake-up message was lost."""
    if simulations.has_free_simulation(now):
        run_next_simulation.apply_async(expires=10)
    simulations.delete_old_simulations(now)


# A replay runs longer than a message may stay unacknowledged, so the message is acknowledged early. If the worker dies,
# the loop starts another one.
@shared_task(name="scheduling.simulation", soft_time_limit=600, time_limit=630, acks_late=False)
def run_next_simulation() -> str:
    """Run the next waiting simulation."""
    return str(simulations.run_simulation_once(clock.now) or "")
