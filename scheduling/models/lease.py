"""What the loops need to agree on. The record itself is in `jobs`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.db import connection, models, transaction

# A database session ends with its process: the kernel closes the socket, whatever killed it. Its number may be given
# again, its beginning may not. Where a role may not see another's beginning it counts as there; waiting is never wrong.
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
    """`alone`: who had it before gave it back or is dead. Otherwise he may only sleep, and wake up in the middle."""

    term: int
    alone: bool


class Lease(models.Model):
    """Who may run a loop just now. Time is the database's; each new holder gets a higher term.

    The lease saves effort; correctness comes from guarded writes and from `still_held()` inside the transaction of
    each decision: a worker that slept past its lease cannot decide any more. A holder whose database session is gone
    has surely died, so nobody waits for the end of his lease; one who sleeps keeps his session, and his lease runs out.
    Behind a pooler that shares sessions the end of a holder may be seen late or early: the first costs the rest of the
    lease, the second is fenced by the term like any sleep.
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
        """If it is free, has run out or its holder is dead; None while somebody else has it."""
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
            return AcquiredLease(term=cursor.fetchone()[0], alone=not lives)

    @classmethod
    def holds_term(cls, name: str, term: int) -> bool:
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
    def release(cls, name: str, term: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE scheduling_lease SET expires_at = clock_timestamp(), session = NULL, session_began = NULL"
                " WHERE name = %s AND term = %s",
                [name, term],
            )
