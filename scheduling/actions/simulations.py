"""The only code that changes a simulation.

Every verb expects a state, changes it in one guarded UPDATE and writes the Event of it in the same transaction. What a
worker does carries the number of its try: whoever was taken for dead and comes back can change nothing any more.

    SimulationError
    ├── Gone     it is not in the state that the verb expects, or another worker has it
    └── TooMany  so many wait for this person already
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import connection, transaction
from django.db.models import F

from acmeweb.common import live
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.core.public_id import public_id
from jobs.models import Team
from scheduling.models import UNFINISHED_STATES, UPLOAD_PREFIX, Simulation, SimulationState, UploadedTrace

SIMULATOR_AUTHOR = Author(by="simulator")
MAX_UNFINISHED_PER_USER = 5  # of one person
MAX_SIMULATION_TRIES = 3
ADVISORY_LOCK_ID = 0x51A7E  # one replay at a time: the advisory lock under which a worker takes one


class SimulationError(Exception):
    pass


class SimulationStateConflict(SimulationError):
    pass


class TooManySimulations(SimulationError):
    pass


@transaction.atomic
def create_simulation(
    *, trace: str, policies: Sequence[str], params: Mapping[str, Any], team: Team, author: Author, now: datetime
) -> Simulation:
    assert author.user_id is not None
    # Two requests at once of one person count each other
    _advisory_lock(author.user_id, ADVISORY_LOCK_ID)
    waiting = Simulation.objects.unfinished().filter(user_id=author.user_id).count()
    if waiting >= MAX_UNFINISHED_PER_USER:
        raise TooManySimulations(f"{waiting} of your simulations have not ended yet; cancel one or wait.")
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('jobs_public_id')")
        name = public_id(now, cursor.fetchone()[0])
    made = Simulation.objects.create(
        public_id=name, trace=trace, policies=list(policies), params=dict(params), team=team, user_id=author.user_id
    )
    if trace.startswith(UPLOAD_PREFIX):
        UploadedTrace.objects.filter(pk=int(trace.removeprefix(UPLOAD_PREFIX))).update(used_at=now)
    _log_simulation_event(made, author, "", SimulationState.PENDING)
    return made


@transaction.atomic
def claim_simulation(now: datetime) -> Simulation | None:
    """The next one that nobody is at, if no other is being worked on. Who has been tried too often fails here."""
    _advisory_lock(0, ADVISORY_LOCK_ID)
    if Simulation.objects.with_live_worker(now).exists():
        return None
    free = Simulation.objects.free(now)
    for spent in free.filter(tries__gte=MAX_SIMULATION_TRIES):
        _end_simulation(
            spent,
            SimulationState.FAILED,
            now,
            error=f"Its worker died {MAX_SIMULATION_TRIES} times; the last time at work.",
        )
    if (chosen := free.filter(tries__lt=MAX_SIMULATION_TRIES).order_by("tries", "id").first()) is None:
        return None
    before = chosen.state
    mine = Simulation.objects.filter(pk=chosen.pk, state=before, tries=chosen.tries)
    mine.update(state=SimulationState.RUNNING, tries=F("tries") + 1, started_at=now, heard_at=now, progress=0.0)
    chosen.refresh_from_db()
    _log_simulation_event(chosen, SIMULATOR_AUTHOR, before, SimulationState.RUNNING)
    return chosen


def report_progress(simulation: Simulation, progress: float, now: datetime) -> None:
    """Raises Gone when somebody cancelled it or another worker has taken it over."""
    mine = _this_try_rows(simulation)
    if not mine.update(progress=progress, heard_at=now):
        raise SimulationStateConflict(f"{simulation} is no longer ours to run.")
    live.publish_on_commit(_simulation_topic(simulation))


@transaction.atomic
def finish(simulation: Simulation, result: Mapping[str, Any], now: datetime) -> None:
    _end_simulation(simulation, SimulationState.COMPLETED, now, result=dict(result), progress=100.0)


@transaction.atomic
def fail(simulation: Simulation, error: str, now: datetime) -> None:
    _end_simulation(simulation, SimulationState.FAILED, now, error=error)


@transaction.atomic
def cancel(simulation: Simulation, *, author: Author, now: datetime) -> None:
    """Its worker hears of it within a second."""
    row = Simulation.objects.select_for_update().get(pk=simulation.pk)
    if row.state not in UNFINISHED_STATES:
        raise SimulationStateConflict(f"{simulation} has ended: it is {row.state}.")
    Simulation.objects.filter(pk=row.pk).update(state=SimulationState.CANCELLED, ended_at=now)
    _log_simulation_event(row, author, row.state, SimulationState.CANCELLED)


def _this_try_rows(simulation: Simulation) -> Any:
    return Simulation.objects.filter(pk=simulation.pk, state=SimulationState.RUNNING, tries=simulation.tries)


def _end_simulation(simulation: Simulation, state: str, now: datetime, **columns: Any) -> None:
    if not _this_try_rows(simulation).update(state=state, ended_at=now, **columns):
        raise SimulationStateConflict(f"{simulation} is no longer ours to end.")
    _log_simulation_event(simulation, SIMULATOR_AUTHOR, SimulationState.RUNNING, state, why=columns.get("error", ""))


def _log_simulation_event(simulation: Simulation, author: Author, before: str, after: str, why: str = "") -> None:
    what = "simulation.moved" if before else "simulation.asked"
    detail = {"simulation": simulation.public_id}
    journal.new_event(what, author, from_state=before, to_state=after, why=why, detail=detail).save()
    live.publish_on_commit(_simulation_topic(simulation))


def _simulation_topic(simulation: Simulation) -> str:
    return f"simulation:{simulation.public_id}"


def _advisory_lock(number: int, turnstile: int) -> None:
    """Until the end of the transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [turnstile, number])
