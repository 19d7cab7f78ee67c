"""Writing Events: who did what to which row, and why. Only `actions` modules call this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection

from jobs.models import Attempt, Cluster, Event, Job, Node


@dataclass(frozen=True, kw_only=True)
class Author:
    """Who does it: a person (with the request it came by) or a loop."""

    by: str
    user_id: int | None = None
    request_id: str = ""
    source: str | None = None

    @classmethod
    def of(cls, request: Any) -> Author:
        return cls.from_user(request.user, getattr(request, "acme_id", ""), request.META.get("REMOTE_ADDR"))

    @classmethod
    def from_user(cls, user: Any, request_id: str, source: str | None) -> Author:
        return cls(by=user.get_username(), user_id=user.pk, request_id=request_id, source=source or None)


SCHEDULER = Author(by="scheduler")
SYNC = Author(by="sync")


def new_event(what: str, author: Author, **fields: Any) -> Event:
    """An Event that is not written yet, for those who write many at once."""
    return Event(
        what=what,
        by=author.by,
        user_id=author.user_id,
        request_id=author.request_id,
        source=author.source,
        **fields,
    )


def job_event(
    what: str, author: Author, job: Job, *, attempt: Attempt | None = None, why: str = "", **fields: Any
) -> Event:
    rows = {"job_id": job.pk, "attempt_id": attempt.pk if attempt else None}  # ids: it is written thousands at a time
    return new_event(what, author, cluster_id=job.cluster_id, why=why, **rows, **fields)


INSERT_JOB_EVENTS_SQL = """
INSERT INTO jobs_event (what, to_state, cluster_id, job_id, user_id, by, source, request_id, from_state, why, detail)
SELECT %s, %s, told.*, '', '', '{}'
FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::text[], %s::inet[], %s::text[]) AS told
"""


def insert_job_events(what: str, told: Sequence[tuple[Author, Job]], *, to_state: str) -> None:
    """The same of many jobs, whoever did it to each: one statement, and no model for each."""
    if not told:
        return
    rows = [(job.cluster_id, job.pk, who.user_id, who.by, who.source, who.request_id) for who, job in told]
    with connection.cursor() as cursor:
        cursor.execute(INSERT_JOB_EVENTS_SQL, [what, to_state, *map(list, zip(*rows, strict=True))])


def node_event(what: str, author: Author, node: Node, *, why: str = "", **fields: Any) -> Event:
    return new_event(what, author, cluster_id=node.cluster_id, node=node, why=why, **fields)


def cluster_event(what: str, author: Author, cluster: Cluster, *, why: str = "", **fields: Any) -> Event:
    return new_event(what, author, cluster=cluster, why=why, **fields)
