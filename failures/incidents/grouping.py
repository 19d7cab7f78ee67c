"""Which incident a failure belongs to: one incident for each cause, not for each symptom. Pure.

Three scopes. A node that is sick takes every job on it down, whatever each of them says of it; a service or the fabric
takes jobs down wherever they run; a program takes down itself, and the tasks of its array. What a failure has in
common with an open incident must have happened close enough in time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from failures.diagnosis.labels import UNKNOWN


class IncidentScope(StrEnum):
    NODE = "node"
    SERVICE = "service"
    JOB = "job"


NODE_CAUSES = frozenset(
    {"NVLinkError", "CUDAError", "NodeFailure", "SlurmNodeFail", "ECCError", "GPUFallenOffBus", "XidOther"}
    | {"NodeHealth", "SlowNode"}  # signs: nobody has died of them yet
)
SERVICE_CAUSES = frozenset({"NetworkError", "S3StorageError", "ConnectionError"})
# What a peer of a dead node says, or what says nothing: it joins an incident of a node that the attempt ran on
PEER_SYMPTOM_CAUSES = frozenset(
    {"NCCLTimeoutError", "NCCLRemoteError", "ConnectionError", "NetworkError", "Hang", UNKNOWN}
)
# Thousands of programs meet a connection that is refused, each for its own reason: the words must be the same too
CAUSES_MATCHED_BY_TEXT = frozenset({"ConnectionError"})

JOIN_WINDOWS = {
    IncidentScope.NODE: timedelta(minutes=30),
    IncidentScope.SERVICE: timedelta(minutes=10),
    IncidentScope.JOB: timedelta(days=1),
}
PEER_SYMPTOM_WINDOW = timedelta(minutes=10)
NUMBER_PATTERN = re.compile(r"(?<![0-9a-fA-F])(?:0x)?[0-9a-fA-F]*\d[\w.:,+-]*")
MAX_LINE_SHAPE = 200


@dataclass(frozen=True, kw_only=True)
class FailureSymptom:
    """One failed attempt, as far as grouping looks at it."""

    root_cause: str
    at: datetime
    job: str  # the array's id for a task of an array
    nodes: frozenset[str]  # where it ran
    suspects: frozenset[str]  # whom the evidence names
    words: str = ""


@dataclass(frozen=True, kw_only=True)
class OpenIncident:
    """An incident that is not resolved."""

    id: int
    root_cause: str
    scope: IncidentScope
    first_at: datetime
    last_at: datetime
    nodes: frozenset[str]
    jobs: frozenset[str]
    words: str = ""


def accused_nodes(symptom: FailureSymptom) -> frozenset[str]:
    """The nodes that a hardware failure is about; the only node of an attempt needs nobody to name it."""
    if symptom.root_cause not in NODE_CAUSES:
        return symptom.suspects & symptom.nodes
    named = symptom.suspects & symptom.nodes
    return named or (symptom.nodes if len(symptom.nodes) == 1 else frozenset())


def scope_of_symptom(symptom: FailureSymptom) -> IncidentScope:
    if symptom.root_cause in NODE_CAUSES and accused_nodes(symptom):
        return IncidentScope.NODE
    return IncidentScope.SERVICE if symptom.root_cause in SERVICE_CAUSES else IncidentScope.JOB


def incident_subject(symptom: FailureSymptom) -> str:
    """What the incident is called after."""
    match scope_of_symptom(symptom):
        case IncidentScope.NODE:
            return ", ".join(sorted(accused_nodes(symptom)))
        case IncidentScope.SERVICE:
            return symptom.root_cause  # the words are those of somebody's log
    return symptom.job


def matching_incident(symptom: FailureSymptom, incidents: Iterable[OpenIncident]) -> int | None:
    """The incident it joins: the one with the closest kinship, among equals the newest. None: it is a new one."""
    fitting = [(kinship, one.last_at, one.id) for one in incidents if (kinship := _match_strength(symptom, one))]
    return max(fitting)[2] if fitting else None


def _match_strength(symptom: FailureSymptom, incident: OpenIncident) -> int:
    """0: none. 3: the same cause at the same place; 2: the same service; 1: what a peer saw of it."""
    if _is_within_window(symptom.at, incident, JOIN_WINDOWS[incident.scope]) and _same_cause(symptom, incident):
        return 3 if incident.scope is not IncidentScope.SERVICE else 2
    peer = (
        incident.scope is IncidentScope.NODE
        and symptom.root_cause in PEER_SYMPTOM_CAUSES
        and symptom.nodes & incident.nodes
    )
    return 1 if peer and _is_within_window(symptom.at, incident, PEER_SYMPTOM_WINDOW) else 0


def _same_cause(symptom: FailureSymptom, incident: OpenIncident) -> bool:
    scope = scope_of_symptom(symptom)
    if scope is not incident.scope:
        return False
    if scope is IncidentScope.NODE:
        return bool(accused_nodes(symptom) & incident.nodes)
    if symptom.root_cause != incident.root_cause:
        return False
    if scope is IncidentScope.JOB:
        return symptom.job in incident.jobs
    return symptom.root_cause not in CAUSES_MATCHED_BY_TEXT or symptom.words == incident.words


def _is_within_window(at: datetime, incident: OpenIncident, within: timedelta) -> bool:
    return incident.first_at - within <= at <= incident.last_at + within


def shape_of_line(text: str) -> str:
    """The shape of a line: two ranks that say the same on two ports say the same."""
    return " ".join(NUMBER_PATTERN.sub("#", text).split())[:MAX_LINE_SHAPE]
