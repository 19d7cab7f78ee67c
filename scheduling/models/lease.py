"""What the loops need to agree on. The record itself is in `jobs`."""

from __future__ import annotations

from datetime import timedelta

from django.db import connection, models


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
