"""Signs as pages show them: of a node, of a job, of an incident."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from failures.detect import nodes
from failures.models import Incident, Sign
from failures.past import past_of_node
from jobs.models import Job, Node

LATELY = timedelta(days=7)
MOST = 10
CALLED = {
    "job_failed_here_alone": "failure that names it alone",
    "gang_failed_here": "failure that names it among others",
    "failed_test": "failed test",
    "down": "time down",
    "xid": "Xid",
}


def of_node(node: Node, now: datetime) -> dict[str, Any]:
    """What is seen of it now, and of the last week."""
    rows = Sign.objects.filter(node=node, seen_at__gt=now - LATELY).order_by("-pk")[:MOST]
    past = past_of_node(node, now)
    return {
        "now": now,
        "signs": _lasting_first(rows),
        "lemon": nodes.lemon(past, now.timestamp()),
        "worst": nodes.LEMON,
        "past": _in_words(past),
    }


def _in_words(past: Sequence[nodes.Past]) -> str:
    told = Counter(CALLED[one.what] for one in past if one.what in CALLED)
    return ", ".join(f"{many} × {what}" for what, many in told.most_common())


def of_job(job: Job, now: datetime) -> dict[str, Any]:
    rows = Sign.objects.filter(attempt__job=job).select_related("attempt", "node").order_by("-pk")[:MOST]
    return {"now": now, "signs": _lasting_first(rows)}


def of_incident(incident: Incident) -> list[Sign]:
    rows = incident.signs.select_related("attempt__job", "node").order_by("-pk")
    return _lasting_first(rows[:MOST])


def _lasting_first(rows: Any) -> list[Sign]:
    return sorted(rows, key=lambda sign: sign.ended_at is not None)
