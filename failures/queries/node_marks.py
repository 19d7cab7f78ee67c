"""What went wrong on one node in a period: Xids, other anomalies, failures that name the node, failed tests and drains.

Four short queries. Visible to every user, like the last errors on the map: no text of a job is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from failures.models import Anomaly, Diagnosis
from failures.queries.node_history import is_xid_text
from jobs.core.charts.timeline import TimelineBar, TimelineEntry, timeline_bars
from jobs.models import Event, Node

MAX_MARKS = 300  # of each kind, newest first
MAX_LISTED = 50


@dataclass(frozen=True, kw_only=True)
class NodeMark:
    at: datetime
    end: datetime | None  # None for a moment
    text: str
    tone: str


@dataclass(frozen=True, kw_only=True)
class MarkLane:
    """The marks of one kind, newest first, and their bars on the time axis."""

    name: str
    marks: list[NodeMark]
    bars: list[TimelineBar]


def mark_lanes(node: Node, begin: datetime, end: datetime) -> list[MarkLane]:
    """One lane for each kind, also without marks, so that the absence of errors is visible."""
    anomalies = list(_anomaly_marks(node, begin, end))
    kinds = {
        "Xids": [mark for mark in anomalies if is_xid_text(mark.text)],
        "Other anomalies": [mark for mark in anomalies if not is_xid_text(mark.text)],
        "Failures": list(_failure_marks(node, begin)),
        "Drains and tests": list(_event_marks(node, begin)),
    }
    return [MarkLane(name=name, marks=marks, bars=_bars(marks, begin, end)) for name, marks in kinds.items()]


def newest_marks(lanes: Sequence[MarkLane], most: int = MAX_LISTED) -> list[tuple[str, NodeMark]]:
    """The newest marks of all lanes with the names of their lanes."""
    marks = [(lane.name, mark) for lane in lanes for mark in lane.marks]
    return sorted(marks, key=lambda named: named[1].at, reverse=True)[:most]


def _bars(marks: list[NodeMark], begin: datetime, end: datetime) -> list[TimelineBar]:
    entries = [
        TimelineEntry(
            name=f"{mark.at:%Y-%m-%d %H:%M} UTC: {mark.text}", tone=mark.tone, begin=mark.at, end=mark.end or mark.at
        )
        for mark in marks
    ]
    return timeline_bars(entries, begin, end)


def _anomaly_marks(node: Node, begin: datetime, end: datetime) -> Iterator[NodeMark]:
    rows = Anomaly.objects.of_node_health().filter(node=node, since__gte=begin, since__lte=end).order_by("-since")
    for row in rows[:MAX_MARKS]:
        yield NodeMark(at=row.since, end=row.ended_at or end, text=row.why, tone=row.badge.tone)


def _failure_marks(node: Node, begin: datetime) -> Iterator[NodeMark]:
    rows = Diagnosis.objects.filter(nodes=node, failed_at__gte=begin).order_by("-failed_at")
    for at, cause in rows.values_list("failed_at", "root_cause")[:MAX_MARKS]:
        yield NodeMark(at=at, end=None, text=f"A job failed: {cause}", tone="bad")


def _event_marks(node: Node, begin: datetime) -> Iterator[NodeMark]:
    types = ("node.drained", "node.resumed", "node.tested")
    rows = Event.objects.filter(node=node, type__in=types, at__gte=begin).order_by("-at")
    for at, kind, by, why, detail in rows.values_list("at", "type", "by", "why", "detail")[:MAX_MARKS]:
        text, tone = _event_text(kind, detail.get("passed"))
        yield NodeMark(at=at, end=None, text=f"{text} by {by}" + (f": {why}" if why else ""), tone=tone)


def _event_text(kind: str, passed: bool | None) -> tuple[str, str]:
    if kind == "node.tested":
        return ("test passed", "good") if passed else ("test failed or did not run", "warn")
    return ("drained", "drain") if kind == "node.drained" else ("resumed", "good")
