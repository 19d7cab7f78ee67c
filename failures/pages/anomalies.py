"""The anomalies of a node, a job or an incident, for the pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from failures.detection import node_health
from failures.models import Anomaly, Incident
from failures.queries.node_history import history_of_node
from jobs.models import Job, Node

RECENT_ANOMALIES_PERIOD = timedelta(days=7)
MAX_ANOMALIES = 10
HISTORY_LABELS = {
    "job_failed_here_alone": "failure naming only this node",
    "gang_failed_here": "failure naming several nodes",
    "failed_test": "failed test",
    "down": "outage",
    "xid": "Xid",
}


def node_anomalies(node: Node, now: datetime) -> dict[str, Any]:
    """The context of the health panel of a node: current anomalies, those of the last week, and its lemon score."""
    rows = Anomaly.objects.filter(node=node, seen_at__gt=now - RECENT_ANOMALIES_PERIOD).order_by("-pk")[:MAX_ANOMALIES]
    history = history_of_node(node, now)
    return {
        "now": now,
        "anomalies": _ongoing_first(rows),
        "lemon": node_health.lemon_score(history, now.timestamp()),
        "worst": node_health.LEMON_THRESHOLD,
        "past": _history_text(history),
    }


def _history_text(past: Sequence[node_health.NodeHistoryEntry]) -> str:
    counts = Counter(HISTORY_LABELS[entry.what] for entry in past if entry.what in HISTORY_LABELS)
    return ", ".join(f"{count} × {label}" for label, count in counts.most_common())


def job_anomalies(job: Job, now: datetime) -> dict[str, Any]:
    rows = Anomaly.objects.filter(attempt__job=job).select_related("attempt", "node").order_by("-pk")[:MAX_ANOMALIES]
    return {"now": now, "anomalies": _ongoing_first(rows)}


def incident_anomalies(incident: Incident) -> list[Anomaly]:
    rows = incident.anomalies.select_related("attempt__job", "node").order_by("-pk")
    return _ongoing_first(rows[:MAX_ANOMALIES])


def _ongoing_first(rows: Any) -> list[Anomaly]:
    return sorted(rows, key=lambda anomaly: anomaly.ended_at is not None)
