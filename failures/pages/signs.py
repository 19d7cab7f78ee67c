"""Signs as pages show them: of a node, of a job, of an incident."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from failures.detection import node_health
from failures.models import Incident, Sign
from failures.queries.node_history import history_of_node
from jobs.models import Job, Node

RECENT_SIGNS_PERIOD = timedelta(days=7)
MAX_SIGNS = 10
HISTORY_LABELS = {
    "job_failed_here_alone": "failure that names it alone",
    "gang_failed_here": "failure that names it among others",
    "failed_test": "failed test",
    "down": "time down",
    "xid": "Xid",
}


def node_signs(node: Node, now: datetime) -> dict[str, Any]:
    """What is seen of it now, and of the last week."""
    rows = Sign.objects.filter(node=node, seen_at__gt=now - RECENT_SIGNS_PERIOD).order_by("-pk")[:MAX_SIGNS]
    past = history_of_node(node, now)
    return {
        "now": now,
        "signs": _ongoing_first(rows),
        "lemon": node_health.lemon_score(past, now.timestamp()),
        "worst": node_health.LEMON_THRESHOLD,
        "past": _history_text(past),
    }


def _history_text(past: Sequence[node_health.NodeHistoryEntry]) -> str:
    told = Counter(HISTORY_LABELS[one.what] for one in past if one.what in HISTORY_LABELS)
    return ", ".join(f"{many} × {what}" for what, many in told.most_common())


def job_signs(job: Job, now: datetime) -> dict[str, Any]:
    rows = Sign.objects.filter(attempt__job=job).select_related("attempt", "node").order_by("-pk")[:MAX_SIGNS]
    return {"now": now, "signs": _ongoing_first(rows)}


def incident_signs(incident: Incident) -> list[Sign]:
    rows = incident.signs.select_related("attempt__job", "node").order_by("-pk")
    return _ongoing_first(rows[:MAX_SIGNS])


def _ongoing_first(rows: Any) -> list[Sign]:
    return sorted(rows, key=lambda sign: sign.ended_at is not None)
