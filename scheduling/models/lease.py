"""Leases: at most one worker runs a loop at a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.db import connection, models, transaction

from acmeweb.common.connection_release import keep_connection_for, release_connection_of

# A database session ends with its process, because the kernel closes the socket. A session's pid may be reused, so its
# start time is compared too. If the role may not see the start time of other sessions, the session counts as alive:
# waiting for the lease to expire is always safe.
LOCK_LEASE_SQL = """
    SELECT l.expires_at > clock_timestamp(), EXISTS (
        SELECT 1 FROM pg_stat_activity s
        WHERE s.pid = l.session AND coalesce(s.backend_start, l.session_began) = l.session_began
    )
    FROM scheduling_lease l WHERE l.name = %s FOR UPDATE OF l
"""
TAKE_LEASE_SQL = """
    UPDATE scheduling_lease l
    SET holder = %s, term = l.term + 1, expires_at = clock_timestamp() + %s,
        session = s.pid, session_began = s.backend_start
    FROM pg_stat_activity s WHERE s.pid = pg_backend_pid() AND l.name = %s RETURNING l.term
"""


@dataclass(frozen=True, kw_only=True)
class AcquiredLease:
    """`alone`: the previous holder released the lease or is dead. Otherwise it may be suspended and resume later."""

    term: int
    alone: bool


class Lease(models.Model):
    """The right to run a loop. Times are the database's; each new holder gets a higher term.

    The lease only saves work. Correctness comes from guarded writes and from `holds_term()` inside the transaction of
    each decision: a worker that was suspended past the end of its lease cannot commit decisions. If the database
    session of a holder is gone, the holder is dead and the lease is free at once; a suspended holder keeps its
    session, and its lease expires. So a thread that has taken a lease keeps its database connection during calls.
    Behind a connection pooler that shares sessions, a dead holder may be detected late (then the lease has to expire)
    or a live one may look dead (then the term fences it off).
    """

    name = models.CharField(max_length=80, unique=True)
    holder = models.CharField(max_length=120)
    term = models.BigIntegerField(default=1)
    expires_at = models.DateTimeField()
    session = models.IntegerField(null=True, help_text="The holder's process in the database; none: given back.")
    session_began = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.name} held by {self.holder} (term {self.term})"

    @classmethod
    def take(cls, name: str, holder: str, ttl: timedelta) -> AcquiredLease | None:
        """Acquire the lease if it is free or expired or its holder is dead. Return None if another worker holds it."""
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO scheduling_lease (name, holder, term, expires_at) VALUES (%s, '', 0, clock_timestamp())"
                " ON CONFLICT (name) DO NOTHING",
                [name],
            )
            cursor.execute(LOCK_LEASE_SQL, [name])
            runs, lives = cursor.fetchone()
            if runs and lives:
                return None
            cursor.execute(TAKE_LEASE_SQL, [holder, ttl, name])
            acquired = AcquiredLease(term=cursor.fetchone()[0], alone=not lives)
        keep_connection_for(name)
        return acquired

    @classmethod
    def holds_term(cls, name: str, term: int) -> bool:
        """Whether the lease is still held. Call it inside a transaction: the row stays locked, so no other worker can
        take the lease before the commit."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT 1 FROM scheduling_lease WHERE name = %s AND term = %s AND expires_at > clock_timestamp()"
                " FOR SHARE",
                [name, term],
            )
            return cursor.fetchone() is not None

    @classmethod
    def renew(cls, name: str, term: int, ttl: timedelta) -> bool:
        """Extend the lease. Return False if it has expired, even if no other worker has taken it yet."""
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE scheduling_lease SET expires_at = clock_timestamp() + %s"
                " WHERE name = %s AND term = %s AND expires_at > clock_timestamp()",
                [ttl, name, term],
            )
            return cursor.rowcount == 1

    @classmethod
    def release(cls, name: str, term: int) -> None:
        release_connection_of(name)
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE scheduling_lease SET expires_at = clock_timestamp(), session = NULL, session_began = NULL"
                " WHERE name = %s AND term = %s",
                [name, term],
            )
