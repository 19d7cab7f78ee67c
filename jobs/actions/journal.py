"""Writes Events: who changed which row, and why. Only `actions` modules call this."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection

from jobs.models import Attempt, Cluster, Event, Job, Node


@dataclass(frozen=True, kw_only=True)
class Author:
    """The author of a change: a user (with the request) or a loop."""

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


def new_event(type: str, author: Author, **fields: Any) -> Event:
    """Return an unsaved Event, for callers that write many at once."""
    return Event(
        type=type,
        by=author.by,
        user_id=author.user_id,
        request_id=author.request_id,
        source=author.source,
        **fields,
    )


def job_event(
    type: str, author: Author, job: Job, *, attempt: Attempt | None = None, why: str = "", **fields: Any
) -> Event:
    ids = {
        "job_id": job.pk,
        "attempt_id": attempt.pk if attempt else None,
    }  # ids instead of instances: thousands are written at a time
    return new_event(type, author, cluster_id=job.cluster_id, why=why, **ids, **fields)


def save_events(events: Iterable[Event]) -> None:
    """Write many Events in one statement."""
    Event.objects.bulk_create(events)


INSERT_JOB_EVENTS_SQL = """
INSERT INTO jobs_event (type, to_state, cluster_id, job_id, user_id, by, source, request_id, from_state, why, detail)
SELECT %s, %s, v.*, '', '', '{}'
FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::text[], %s::inet[], %s::text[]) AS v
"""


def insert_job_events(type: str, changes: Sequence[tuple[Author, Job]], *, to_state: str) -> None:
    """Write the same Event for many jobs, each with its author, in one statement and without model instances."""
    if not changes:
        return
    rows = [
        (job.cluster_id, job.pk, author.user_id, author.by, author.source, author.request_id) for author, job in changes
    ]
    with connection.cursor() as cursor:
        # Thousands of submissions arrive in one request, and each needs its Event
        cursor.execute(INSERT_JOB_EVENTS_SQL, [type, to_state, *map(list, zip(*rows, strict=True))])


def node_event(type: str, author: Author, node: Node, *, why: str = "", **fields: Any) -> Event:
    return new_event(type, author, cluster_id=node.cluster_id, node=node, why=why, **fields)


def cluster_event(type: str, author: Author, cluster: Cluster, *, why: str = "", **fields: Any) -> Event:
    return new_event(type, author, cluster=cluster, why=why, **fields)
