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

from acmeweb import live
from jobs import journal
from jobs.journal import Author
from jobs.models import Team
from jobs.publicid import public_id
from scheduling.models import UNFINISHED, UPLOAD, Simulation, SimulationState, UploadedTrace

SIMULATOR = Author(by="simulator")
MOST_WAITING = 5  # of one person
MOST_TRIES = 3
TURNSTILE = 0x51A7E  # one replay at a time: the advisory lock under which a worker takes one


class SimulationError(Exception):
    pass


class Gone(SimulationError):
    pass


class TooMany(SimulationError):
    pass


@transaction.atomic
def ask(
    *, trace: str, policies: Sequence[str], params: Mapping[str, Any], team: Team, author: Author, now: datetime
) -> Simulation:
    assert author.user_id is not None
    # Two requests at once of one person count each other
    _lock(author.user_id, TURNSTILE)
    waiting = Simulation.objects.unfinished().filter(user_id=author.user_id).count()
    if waiting >= MOST_WAITING:
        raise TooMany(f"{waiting} of your simulations have not ended yet; cancel one or wait.")
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('jobs_public_id')")
        name = public_id(now, cursor.fetchone()[0])
    made = Simulation.objects.create(
        public_id=name, trace=trace, policies=list(policies), params=dict(params), team=team, user_id=author.user_id
    )
    if trace.startswith(UPLOAD):
        UploadedTrace.objects.filter(pk=int(trace.removeprefix(UPLOAD))).update(used_at=now)
    _tell(made, author, "", SimulationState.PENDING)
    return made


@transaction.atomic
def take(now: datetime) -> Simulation | None:
    """The next one that nobody is at, if no other is being worked on. Who has been tried too often fails here."""
    _lock(0, TURNSTILE)
    if Simulation.objects.at_work(now).exists():
        return None
    free = Simulation.objects.free(now)
    for spent in free.filter(tries__gte=MOST_TRIES):
        _end(spent, SimulationState.FAILED, now, error=f"Its worker died {MOST_TRIES} times; the last time at work.")
    if (chosen := free.filter(tries__lt=MOST_TRIES).order_by("tries", "id").first()) is None:
        return None
    before = chosen.state
    mine = Simulation.objects.filter(pk=chosen.pk, state=before, tries=chosen.tries)
    mine.update(state=SimulationState.RUNNING, tries=F("tries") + 1, started_at=now, heard_at=now, progress=0.0)
    chosen.refresh_from_db()
    _tell(chosen, SIMULATOR, before, SimulationState.RUNNING)
    return chosen


def report(simulation: Simulation, progress: float, now: datetime) -> None:
    """Raises Gone when somebody cancelled it or another worker has taken it over."""
    mine = _of_this_try(simulation)
    if not mine.update(progress=progress, heard_at=now):
        raise Gone(f"{simulation} is no longer ours to run.")
    live.changed(_topic(simulation))


@transaction.atomic
def finish(simulation: Simulation, result: Mapping[str, Any], now: datetime) -> None:
    _end(simulation, SimulationState.COMPLETED, now, result=dict(result), progress=100.0)


@transaction.atomic
def fail(simulation: Simulation, error: str, now: datetime) -> None:
    _end(simulation, SimulationState.FAILED, now, error=error)


@transaction.atomic
def cancel(simulation: Simulation, *, author: Author, now: datetime) -> None:
    """Its worker hears of it within a second."""
    row = Simulation.objects.select_for_update().get(pk=simulation.pk)
    if row.state not in UNFINISHED:
        raise Gone(f"{simulation} has ended: it is {row.state}.")
    Simulation.objects.filter(pk=row.pk).update(state=SimulationState.CANCELLED, ended_at=now)
    _tell(row, author, row.state, SimulationState.CANCELLED)


def _of_this_try(simulation: Simulation) -> Any:
    return Simulation.objects.filter(pk=simulation.pk, state=SimulationState.RUNNING, tries=simulation.tries)


def _end(simulation: Simulation, state: str, now: datetime, **columns: Any) -> None:
    if not _of_this_try(simulation).update(state=state, ended_at=now, **columns):
        raise Gone(f"{simulation} is no longer ours to end.")
    _tell(simulation, SIMULATOR, SimulationState.RUNNING, state, why=columns.get("error", ""))


def _tell(simulation: Simulation, author: Author, before: str, after: str, why: str = "") -> None:
    what = "simulation.moved" if before else "simulation.asked"
    detail = {"simulation": simulation.public_id}
    journal.event(what, author, from_state=before, to_state=after, why=why, detail=detail).save()
    live.changed(_topic(simulation))


def _topic(simulation: Simulation) -> str:
    return f"simulation:{simulation.public_id}"


def _lock(number: int, turnstile: int) -> None:
    """Until the end of the transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [turnstile, number])
