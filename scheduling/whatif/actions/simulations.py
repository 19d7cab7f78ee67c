"""All changes to simulations.

Each function changes the state in one guarded UPDATE and writes its Event in the same transaction. The writes of a
worker check the number of its try, so a worker that was presumed dead cannot change anything when it returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import connection, transaction
from django.db.models import F

from acmeweb.common import live
from acmeweb.common.errors import ClaimLost, StateConflict
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.core.public_id import public_id
from jobs.models import Team
from scheduling.models import UNFINISHED_STATES, UPLOAD_PREFIX, Simulation, SimulationState, UploadedTrace

SIMULATOR_AUTHOR = Author(by="simulator")
MAX_UNFINISHED_PER_USER = 5
MAX_SIMULATION_TRIES = 3
ADVISORY_LOCK_ID = 0x51A7E  # serializes the claims of workers, so that one replay runs at a time


@transaction.atomic
def create_simulation(
    *, trace: str, policies: Sequence[str], params: Mapping[str, Any], team: Team, author: Author, now: datetime
) -> Simulation:
    assert author.user_id is not None
    # Serializes the user's requests, so that concurrent ones count each other
    _advisory_lock(author.user_id, ADVISORY_LOCK_ID)
    waiting = Simulation.objects.unfinished().filter(user_id=author.user_id).count()
    if waiting >= MAX_UNFINISHED_PER_USER:
        raise StateConflict(f"You have {waiting} unfinished simulations. Cancel one or wait.")
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('jobs_public_id')")
        name = public_id(now, cursor.fetchone()[0])
    simulation = Simulation.objects.create(
        public_id=name, trace=trace, policies=list(policies), params=dict(params), team=team, user_id=author.user_id
    )
    if trace.startswith(UPLOAD_PREFIX):
        UploadedTrace.objects.filter(pk=int(trace.removeprefix(UPLOAD_PREFIX))).update(used_at=now)
    _log_simulation_event(simulation, author, "", SimulationState.PENDING)
    return simulation


@transaction.atomic
def claim_simulation(now: datetime) -> Simulation | None:
    """Return the next simulation without a worker, or None while another one runs. A simulation whose worker died too
    often fails here."""
    _advisory_lock(0, ADVISORY_LOCK_ID)
    if Simulation.objects.with_live_worker(now).exists():
        return None
    free = Simulation.objects.free(now)
    for exhausted in free.filter(tries__gte=MAX_SIMULATION_TRIES):
        _end_simulation(
            exhausted,
            SimulationState.FAILED,
            now,
            error=f"The worker died {MAX_SIMULATION_TRIES} times during this simulation.",
        )
    if (simulation := free.filter(tries__lt=MAX_SIMULATION_TRIES).order_by("tries", "id").first()) is None:
        return None
    before = simulation.state
    row = Simulation.objects.filter(pk=simulation.pk, state=before, tries=simulation.tries)
    row.update(state=SimulationState.RUNNING, tries=F("tries") + 1, started_at=now, heartbeat_at=now, progress=0.0)
    simulation.refresh_from_db()
    _log_simulation_event(simulation, SIMULATOR_AUTHOR, before, SimulationState.RUNNING)
    return simulation


def report_progress(simulation: Simulation, progress: float, now: datetime) -> None:
    """Record the progress. Raises ClaimLost if it was cancelled or another worker took over."""
    if not _this_try_rows(simulation).update(progress=progress, heartbeat_at=now):
        raise ClaimLost(f"{simulation} was cancelled, or another worker runs it.")
    live.publish_on_commit(_simulation_topic(simulation))


@transaction.atomic
def finish(simulation: Simulation, result: Mapping[str, Any], now: datetime) -> None:
    _end_simulation(simulation, SimulationState.COMPLETED, now, result=dict(result), progress=100.0)


@transaction.atomic
def fail(simulation: Simulation, error: str, now: datetime) -> None:
    _end_simulation(simulation, SimulationState.FAILED, now, error=error)


@transaction.atomic
def cancel(simulation: Simulation, *, author: Author, now: datetime) -> None:
    """Cancel a simulation. A running worker notices within a second."""
    row = Simulation.objects.select_for_update().get(pk=simulation.pk)
    if row.state not in UNFINISHED_STATES:
        raise StateConflict(f"{simulation} has already ended: {row.state}.")
    Simulation.objects.filter(pk=row.pk).update(state=SimulationState.CANCELLED, ended_at=now)
    _log_simulation_event(row, author, row.state, SimulationState.CANCELLED)


def _this_try_rows(simulation: Simulation) -> Any:
    return Simulation.objects.filter(pk=simulation.pk, state=SimulationState.RUNNING, tries=simulation.tries)


def _end_simulation(simulation: Simulation, state: str, now: datetime, **columns: Any) -> None:
    if not _this_try_rows(simulation).update(state=state, ended_at=now, **columns):
        raise ClaimLost(f"{simulation} was cancelled, or another worker runs it.")
    _log_simulation_event(simulation, SIMULATOR_AUTHOR, SimulationState.RUNNING, state, why=columns.get("error", ""))


def _log_simulation_event(simulation: Simulation, author: Author, before: str, after: str, why: str = "") -> None:
    what = "simulation.state_changed" if before else "simulation.created"
    detail = {"simulation": simulation.public_id}
    journal.new_event(what, author, from_state=before, to_state=after, why=why, detail=detail).save()
    live.publish_on_commit(_simulation_topic(simulation))


def _simulation_topic(simulation: Simulation) -> str:
    return f"simulation:{simulation.public_id}"


def _advisory_lock(number: int, lock_id: int) -> None:
    """Wait for the lock and hold it until the end of the transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [lock_id, number])
