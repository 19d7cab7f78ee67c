"""Health: which loops are late, what that means, what failed, and how full the outboxes and the database are.

A loop is late if its last run without an error ended longer ago than its bound. What follows for users is stated beside
the loop, in `acmeweb.loops.table`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Count, Min, Q, QuerySet

from acmeweb.loops.table import GROUPS, PeriodicLoop
from failures.models import Notice
from jobs.core.lifecycle import FAILURE_STATES
from jobs.core.slurm_notation import format_count
from jobs.models import Attempt, ClusterCommand, Loop, LoopFailure
from scheduling.models import Simulation, SimulationState

FAILURES_SHOWN = 50
FAILURE_AGE = timedelta(days=1)
FAILURES_WITHOUT_ROW_WITHIN = timedelta(hours=1)
# The diagnosis loop adds the rows, so a failure without a row waits for it too
NO_VERDICT = Q(stop_state="") & (Q(diagnosis=None) | Q(diagnosis__judged_at=None))
MAX_SENTENCES = 3


@dataclass(frozen=True, kw_only=True)
class LoopHealth:
    """One loop of a cluster or of the installation. `age` counts from the end of the last run without an error."""

    loop: PeriodicLoop
    cluster: str  # empty: a loop of the installation
    age: timedelta
    has_run: bool
    took: timedelta | None
    delay: timedelta | None
    fails: bool

    @property
    def is_late(self) -> bool:
        return self.age > self.loop.bound

    @property
    def title(self) -> str:
        name = self.loop.name.capitalize()
        return f"{name} on {self.cluster}" if self.cluster else name

    @property
    def sentence(self) -> str:
        """What is late, since when, and what that means."""
        verb = "has failed" if self.fails else "has not finished"
        return f"{self.title} {verb} for {_minutes(self.age)}: {self.loop.effect}."


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """Rows that wait for a loop or a worker."""

    kind: str
    name: str
    count: int
    oldest: timedelta | None


@dataclass(frozen=True, kw_only=True)
class Health:
    at: datetime
    loops: Sequence[LoopHealth]

    @property
    def late(self) -> list[LoopHealth]:
        return [row for row in self.loops if row.is_late]

    @property
    def is_alive(self) -> bool:
        """Whether any loop runs."""
        return len(self.late) < len(self.loops)

    @property
    def status(self) -> str:
        return "down" if not self.is_alive else "late" if self.late else "ok"

    def sentences(self, page: str = "") -> list[str]:
        """Return what is late on a page, at most a few sentences; all of it without a page."""
        if not self.loops:
            return ["No loop has run yet. Are the workers running?"]
        if not self.is_alive:
            youngest = min(row.age for row in self.late)
            return [f"No loop has run for {_minutes(youngest)}: nothing here is current. Are the workers running?"]
        late = [row for row in self.late if not page or not row.loop.pages or page in row.loop.pages]
        more = len(late) - MAX_SENTENCES
        sentences = [row.sentence for row in late[:MAX_SENTENCES]]
        if more <= 0:
            return sentences
        return [*sentences, f"{format_count(more, 'other loop')} {'is' if more == 1 else 'are'} late."]


def _minutes(age: timedelta) -> str:
    seconds = age.total_seconds()
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def read_health(now: datetime) -> Health:
    """Return the state of each loop, urgent ones first. One query."""
    return Health(at=now, loops=list(_loops_health(Loop.objects.select_related("cluster"), now)))


def _loops_health(rows: Iterable[Loop], now: datetime) -> Iterable[LoopHealth]:
    by_name: dict[str, list[Loop]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    for group in GROUPS:
        for loop in group.loops:
            for row in sorted(by_name.get(loop.name, ()), key=lambda row: row.cluster.name if row.cluster else ""):
                yield _loop_health(loop, row, now)


def _loop_health(loop: PeriodicLoop, row: Loop, now: datetime) -> LoopHealth:
    return LoopHealth(
        loop=loop,
        cluster=row.cluster.name if row.cluster else "",
        age=now - (row.finished_at or row.created_at),
        has_run=row.finished_at is not None,
        took=row.took,
        delay=row.delay,
        fails=bool(row.last_error),
    )


def recent_failures(now: datetime) -> list[LoopFailure]:
    rows = LoopFailure.objects.filter(last_at__gte=now - FAILURE_AGE).select_related("loop__cluster")
    return list(rows.order_by("-last_at")[:FAILURES_SHOWN])


def backlogs(now: datetime) -> list[Backlog]:
    """Return what waits to be sent, diagnosed or computed, with the age of the oldest."""
    commands = ClusterCommand.objects.open()
    failed = Attempt.objects.filter(ended_at__gte=now - FAILURES_WITHOUT_ROW_WITHIN, state__in=sorted(FAILURE_STATES))
    notices = Notice.objects.open().filter(due_at__lte=now)
    replays = Simulation.objects.filter(state=SimulationState.PENDING)
    return [
        _backlog("commands", "Commands to clusters", commands, "created_at", now),
        _backlog("diagnoses", "Failures without a verdict", failed.filter(NO_VERDICT), "ended_at", now),
        _backlog("notices", "Messages about incidents", notices, "due_at", now),
        _backlog("replays", "What-if replays", replays, "created_at", now),
    ]


def _backlog(kind: str, name: str, rows: QuerySet[Any], since: str, now: datetime) -> Backlog:
    figures = rows.order_by().aggregate(count=Count("pk"), oldest=Min(since))
    oldest = figures["oldest"]
    return Backlog(kind=kind, name=name, count=figures["count"], oldest=now - oldest if oldest else None)


CONNECTIONS_SQL = """
SELECT count(*), current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
FROM pg_stat_activity WHERE backend_type = 'client backend'
"""


def database_connections() -> tuple[int, int]:
    """Return how many clients are connected to the database server, and how many it accepts."""
    with connection.cursor() as cursor:
        cursor.execute(CONNECTIONS_SQL)
        used, most = cursor.fetchone()
        return used, most
