"""What the loops need to agree on, and the replays that people ask for. The record itself is in `jobs`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Self

from django.conf import settings
from django.db import connection, models
from django.db.models.functions import Now

from jobs.models import Team


class Lease(models.Model):
    """Who may run a loop just now. Time is the database's; each new holder gets a higher term.

    The lease saves effort; correctness comes from guarded writes and from `still_held()` inside the transaction of
    each decision: a worker that slept past its lease cannot decide any more.
    """

    name = models.CharField(max_length=80, unique=True)
    holder = models.CharField(max_length=120)
    term = models.BigIntegerField(default=1)
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.name} held by {self.holder} (term {self.term})"

    @classmethod
    def take(cls, name: str, holder: str, ttl: timedelta) -> int | None:
        """The term, if it was free or run out; None while somebody else has it."""
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO scheduling_lease (name, holder, term, expires_at)"
                " VALUES (%(name)s, %(holder)s, 1, clock_timestamp() + %(ttl)s)"
                " ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, term = scheduling_lease.term + 1,"
                " expires_at = excluded.expires_at WHERE scheduling_lease.expires_at <= clock_timestamp()"
                " RETURNING term",
                {"name": name, "holder": holder, "ttl": ttl},
            )
            row = cursor.fetchone()
            return row[0] if row else None

    @classmethod
    def still_held(cls, name: str, term: int) -> bool:
        """Ask inside a transaction: the row stays locked, so nobody can take the lease before the commit."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT 1 FROM scheduling_lease WHERE name = %s AND term = %s AND expires_at > clock_timestamp()"
                " FOR SHARE",
                [name, term],
            )
            return cursor.fetchone() is not None

    @classmethod
    def renew(cls, name: str, term: int, ttl: timedelta) -> bool:
        """Only while it is ours still: a lease that ran out is gone, even if nobody took it yet."""
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE scheduling_lease SET expires_at = clock_timestamp() + %s"
                " WHERE name = %s AND term = %s AND expires_at > clock_timestamp()",
                [ttl, name, term],
            )
            return cursor.rowcount == 1

    @classmethod
    def give_back(cls, name: str, term: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE scheduling_lease SET expires_at = clock_timestamp() WHERE name = %s AND term = %s", [name, term]
            )


class SimulationState(models.TextChoices):
    """The words are those of jobs."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


UNFINISHED = (SimulationState.PENDING, SimulationState.RUNNING)
SILENT_AFTER = timedelta(seconds=60)  # whoever runs one says so every second; a minute of silence is a dead worker


class SimulationQuerySet(models.QuerySet["Simulation"]):
    def unfinished(self) -> Self:
        return self.filter(state__in=UNFINISHED)

    def at_work(self, now: datetime) -> Self:
        """A worker is at it, and has said so lately."""
        return self.filter(state=SimulationState.RUNNING, heard_at__gt=now - SILENT_AFTER)

    def free(self, now: datetime) -> Self:
        """Nobody is at it: it has not begun, or whoever began it fell silent."""
        silent = models.Q(state=SimulationState.RUNNING, heard_at__lte=now - SILENT_AFTER)
        return self.filter(models.Q(state=SimulationState.PENDING) | silent)


class Simulation(models.Model):
    """A replay of a trace under some policies, asked for by a person and carried out by a worker."""

    public_id = models.CharField(max_length=16, unique=True)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="simulations")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="simulations")
    trace = models.CharField(max_length=40, help_text="acme:seren, acme:kalos or history.")
    policies = models.JSONField(default=list)
    params = models.JSONField(default=dict, help_text="The rest of what was asked, as it was asked.")
    state = models.CharField(max_length=10, choices=SimulationState, default=SimulationState.PENDING)
    progress = models.FloatField(default=0.0, help_text="Percent.")
    tries = models.PositiveIntegerField(default=0, help_text="How often a worker began it; its fencing token too.")
    result = models.JSONField(null=True)
    error = models.TextField(blank=True)
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    heard_at = models.DateTimeField(null=True, help_text="When its worker last said that it is at it.")
    ended_at = models.DateTimeField(null=True)

    objects = SimulationQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["team", "-id"], name="simulation_by_team"),
            models.Index(fields=["id"], name="simulation_open", condition=models.Q(state__in=["PENDING", "RUNNING"])),
        ]

    def __str__(self) -> str:
        return self.public_id
