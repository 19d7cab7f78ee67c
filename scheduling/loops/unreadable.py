"""Rows of a cluster's answer that cannot be read: told to operators, and logged once per change."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from acmeweb import live
from jobs.models import Cluster
from scheduling.backends.base import UnreadableRow

log = logging.getLogger(__name__)

MOST_NAMED = 3
LONGEST = 200


def unreadable_text(rows: Sequence[UnreadableRow]) -> str:
    """As "job 12: job_state is missing; node n3: cpus is a str; and 4 more"; empty where every row was read."""
    named = [row.sentence[:LONGEST] for row in rows[:MOST_NAMED]]
    more = [f"and {len(rows) - MOST_NAMED} more"] if len(rows) > MOST_NAMED else []
    return "; ".join([*named, *more])


def note_unreadable(cluster: Cluster, rows: Sequence[UnreadableRow]) -> None:
    count, text = len(rows), unreadable_text(rows)
    if (cluster.unreadable_count, cluster.unreadable_rows) == (count, text):
        return
    Cluster.objects.filter(pk=cluster.pk).update(unreadable_count=count, unreadable_rows=text)
    log.warning("cluster %s: %s", cluster, f"{count} rows cannot be read: {text}" if rows else "every row can be read")
    live.changed("nodes")
