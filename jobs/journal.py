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
        return cls.of_user(request.user, getattr(request, "acme_id", ""), request.META.get("REMOTE_ADDR"))

    @classmethod
    def of_user(cls, user: Any, request_id: str, source: str | None) -> Author:
        return cls(by=user.get_username(), user_id=user.pk, request_id=request_id, source=source or None)


SCHEDULER = Author(by="scheduler")
SYNC = Author(by="sync")


def event(what: str, author: Author, **fields: Any) -> Event:
    """An Event that is not written yet, for those who write many at once."""
    return Event(
        what=what,
        by=author.by,
        user_id=author.user_id,
        request_id=author.request_id,
        source=author.source,
        **fields,
    )


def of_job(
    what: str, author: Author, job: Job, *, attempt: Attempt | None = None, why: str = "", **fields: Any
) -> Event:
    rows = {"job_id": job.pk, "attempt_id": attempt.pk if attempt else None}  # ids: it is written thousands at a time
    return event(what, author, cluster_id=job.cluster_id, why=why, **rows, **fields)


WRITE = """
INSERT INTO jobs_event (what, to_state, cluster_id, job_id, user_id, by, source, request_id, from_state, why, detail)
SELECT %s, %s, told.*, '', '', '{}'
FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::text[], %s::inet[], %s::text[]) AS told
"""


def write_of_jobs(what: str, told: Sequence[tuple[Author, Job]], *, to_state: str) -> None:
    """The same of many jobs, whoever did it to each: one statement, and no model for each."""
    if not told:
        return
    rows = [(job.cluster_id, job.pk, who.user_id, who.by, who.source, who.request_id) for who, job in told]
    with connection.cursor() as cursor:
        cursor.execute(WRITE, [what, to_state, *map(list, zip(*rows, strict=True))])


def of_node(what: str, author: Author, node: Node, *, why: str = "", **fields: Any) -> Event:
    return event(what, author, cluster_id=node.cluster_id, node=node, why=why, **fields)


def of_cluster(what: str, author: Author, cluster: Cluster, *, why: str = "", **fields: Any) -> Event:
    return event(what, author, cluster=cluster, why=why, **fields)
