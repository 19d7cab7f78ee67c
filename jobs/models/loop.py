"""The schedule of the loops: when each is due, which process runs it, how its last run went, and what failed in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection, models

from acmeweb.common.connection_release import keep_connection_for, release_connection_of

# One row per loop, or per loop and cluster. A new row is due at once.
ADD_LOOPS_SQL = """
INSERT INTO jobs_loop (key, name, cluster_id, term, due_at, created_at, holder, last_error)
SELECT key, name, cluster_id, 0, clock_timestamp(), clock_timestamp(), '', '' FROM (
    SELECT loop || ':' || c.id AS key, loop AS name, c.id AS cluster_id
    FROM unnest(%(of_clusters)s::text[]) AS loop, jobs_cluster c
    UNION ALL SELECT loop, loop, NULL FROM unnest(%(global)s::text[]) AS loop
) wanted
WHERE NOT EXISTS (SELECT 1 FROM jobs_loop l WHERE l.key = wanted.key)
ON CONFLICT (key) DO NOTHING
"""

# A row with `began_at` is running, unless its limit has passed or the database session of its process is gone: the
# session ends with the process, because the kernel closes the socket. A session's pid may be reused, so its start time
# is compared too. If the role may not see the start time of other sessions, the session counts as alive.
CLAIM_LOOP_SQL = """
WITH picked AS (
    SELECT id, began_at AS abandoned_at, due_at FROM jobs_loop
    WHERE name = ANY(%(names)s) AND due_at <= clock_timestamp()
        AND (began_at IS NULL OR limit_at < clock_timestamp() OR NOT EXISTS (
            SELECT 1 FROM pg_stat_activity s
            WHERE s.pid = session AND coalesce(s.backend_start, session_began) = session_began
        ))
    ORDER BY due_at, id LIMIT 1 FOR UPDATE SKIP LOCKED
)
UPDATE jobs_loop l
SET term = l.term + 1, holder = %(holder)s, session = s.pid, session_began = s.backend_start,
    began_at = clock_timestamp(), delay = clock_timestamp() - l.due_at,
    limit_at = clock_timestamp() + make_interval(secs => (%(limits)s::jsonb ->> l.name)::float8),
    due_at = clock_timestamp() + make_interval(secs => (%(intervals)s::jsonb ->> l.name)::float8)
FROM picked, pg_stat_activity s
WHERE l.id = picked.id AND s.pid = pg_backend_pid()
RETURNING l.id, l.name, l.cluster_id, l.term, l.began_at, picked.abandoned_at
"""

# The claim already sets the next due time, so that a loop whose process dies in each run does not always come first. A
# request during the run makes the loop due again at once. Otherwise it is due one interval after its last start, with
# a pause between two runs of a loop that takes longer than its interval.
FINISH_LOOP_SQL = """
UPDATE jobs_loop
SET due_at = CASE WHEN requested_at > began_at THEN clock_timestamp() ELSE greatest(
        began_at + %(every)s, clock_timestamp() + %(every)s / 4) END,
    took = clock_timestamp() - began_at,
    finished_at = CASE WHEN %(error)s = '' THEN clock_timestamp() ELSE finished_at END,
    failed_at = CASE WHEN %(error)s = '' THEN failed_at ELSE clock_timestamp() END,
    last_error = %(error)s, began_at = NULL, limit_at = NULL, session = NULL, session_began = NULL
WHERE id = %(id)s AND term = %(term)s
"""
REQUEST_LOOP_SQL = """
INSERT INTO jobs_loop (key, name, cluster_id, term, due_at, created_at, requested_at, holder, last_error)
SELECT %(key)s, %(name)s, %(cluster)s::bigint, 0, clock_timestamp(), clock_timestamp(), clock_timestamp(), '', ''
WHERE %(cluster)s::bigint IS NULL OR EXISTS (SELECT 1 FROM jobs_cluster WHERE id = %(cluster)s)
ON CONFLICT (key) DO UPDATE
SET requested_at = clock_timestamp(), due_at = least(jobs_loop.due_at, clock_timestamp())
"""
NEXT_DUE_SQL = """
SELECT extract(epoch FROM min(due_at) - clock_timestamp())::float8 FROM jobs_loop
WHERE name = ANY(%s) AND (began_at IS NULL OR limit_at < clock_timestamp())
"""
FAILURE_RETENTION = timedelta(days=30)
COUNT_FAILURE_SQL = """
INSERT INTO jobs_loopfailure (loop_id, signature, message, count, first_at, last_at)
VALUES (%s, %s, %s, 1, clock_timestamp(), clock_timestamp())
ON CONFLICT (loop_id, signature) DO UPDATE
SET count = jobs_loopfailure.count + 1, last_at = clock_timestamp(), message = excluded.message
"""


@dataclass(frozen=True, kw_only=True)
class LoopTimes:
    """`limit`: how long a claim lasts at most."""

    every: timedelta
    limit: timedelta


@dataclass(frozen=True, kw_only=True)
class ClaimedLoop:
    """The right to run a loop once. `abandoned_at`: when the run began that a process left without finishing it."""

    id: int
    name: str
    cluster_id: int | None
    term: int
    began_at: datetime
    abandoned_at: datetime | None

    @property
    def connection_need(self) -> str:
        """Why the thread keeps its database connection: its session shows that the claim is alive."""
        return f"loop {self.id}"


class Loop(models.Model):
    """One loop of a cluster or of the installation, as scheduled and as last run.

    At most one process runs a loop at a time: it claims the row, and the claim ends with its run, with the process's
    database session, or with the time limit. The claim only saves work. Correctness comes from guarded writes.
    """

    key = models.CharField(max_length=60, unique=True, help_text="The name, and the id of the cluster after a colon.")
    name = models.CharField(max_length=40)
    cluster = models.ForeignKey("jobs.Cluster", null=True, on_delete=models.CASCADE, related_name="loops")
    term = models.BigIntegerField(default=0, help_text="Number of claims so far.")
    due_at = models.DateTimeField()
    created_at = models.DateTimeField()
    requested_at = models.DateTimeField(null=True, help_text="Time of the last request for an early run.")
    holder = models.CharField(max_length=120, blank=True)
    session = models.IntegerField(null=True, help_text="The holder's process in the database.")
    session_began = models.DateTimeField(null=True)
    began_at = models.DateTimeField(null=True, help_text="Start of the present run. None: not running.")
    limit_at = models.DateTimeField(null=True, help_text="When another process may claim a run that did not end.")
    finished_at = models.DateTimeField(null=True, help_text="End of the last run without an error.")
    took = models.DurationField(null=True, help_text="Duration of the last run.")
    delay = models.DurationField(null=True, help_text="How much later than due the last run began.")
    failed_at = models.DateTimeField(null=True)
    last_error = models.TextField(blank=True, help_text="Error of the last run. Empty: no error.")

    class Meta:
        ordering = ["key"]

    def __str__(self) -> str:
        return self.key

    @classmethod
    def add_missing(cls, *, of_clusters: Sequence[str], global_: Sequence[str]) -> None:
        """Add a row for each of these loops, and for each cluster, that has none."""
        with connection.cursor() as cursor:
            cursor.execute(ADD_LOOPS_SQL, {"of_clusters": list(of_clusters), "global": list(global_)})

    @classmethod
    def claim_due(cls, times: Mapping[str, LoopTimes], holder: str) -> ClaimedLoop | None:
        """Claim the loop that has been due longest; `times` has the names to choose from."""
        values = {
            "names": list(times),
            "limits": json.dumps({name: one.limit.total_seconds() for name, one in times.items()}),
            "intervals": json.dumps({name: one.every.total_seconds() for name, one in times.items()}),
            "holder": holder,
        }
        with connection.cursor() as cursor:
            cursor.execute(CLAIM_LOOP_SQL, values)
            row = cursor.fetchone()
        if row is None:
            return None
        names = ("id", "name", "cluster_id", "term", "began_at", "abandoned_at")
        claim = ClaimedLoop(**dict(zip(names, row, strict=True)))
        keep_connection_for(claim.connection_need)
        return claim

    @classmethod
    def finish(cls, claim: ClaimedLoop, every: timedelta, error: str = "") -> bool:
        """Store the end of a run. Return False if another process has claimed the loop meanwhile."""
        values = {"id": claim.id, "term": claim.term, "every": every, "error": error}
        try:
            with connection.cursor() as cursor:
                cursor.execute(FINISH_LOOP_SQL, values)
                return cursor.rowcount == 1
        finally:
            release_connection_of(claim.connection_need)

    @classmethod
    def request(cls, name: str, cluster_id: int | None = None) -> None:
        """Make the loop due now. If it is running, it runs once more afterwards."""
        with connection.cursor() as cursor:
            key = name if cluster_id is None else f"{name}:{cluster_id}"
            cursor.execute(REQUEST_LOOP_SQL, {"key": key, "name": name, "cluster": cluster_id})

    @classmethod
    def seconds_until_due(cls, names: Sequence[str]) -> float | None:
        """Return when the next of these loops is due; None if there are none or all are running."""
        with connection.cursor() as cursor:
            cursor.execute(NEXT_DUE_SQL, [list(names)])
            return cursor.fetchone()[0]


class LoopFailure(models.Model):
    """Errors of a loop with one signature: the exception's type, and the function in which it was raised."""

    loop = models.ForeignKey(Loop, on_delete=models.CASCADE, related_name="failures")
    signature = models.CharField(max_length=200)
    message = models.TextField(blank=True, help_text="Message of the newest one.")
    count = models.PositiveIntegerField(default=1)
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["loop", "signature"], name="one_row_per_loop_and_signature")]
        ordering = ["-last_at"]

    def __str__(self) -> str:
        return f"{self.loop_id}: {self.signature}"

    @classmethod
    def delete_old(cls, now: datetime) -> int:
        return cls.objects.filter(last_at__lt=now - FAILURE_RETENTION).delete()[0]

    @classmethod
    def count_one(cls, loop_id: int, signature: str, message: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(COUNT_FAILURE_SQL, [loop_id, signature[:200], message[:2000]])
