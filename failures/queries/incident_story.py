"""The timeline of an incident: node and GPU events, failed attempts, and actions of users. Read-only.

It contains only attempts that the viewer may see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q
from django.urls import reverse

from failures.diagnosis import catalogue
from failures.models import Diagnosis, Incident
from jobs.models import Event, Node, Resolution, Sample

TIMELINE_MARGIN = timedelta(minutes=10)
MAX_TIMELINE_ENTRIES = 200

EVENT_BADGES = {
    "incident.opened": ("bad", "●"),
    "incident.acknowledged": ("warn", "◐"),
    "incident.resolved": ("good", "✓"),
    "diagnosis.corrected": ("running", "✎"),
    "diagnosis.confirmed": ("good", "✓"),
    "decision.created": ("running", "?"),
    "decision.approved": ("running", "✓"),
    "decision.declined": ("quiet", "⊘"),
    "decision.done": ("good", "✓"),
    "decision.failed": ("bad", "✗"),
    "decision.expired": ("quiet", "◷"),
    "decision.undone": ("warn", "↺"),
    "decision.withdrawn": ("quiet", "✎"),
    "job.recovered": ("running", "↺"),
    "job.started": ("good", "▶"),
    "stacks.read": ("running", "≡"),
    "anomaly.detected": ("warn", "▲"),
    "anomaly.located": ("bad", "▲"),
    "anomaly.ended": ("good", "✓"),
    "node.state_changed": ("warn", "▲"),
    "node.drained": ("drain", "⊖"),
    "node.resumed": ("good", "○"),
}
TIMELINE_EVENTS = tuple(EVENT_BADGES)
LOOP_AUTHORS = ("sync", "diagnosis", "scheduler", "recovery", "detector")


@dataclass(frozen=True, kw_only=True)
class IncidentTimelineEntry:
    at: datetime
    tone: str
    icon: str
    words: str
    why: str = ""
    url: str = ""
    name: str = ""  # text of the link


def incident_timeline(incident: Incident, diagnoses: Sequence[Diagnosis]) -> list[IncidentTimelineEntry]:
    nodes = list(incident.nodes.all())
    span = (incident.first_symptom_at - TIMELINE_MARGIN, incident.last_symptom_at + TIMELINE_MARGIN)
    entries = [
        IncidentTimelineEntry(at=incident.first_symptom_at, tone="bad", icon="!", words="first symptom"),
        *_failure_entries(diagnoses),
        *_journal_entries(incident, diagnoses, nodes, span),
        *_xid_entries(incident, nodes, span),
    ]
    return sorted(entries, key=lambda entry: entry.at)[:MAX_TIMELINE_ENTRIES]


def _failure_entries(diagnoses: Iterable[Diagnosis]) -> Iterator[IncidentTimelineEntry]:
    for row in diagnoses:
        url = reverse("job", args=[row.attempt.job.public_id])
        words = f"attempt {row.attempt.number} ended {row.attempt.state}: {row.root_cause}"
        yield IncidentTimelineEntry(
            at=row.failed_at, tone="bad", icon="✗", words=words, url=url, name=row.attempt.job.name
        )


def _journal_entries(
    incident: Incident, diagnoses: Sequence[Diagnosis], nodes: Sequence[Node], span: tuple[datetime, datetime]
) -> Iterator[IncidentTimelineEntry]:
    jobs = {row.attempt.job_id for row in diagnoses}
    attempts = {row.attempt_id for row in diagnoses}  # the start of a short attempt may be recorded after its end
    of_incident = Q(detail__incident=incident.pk) | Q(
        type__startswith="diagnosis.", attempt__in=[d.attempt_id for d in diagnoses]
    )
    restarts = Q(type__in=("job.started", "job.recovered"), at__lte=span[1] + timedelta(days=1))
    of_jobs = Event.objects.filter(of_incident | restarts, job__in=jobs, at__gte=span[0], type__in=TIMELINE_EVENTS)
    of_nodes = Event.objects.filter(node__in=nodes, at__range=span, type__in=TIMELINE_EVENTS)
    first_end = min((row.failed_at for row in diagnoses), default=span[0])
    for event in of_jobs.select_related("job").order_by("id")[:MAX_TIMELINE_ENTRIES]:
        if event.type == "job.started" and (event.at <= first_end or event.attempt_id in attempts):
            continue
        yield _event_entry(event, reverse("job", args=[event.job.public_id]), event.job.name)
    for event in of_nodes.select_related("node__cluster").order_by("id")[:MAX_TIMELINE_ENTRIES]:
        yield _event_entry(event, reverse("node", args=[event.node.cluster.name, event.node.name]), event.node.name)


def _event_entry(event: Event, url: str, name: str) -> IncidentTimelineEntry:
    tone, icon = EVENT_BADGES[event.type]
    move = f" {event.from_state} → {event.to_state}" if event.from_state else ""
    by = "" if event.by in LOOP_AUTHORS else f" by {event.by}"
    if event.type.startswith("incident."):
        url, name = "", ""
    why = "" if event.type == "incident.opened" else event.why
    words = (
        event.type.replace(".", " ").replace("_", " ")
        + (move if event.type.startswith(("node", "diagnosis")) else "")
        + by
    )
    return IncidentTimelineEntry(at=event.at, tone=tone, icon=icon, words=words, why=why, url=url, name=name)


def _xid_entries(
    incident: Incident, nodes: Sequence[Node], span: tuple[datetime, datetime]
) -> Iterator[IncidentTimelineEntry]:
    """Entries for new Xids. Telemetry repeats the last Xid until the driver is reloaded, so only changes count."""
    rows = Sample.objects.filter(node__in=nodes, resolution=Resolution.RAW, at__range=span).order_by("node", "at")
    last_codes: dict[tuple[int, int], float | None] = {}
    for sample in rows.select_related("node__cluster")[:5000]:
        for gpu, code in enumerate(sample.xid):
            is_known = (sample.node_id, gpu) in last_codes
            if code and is_known and code != last_codes[sample.node_id, gpu]:
                url = reverse("node", args=[sample.node.cluster.name, sample.node.name])
                words = f"Xid {int(code)} on GPU {gpu}"
                why = _xid_meaning(int(code))
                yield IncidentTimelineEntry(
                    at=sample.at, tone="bad", icon="▲", words=words, why=why, url=url, name=sample.node.name
                )
            last_codes[sample.node_id, gpu] = code


def _xid_meaning(code: int) -> str:
    entry = catalogue.xid_codes().get(code)
    return entry.meaning if entry else ""
