"""All Events as lines of JSON, oldest first, for archives and audits.

A reader continues after the id of the last line. Ids are assigned before the commit, so an Event of a transaction that
is still open could get a smaller id than one that was already read. Therefore the export ends before the oldest open
transaction that has written something.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import F, QuerySet

from jobs.models import Event

CHUNK_ROWS = 1000
FIELDS = ("id", "at", "type", "by", "source", "request_id", "from_state", "to_state", "why", "detail")
NAMES = {
    "cluster_name": F("cluster__name"),
    "job_name": F("job__public_id"),
    "attempt_key": F("attempt__key"),
    "node_name": F("node__name"),
}
OLDEST_WRITER_SQL = """
SELECT min(xact_start) FROM pg_stat_activity
WHERE datname = current_database() AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()
"""


def exported_lines(
    after: int = 0, since: datetime | None = None, most: int | None = None, chunk_rows: int = CHUNK_ROWS
) -> Iterator[str]:
    """Yield chunks of lines. Each chunk is a query of its own, so a slow reader keeps no transaction open."""
    left = most
    rows = _finished_events(since)
    while chunk := list(rows.filter(pk__gt=after)[: chunk_rows if left is None else min(chunk_rows, left)]):
        yield "".join(map(_line, chunk))
        after, left = chunk[-1]["id"], None if left is None else left - len(chunk)


def _finished_events(since: datetime | None) -> QuerySet[Event, dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(OLDEST_WRITER_SQL)
        (oldest_writer,) = cursor.fetchone()
    events = Event.objects.order_by("pk")
    if since:
        events = events.filter(at__gte=since)
    if oldest_writer:
        events = events.filter(at__lt=oldest_writer)
    return events.values(*FIELDS, **NAMES)


def _line(row: dict[str, Any]) -> str:
    named = {
        "cluster": row.pop("cluster_name"),
        "job": row.pop("job_name"),
        "attempt": row.pop("attempt_key"),
        "node": row.pop("node_name"),
    }
    at = row["at"].isoformat().replace("+00:00", "Z")
    return json.dumps({**row, "at": at, **named}, separators=(",", ":")) + "\n"
