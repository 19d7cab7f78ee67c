"""Groups failures into incidents: one incident per cause, not per symptom. Pure.

There are three scopes. A faulty node fails every job on it, with different symptoms. A network or service problem
fails jobs wherever they run. A program error fails only the job itself and the tasks of its array. A failure joins an
open incident only if it happened within the time window of its scope.
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
    | {"NodeHealth", "SlowNode"}  # anomalies, which may exist without a failed attempt
    | {"NodeDidNotWake"}  # of a node that sleeps
)
SERVICE_CAUSES = frozenset({"NetworkError", "S3StorageError", "ConnectionError"})
# Symptoms seen by peers of a failed node, and unknown causes: these join an incident of a node that the attempt ran on
PEER_SYMPTOM_CAUSES = frozenset(
    {"NCCLTimeoutError", "NCCLRemoteError", "ConnectionError", "NetworkError", "Hang", UNKNOWN}
)
# Refused connections have many unrelated reasons, so the text must match, too
CAUSES_MATCHED_BY_TEXT = frozenset({"ConnectionError"})

JOIN_WINDOWS = {
    IncidentScope.NODE: timedelta(minutes=30),
    IncidentScope.SERVICE: timedelta(minutes=10),
    IncidentScope.JOB: timedelta(days=1),
}
LONGEST_JOIN_WINDOW = max(JOIN_WINDOWS.values())
PEER_SYMPTOM_WINDOW = timedelta(minutes=10)
NUMBER_PATTERN = re.compile(r"(?<![0-9a-fA-F])(?:0x)?[0-9a-fA-F]*\d[\w.:,+-]*")
MAX_LINE_SHAPE = 200


@dataclass(frozen=True, kw_only=True)
class FailureSymptom:
    """The facts about a failed attempt that grouping uses."""

    root_cause: str
    at: datetime
    job: str  # the array's id for a task of an array
    nodes: frozenset[str]  # where it ran
    suspects: frozenset[str]  # nodes that the evidence names
    words: str = ""


@dataclass(frozen=True, kw_only=True)
class OpenIncident:
    """An unresolved incident."""

    id: int
    root_cause: str
    scope: IncidentScope
    first_at: datetime
    last_at: datetime
    nodes: frozenset[str]
    jobs: frozenset[str]
    words: str = ""


def accused_nodes(symptom: FailureSymptom) -> frozenset[str]:
    """The nodes that caused the symptom. For node causes, the only node of an attempt counts even if not named."""
    if symptom.root_cause not in NODE_CAUSES:
        return symptom.suspects & symptom.nodes
    named = symptom.suspects & symptom.nodes
    return named or (symptom.nodes if len(symptom.nodes) == 1 else frozenset())


def scope_of_symptom(symptom: FailureSymptom) -> IncidentScope:
    if symptom.root_cause in NODE_CAUSES and accused_nodes(symptom):
        return IncidentScope.NODE
    return IncidentScope.SERVICE if symptom.root_cause in SERVICE_CAUSES else IncidentScope.JOB


def incident_subject(symptom: FailureSymptom) -> str:
    """The subject of a new incident for this symptom: nodes, cause or job."""
    match scope_of_symptom(symptom):
        case IncidentScope.NODE:
            return ", ".join(sorted(accused_nodes(symptom)))
        case IncidentScope.SERVICE:
            return symptom.root_cause  # not the text, which comes from the log of one team
    return symptom.job


def matching_incident(symptom: FailureSymptom, incidents: Iterable[OpenIncident]) -> int | None:
    """The id of the incident with the best match, the newest among equals. None if the symptom needs a new one."""
    scope = scope_of_symptom(symptom)
    matches = [
        (strength, row.last_at, row.id) for row in incidents if (strength := _match_strength(symptom, scope, row))
    ]
    return max(matches)[2] if matches else None


def _match_strength(symptom: FailureSymptom, scope: IncidentScope, incident: OpenIncident) -> int:
    """3: same cause at the same place; 2: same service; 1: symptom seen by a peer; 0: no match."""
    if _same_cause(symptom, scope, incident) and _is_within_window(symptom.at, incident, JOIN_WINDOWS[scope]):
        return 3 if scope is not IncidentScope.SERVICE else 2
    peer = (
        incident.scope is IncidentScope.NODE
        and symptom.root_cause in PEER_SYMPTOM_CAUSES
        and symptom.nodes & incident.nodes
    )
    return 1 if peer and _is_within_window(symptom.at, incident, PEER_SYMPTOM_WINDOW) else 0


def _same_cause(symptom: FailureSymptom, scope: IncidentScope, incident: OpenIncident) -> bool:
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
    """The line with numbers replaced, so that lines that differ only in ranks or ports are equal."""
    return " ".join(NUMBER_PATTERN.sub("#", text).split())[:MAX_LINE_SHAPE]
