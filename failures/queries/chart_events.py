"""What happened to a training, for the markers on its charts: starts of attempts, failures and incidents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from failures.diagnosis.labels import UNKNOWN
from failures.models import Anomaly, Diagnosis, Incident
from jobs.core.lifecycle import FAILURE_STATES
from jobs.models import Attempt, Job

MAX_EVENTS = 100


@dataclass(frozen=True, kw_only=True)
class ChartEvent:
    """`kind` selects the symbol: attempt, failure or incident."""

    kind: str
    at: datetime
    text: str
    incident: Incident | None = None


def chart_events(job: Job) -> list[ChartEvent]:
    """The newest events of a job, in the order of time."""
    attempts = list(Attempt.objects.filter(job=job).order_by("-number")[:MAX_EVENTS])
    diagnoses = Diagnosis.objects.filter(attempt__in=[attempt.pk for attempt in attempts])
    verdicts = {row.attempt_id: row for row in diagnoses.select_related("incident").defer("bundle")}
    anomalies = Anomaly.objects.filter(attempt__job=job).select_related("attempt", "incident").order_by("-pk")
    events = [
        *_starts(attempts),
        *(_failure(attempt, verdicts.get(attempt.pk)) for attempt in attempts if attempt.state in FAILURE_STATES),
        *(_anomaly_event(row) for row in anomalies[:MAX_EVENTS]),
    ]
    return sorted(events, key=lambda event: event.at)[-MAX_EVENTS:]


def _starts(attempts: Iterable[Attempt]) -> list[ChartEvent]:
    return [
        ChartEvent(kind="attempt", at=attempt.confirmed_at, text=f"Attempt {attempt.number} started.")
        for attempt in attempts
        if attempt.confirmed_at
    ]


def _failure(attempt: Attempt, verdict: Diagnosis | None) -> ChartEvent:
    cause = attempt.cause or (verdict.root_cause if verdict and verdict.root_cause != UNKNOWN else "cause unknown")
    return ChartEvent(
        kind="failure",
        at=attempt.ended_at or attempt.promised_at,
        text=f"Attempt {attempt.number} ended as {attempt.state}: {cause}.",
        incident=verdict.incident if verdict else None,
    )


def _anomaly_event(row: Anomaly) -> ChartEvent:
    return ChartEvent(kind="incident", at=row.since, text=f"{row.badge.label}: {row.why}", incident=row.incident)
