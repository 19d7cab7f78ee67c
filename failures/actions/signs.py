"""The only code that changes a Sign. Each function is one transaction that also records an Event."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from django.db import transaction

from acmeweb.common import live
from failures.actions import decisions as decision_actions
from failures.actions.incidents import FailureStateConflict, find_or_open_incident, resolve, sanitize_for_storage
from failures.actions.recovery_inputs import SIGN_CAUSES
from failures.detection.findings import DetectorFinding, Severity
from failures.diagnosis.values import FailureCategory
from failures.incidents.grouping import FailureSymptom, IncidentScope
from failures.models import Incident, Sign
from failures.models.decision import CARRIED_OUT_STATES, OPEN_STATES
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
) -> Sign | None:
    """Creates a sign from a finding, or updates the ongoing one. Returns it; None if nothing but numbers changed."""
    ongoing = _ongoing_sign(finding, attempt, node)
    values = {"seen_at": now, "severity": finding.severity.value, "why": sanitize_for_storage(finding.why)}
    if ongoing is None:
        since = min(datetime.fromtimestamp(finding.since, UTC), now)
        sign = Sign.objects.create(
            cluster=cluster, symptom=finding.symptom.value, attempt=attempt, node=node, since=since,
            observed=finding.observed, expected=finding.expected, **values,
        )  # fmt: skip
        _record_event("sign.seen", sign, why=sign.why, detail={"sign": sign.pk, "severity": sign.severity})
    else:
        sign, previous_text = ongoing, _comparable_text(ongoing)
        Sign.objects.filter(pk=sign.pk).update(**values)
        sign.refresh_from_db()
        if previous_text == _comparable_text(sign):
            return None
    if sign.severity == Severity.BAD and sign.incident is None:
        _join_incident(sign, now)
    if sign.severity == Severity.BAD and node is not None and node.care == RepairStage.BURN_IN:
        node_actions.mark_for_repair(node, author=DETECTOR_AUTHOR, why=sign.why)
    _publish_change(sign)
    return sign


def _comparable_text(sign: Sign) -> tuple[str, str]:
    return sign.severity, DIGITS_PATTERN.sub("", sign.why)


def _ongoing_sign(finding: DetectorFinding, attempt: Attempt | None, node: Node | None) -> Sign | None:
    rows = Sign.objects.not_ended().filter(symptom=finding.symptom.value, attempt=attempt)
    rows = rows.filter(node=node) if attempt is None else rows
    return rows.select_for_update(of=("self",)).select_related("node", "attempt__job", "incident").first()


@transaction.atomic
def blame_node(sign: Sign, node: Node, why: str, now: datetime) -> bool:
    """Names the node that causes a sign. False if the sign has ended or already has a node."""
    if not Sign.objects.not_ended().filter(pk=sign.pk, node=None).update(node=node, why=f"{sign.why} {why}"):
        return False
    sign.refresh_from_db()
    _record_event("sign.blamed", sign, why=why, detail={"sign": sign.pk})
    _join_incident(sign, now)
    _publish_change(sign)
    return True


@transaction.atomic
def update_step_times(sign: Sign, observed: float, expected: float, now: datetime) -> None:
    """Updates the measured step times of an ongoing sign, from which the ledger computes the slow time."""
    Sign.objects.not_ended().filter(pk=sign.pk).update(observed=observed, expected=expected, seen_at=now)


@transaction.atomic
def end_sign(sign: Sign, why: str, at: datetime, now: datetime) -> bool:
    """Ends a sign and expires its proposals; decisions being carried out continue. False if it had already ended."""
    if not Sign.objects.not_ended().filter(pk=sign.pk).update(ended_at=max(at, sign.since)):
        return False
    sign.refresh_from_db()
    _record_event("sign.passed", sign, why=why, detail={"sign": sign.pk})
    decision_actions.expire_sign_proposals(sign, why, now)
    if sign.incident is not None and _incident_is_idle(sign.incident):
        with suppress(FailureStateConflict):  # a user was faster
            resolve(sign.incident, author=DETECTOR_AUTHOR, now=now, why=why)
    _publish_change(sign)
    return True


def _incident_is_idle(incident: Incident) -> bool:
    """Whether the incident has no failures, no ongoing signs and no decisions in progress."""
    others = incident.diagnoses.exists() or incident.signs.not_ended().exists()
    return not others and not incident.decisions.filter(course__in={*OPEN_STATES, *CARRIED_OUT_STATES}).exists()


def _join_incident(sign: Sign, now: datetime) -> None:
    if sign.incident is not None and sign.node is not None and not sign.incident.diagnoses.exists():
        subject = {"scope": IncidentScope.NODE, "subject": sign.node.name, "last_symptom_at": now}
        Incident.objects.filter(pk=sign.incident_id).update(**subject)
        sign.incident.nodes.add(sign.node)
        return
    symptom = _symptom_of_sign(sign, now)
    incident, existed = find_or_open_incident(
        sign.cluster_id, symptom, FailureCategory.INFRASTRUCTURE.value, sign.since
    )
    Sign.objects.filter(pk=sign.pk).update(incident=incident)
    sign.refresh_from_db()
    if sign.node is not None:
        incident.nodes.add(sign.node)
    if existed:
        Incident.objects.filter(pk=incident.pk, last_symptom_at__lt=now).update(last_symptom_at=now)
    what = "incident.joined" if existed else "incident.opened"
    _record_event(what, sign, to_state=incident.state, why=incident.title, detail={"incident": incident.pk})
    live.publish_on_commit(f"incident:{incident.pk}")


def _symptom_of_sign(sign: Sign, now: datetime) -> FailureSymptom:
    names = {sign.node.name} if sign.node else set()
    ran_on = set(expand(sign.attempt.nodelist)) if sign.attempt and sign.node else names
    job = sign.attempt.job.public_id if sign.attempt else ""
    cause = SIGN_CAUSES[sign.kind]
    return FailureSymptom(root_cause=cause, at=now, job=job, nodes=frozenset(ran_on), suspects=frozenset(names))


def _record_event(what: str, sign: Sign, **fields: Any) -> None:
    if sign.attempt is not None:
        job = sign.attempt.job
        journal.job_event(what, DETECTOR_AUTHOR, job, attempt=sign.attempt, node=sign.node, **fields).save()
    elif sign.node is not None:
        journal.node_event(what, DETECTOR_AUTHOR, sign.node, **fields).save()


def _publish_change(sign: Sign) -> None:
    topics: Iterable[str] = (
        *(["failures", f"incident:{sign.incident_id}"] if sign.incident_id else []),
        *([f"node:{sign.node_id}"] if sign.node_id else []),
        *([f"job:{sign.attempt.job.public_id}"] if sign.attempt else []),
    )
    live.publish_on_commit(*topics)
