"""The only code that changes a Sign. Each verb is one transaction with its Event."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from django.db import transaction

from acmeweb import live
from failures import decision_actions
from failures.actions import Moved, find_or_open, resolve, storable
from failures.detect.findings import Finding, Severity
from failures.diagnosis.values import Category
from failures.grouping import Scope, Symptom
from failures.models import Incident, Sign
from failures.models.decision import CARRIED_OUT, OPEN
from failures.situation import CAUSES
from jobs import journal, node_actions
from jobs.hostlist import expand
from jobs.journal import Author
from jobs.models import Attempt, Care, Cluster, Node

DETECTOR = Author(by="detector")
FIGURES = re.compile(r"\d+")  # how long it is silent, how hot it is: they move with every look


@transaction.atomic
def see(
    finding: Finding, cluster: Cluster, now: datetime, *, attempt: Attempt | None = None, node: Node | None = None
) -> Sign | None:
    """A detector sees it: a new sign, or one more look at the same. None where nothing about it is new."""
    known = _lasting(finding, attempt, node)
    values = {"seen_at": now, "severity": finding.severity.value, "why": storable(finding.why)}
    if known is None:
        since = min(datetime.fromtimestamp(finding.since, UTC), now)
        sign = Sign.objects.create(
            cluster=cluster, symptom=finding.symptom.value, attempt=attempt, node=node, since=since,
            observed=finding.observed, expected=finding.expected, **values,
        )  # fmt: skip
        _event("sign.seen", sign, why=sign.why, detail={"sign": sign.pk, "severity": sign.severity})
    else:
        sign, before = known, _gist(known)
        Sign.objects.filter(pk=sign.pk).update(**values)
        sign.refresh_from_db()
        if before == _gist(sign):
            return None
    if sign.severity == Severity.BAD and sign.incident is None:
        _join(sign, now)
    if sign.severity == Severity.BAD and node is not None and node.care == Care.BURN_IN:
        node_actions.to_repair(node, author=DETECTOR, why=sign.why)
    _tell(sign)
    return sign


def _gist(sign: Sign) -> tuple[str, str]:
    return sign.severity, FIGURES.sub("", sign.why)


def _lasting(finding: Finding, attempt: Attempt | None, node: Node | None) -> Sign | None:
    rows = Sign.objects.lasting().filter(symptom=finding.symptom.value, attempt=attempt)
    rows = rows.filter(node=node) if attempt is None else rows
    return rows.select_for_update(of=("self",)).select_related("node", "attempt__job", "incident").first()


@transaction.atomic
def blame(sign: Sign, node: Node, why: str, now: datetime) -> bool:
    """It is known now which node it is. Said once."""
    if not Sign.objects.lasting().filter(pk=sign.pk, node=None).update(node=node, why=f"{sign.why} {why}"):
        return False
    sign.refresh_from_db()
    _event("sign.blamed", sign, why=why, detail={"sign": sign.pk})
    _join(sign, now)
    _tell(sign)
    return True


@transaction.atomic
def measure(sign: Sign, observed: float, expected: float, now: datetime) -> None:
    """It lasts, and so slow it is: what the ledger reckons with."""
    Sign.objects.lasting().filter(pk=sign.pk).update(observed=observed, expected=expected, seen_at=now)


@transaction.atomic
def passed(sign: Sign, why: str, at: datetime, now: datetime) -> bool:
    """It is over. What was proposed because of it is withdrawn; what is under way goes on."""
    if not Sign.objects.lasting().filter(pk=sign.pk).update(ended_at=max(at, sign.since)):
        return False
    sign.refresh_from_db()
    _event("sign.passed", sign, why=why, detail={"sign": sign.pk})
    decision_actions.forget(sign, why, now)
    if sign.incident is not None and _is_alone(sign.incident):
        with suppress(Moved):  # a person was faster
            resolve(sign.incident, author=DETECTOR, now=now, why=why)
    _tell(sign)
    return True


def _is_alone(incident: Incident) -> bool:
    """Nothing else is wrong there, and nobody is doing anything about it."""
    others = incident.diagnoses.exists() or incident.signs.lasting().exists()
    return not others and not incident.decisions.filter(course__in={*OPEN, *CARRIED_OUT}).exists()


def _join(sign: Sign, now: datetime) -> None:
    if sign.incident is not None and sign.node is not None and not sign.incident.diagnoses.exists():
        subject = {"scope": Scope.NODE, "subject": sign.node.name, "last_symptom_at": now}
        Incident.objects.filter(pk=sign.incident_id).update(**subject)
        sign.incident.nodes.add(sign.node)
        return
    symptom = _symptom(sign, now)
    incident, found = find_or_open(sign.cluster_id, symptom, Category.INFRASTRUCTURE.value, sign.since)
    Sign.objects.filter(pk=sign.pk).update(incident=incident)
    sign.refresh_from_db()
    if sign.node is not None:
        incident.nodes.add(sign.node)
    if found:
        Incident.objects.filter(pk=incident.pk, last_symptom_at__lt=now).update(last_symptom_at=now)
    what = "incident.joined" if found else "incident.opened"
    _event(what, sign, to_state=incident.state, why=incident.title, detail={"incident": incident.pk})
    live.changed(f"incident:{incident.pk}")


def _symptom(sign: Sign, now: datetime) -> Symptom:
    names = {sign.node.name} if sign.node else set()
    ran_on = set(expand(sign.attempt.nodelist)) if sign.attempt and sign.node else names
    job = sign.attempt.job.public_id if sign.attempt else ""
    cause = CAUSES[sign.kind]
    return Symptom(root_cause=cause, at=now, job=job, nodes=frozenset(ran_on), suspects=frozenset(names))


def _event(what: str, sign: Sign, **fields: Any) -> None:
    if sign.attempt is not None:
        job = sign.attempt.job
        journal.of_job(what, DETECTOR, job, attempt=sign.attempt, node=sign.node, **fields).save()
    elif sign.node is not None:
        journal.of_node(what, DETECTOR, sign.node, **fields).save()


def _tell(sign: Sign) -> None:
    topics: Iterable[str] = (
        *(["failures", f"incident:{sign.incident_id}"] if sign.incident_id else []),
        *([f"node:{sign.node_id}"] if sign.node_id else []),
        *([f"job:{sign.attempt.job.public_id}"] if sign.attempt else []),
    )
    live.changed(*topics)
