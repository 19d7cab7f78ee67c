"""Unreadable rows in a cluster's response: shown to operators, and logged once per change."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from acmeweb.common import live
from jobs.models import Cluster
from scheduling.backends.base import UnreadableRow

log = logging.getLogger(__name__)

MAX_NAMED_ROWS = 3
MAX_ROW_LENGTH = 200


def unreadable_text(rows: Sequence[UnreadableRow]) -> str:
    """Return text like "job 12: job_state is missing; node n3: cpus is a str; and 4 more". Empty if there are none."""
    named = [row.sentence[:MAX_ROW_LENGTH] for row in rows[:MAX_NAMED_ROWS]]
    more = [f"and {len(rows) - MAX_NAMED_ROWS} more"] if len(rows) > MAX_NAMED_ROWS else []
    return "; ".join([*named, *more])


def record_unreadable_rows(cluster: Cluster, rows: Sequence[UnreadableRow]) -> None:
    count, text = len(rows), unreadable_text(rows)
    if (cluster.unreadable_count, cluster.unreadable_rows) == (count, text):
        return
    Cluster.objects.filter(pk=cluster.pk).update(unreadable_count=count, unreadable_rows=text)
    log.warning("cluster %s: %s", cluster, f"{count} unreadable rows: {text}" if rows else "no unreadable rows")
    live.publish_on_commit("nodes")
