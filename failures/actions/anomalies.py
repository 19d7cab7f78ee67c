"""The only code that changes a Anomaly. Each function is one transaction that also records an Event."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from django.db import transaction

from acmeweb.common import live
from acmeweb.common.errors import StateConflict
from failures.actions.incidents import find_or_open_incident, resolve, sanitize_for_storage
from failures.detection.findings import DetectorFinding, Severity
from failures.diagnosis.values import FailureCategory
from failures.incidents.grouping import FailureSymptom, IncidentScope
from failures.models import Anomaly, Incident
from failures.models.decision import CARRIED_OUT_STATES, OPEN_STATES
from failures.recovery import decisions
from failures.recovery.reads import ANOMALY_CAUSES
from jobs.actions import journal
from jobs.actions import nodes as node_actions
from jobs.actions.journal import Author
from jobs.core.hostlist import expand
from jobs.models import Attempt, Cluster, Node, RepairStage

DETECTOR_AUTHOR = Author(by="detector")
DIGITS_PATTERN = re.compile(r"\d+")  # durations and temperatures change with every measurement


@transaction.atomic
def record_finding(
    finding: DetectorFinding,
    cluster: Cluster,
    now: datetime,
    *,
    attempt: Attempt | None = None,
    node: Node | None = None,
) -> Anomaly | None:
    """Create an anomaly or update the ongoing one. Returns it; None if nothing but numbers changed."""
    ongoing = _ongoing_anomaly(finding, attempt, node)
    values = {"seen_at": now, "severity": finding.severity.value, "why": sanitize_for_storage(finding.why)}
    if ongoing is None:
        since = min(datetime.fromtimestamp(finding.since, UTC), now)
        anomaly = Anomaly.objects.create(
            cluster=cluster, symptom=finding.symptom.value, attempt=attempt, node=node, since=since,
            observed=finding.observed, expected=finding.expected, **values,
        )  # fmt: skip
        _record_event(
            "anomaly.detected", anomaly, why=anomaly.why, detail={"anomaly": anomaly.pk, "severity": anomaly.severity}
        )
    else:
        anomaly, previous_text = ongoing, _comparable_text(ongoing)
        Anomaly.objects.filter(pk=anomaly.pk).update(**values)
        anomaly.refresh_from_db()
        if previous_text == _comparable_text(anomaly):
            return None
    if anomaly.severity == Severity.BAD and anomaly.incident is None:
        _join_incident(anomaly, now)
    if anomaly.severity == Severity.BAD and node is not None and node.repair_stage == RepairStage.BURN_IN:
        node_actions.mark_for_repair(node, author=DETECTOR_AUTHOR, why=anomaly.why)
    _publish_change(anomaly)
    return anomaly


def _comparable_text(anomaly: Anomaly) -> tuple[str, str]:
    return anomaly.severity, DIGITS_PATTERN.sub("", anomaly.why)


def _ongoing_anomaly(finding: DetectorFinding, attempt: Attempt | None, node: Node | None) -> Anomaly | None:
    rows = Anomaly.objects.not_ended().filter(symptom=finding.symptom.value, attempt=attempt)
    rows = rows.filter(node=node) if attempt is None else rows
    return rows.select_for_update(of=("self",)).select_related("node", "attempt__job", "incident").first()


@transaction.atomic
def blame_node(anomaly: Anomaly, node: Node, why: str, now: datetime) -> bool:
    """Names the node that causes an anomaly. False if the anomaly has ended or already has a node."""
    if not Anomaly.objects.not_ended().filter(pk=anomaly.pk, node=None).update(node=node, why=f"{anomaly.why} {why}"):
        return False
    anomaly.refresh_from_db()
    _record_event("anomaly.located", anomaly, why=why, detail={"anomaly": anomaly.pk})
    _join_incident(anomaly, now)
    _publish_change(anomaly)
    return True


@transaction.atomic
def update_step_times(anomaly: Anomaly, observed: float, expected: float, now: datetime) -> None:
    """Update the measured step times of an ongoing anomaly, from which the ledger computes the slow time."""
    Anomaly.objects.not_ended().filter(pk=anomaly.pk).update(observed=observed, expected=expected, seen_at=now)


@transaction.atomic
def end_anomaly(anomaly: Anomaly, why: str, at: datetime, now: datetime) -> bool:
    """End an anomaly and expire its proposals. False if it had ended. Decisions being carried out continue."""
    if not Anomaly.objects.not_ended().filter(pk=anomaly.pk).update(ended_at=max(at, anomaly.since)):
        return False
    anomaly.refresh_from_db()
    _record_event("anomaly.ended", anomaly, why=why, detail={"anomaly": anomaly.pk})
    decisions.expire_anomaly_proposals(anomaly, why, now)
    if anomaly.incident is not None and _incident_is_idle(anomaly.incident):
        with suppress(StateConflict):  # a user was faster
            resolve(anomaly.incident, author=DETECTOR_AUTHOR, now=now, why=why)
    _publish_change(anomaly)
    return True


def _incident_is_idle(incident: Incident) -> bool:
    """Whether the incident has no failures, no ongoing anomalies and no decisions in progress."""
    others = incident.diagnoses.exists() or incident.anomalies.not_ended().exists()
    return not others and not incident.decisions.filter(state__in={*OPEN_STATES, *CARRIED_OUT_STATES}).exists()


def _join_incident(anomaly: Anomaly, now: datetime) -> None:
    if anomaly.incident is not None and anomaly.node is not None and not anomaly.incident.diagnoses.exists():
        subject = {"scope": IncidentScope.NODE, "subject": anomaly.node.name, "last_symptom_at": now}
        Incident.objects.filter(pk=anomaly.incident_id).update(**subject)
        anomaly.incident.nodes.add(anomaly.node)
        return
    symptom = _symptom_of_anomaly(anomaly, now)
    incident, existed = find_or_open_incident(
        anomaly.cluster_id, symptom, FailureCategory.INFRASTRUCTURE.value, anomaly.since
    )
    Anomaly.objects.filter(pk=anomaly.pk).update(incident=incident)
    anomaly.refresh_from_db()
    if anomaly.node is not None:
        incident.nodes.add(anomaly.node)
    if existed:
        Incident.objects.filter(pk=incident.pk, last_symptom_at__lt=now).update(last_symptom_at=now)
    what = "incident.joined" if existed else "incident.opened"
    _record_event(what, anomaly, to_state=incident.state, why=incident.title, detail={"incident": incident.pk})
    live.publish_on_commit(f"incident:{incident.pk}")


def _symptom_of_anomaly(anomaly: Anomaly, now: datetime) -> FailureSymptom:
    names = {anomaly.node.name} if anomaly.node else set()
    ran_on = set(expand(anomaly.attempt.nodelist)) if anomaly.attempt and anomaly.node else names
    job = anomaly.attempt.job.public_id if anomaly.attempt else ""
    cause = ANOMALY_CAUSES[anomaly.kind]
    return FailureSymptom(root_cause=cause, at=now, job=job, nodes=frozenset(ran_on), suspects=frozenset(names))


def _record_event(what: str, anomaly: Anomaly, **fields: Any) -> None:
    if anomaly.attempt is not None:
        job = anomaly.attempt.job
        journal.job_event(what, DETECTOR_AUTHOR, job, attempt=anomaly.attempt, node=anomaly.node, **fields).save()
    elif anomaly.node is not None:
        journal.node_event(what, DETECTOR_AUTHOR, anomaly.node, **fields).save()


def _publish_change(anomaly: Anomaly) -> None:
    topics: Iterable[str] = (
        *(["failures", f"incident:{anomaly.incident_id}"] if anomaly.incident_id else []),
        *([f"node:{anomaly.node_id}"] if anomaly.node_id else []),
        *([f"job:{anomaly.attempt.job.public_id}"] if anomaly.attempt else []),
    )
    live.publish_on_commit(*topics)
