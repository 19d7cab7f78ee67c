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


class Scope(StrEnum):
    NODE = "node"
    SERVICE = "service"
    JOB = "job"


NODE_CAUSES = frozenset(
    {"NVLinkError", "CUDAError", "NodeFailure", "SlurmNodeFail", "ECCError", "GPUFallenOffBus", "XidOther"}
    | {"NodeHealth", "SlowNode"}  # signs: nobody has died of them yet
)
SERVICE_CAUSES = frozenset({"NetworkError", "S3StorageError", "ConnectionError"})
# What a peer of a dead node says, or what says nothing: it joins an incident of a node that the attempt ran on
SYMPTOMS = frozenset({"NCCLTimeoutError", "NCCLRemoteError", "ConnectionError", "NetworkError", "Hang", UNKNOWN})
# Thousands of programs meet a connection that is refused, each for its own reason: the words must be the same too
WORDED = frozenset({"ConnectionError"})

NEAR = {Scope.NODE: timedelta(minutes=30), Scope.SERVICE: timedelta(minutes=10), Scope.JOB: timedelta(days=1)}
SYMPTOM_NEAR = timedelta(minutes=10)
NUMBERS = re.compile(r"(?<![0-9a-fA-F])(?:0x)?[0-9a-fA-F]*\d[\w.:,+-]*")
LONGEST_WORDS = 200


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """One failed attempt, as far as grouping looks at it."""

    root_cause: str
    at: datetime
    job: str  # the array's id for a task of an array
    nodes: frozenset[str]  # where it ran
    suspects: frozenset[str]  # whom the evidence names
    words: str = ""


@dataclass(frozen=True, kw_only=True)
class Known:
    """An incident that is not resolved."""

    id: int
    root_cause: str
    scope: Scope
    first_at: datetime
    last_at: datetime
    nodes: frozenset[str]
    jobs: frozenset[str]
    words: str = ""


def accused(symptom: Symptom) -> frozenset[str]:
    """The nodes that a hardware failure is about; the only node of an attempt needs nobody to name it."""
    if symptom.root_cause not in NODE_CAUSES:
        return symptom.suspects & symptom.nodes
    named = symptom.suspects & symptom.nodes
    return named or (symptom.nodes if len(symptom.nodes) == 1 else frozenset())


def scope_of(symptom: Symptom) -> Scope:
    if symptom.root_cause in NODE_CAUSES and accused(symptom):
        return Scope.NODE
    return Scope.SERVICE if symptom.root_cause in SERVICE_CAUSES else Scope.JOB


def subject_of(symptom: Symptom) -> str:
    """What the incident is called after."""
    match scope_of(symptom):
        case Scope.NODE:
            return ", ".join(sorted(accused(symptom)))
        case Scope.SERVICE:
            return symptom.root_cause  # the words are those of somebody's log
    return symptom.job


def choose(symptom: Symptom, incidents: Iterable[Known]) -> int | None:
    """The incident it joins: the one with the closest kinship, among equals the newest. None: it is a new one."""
    fitting = [(kinship, one.last_at, one.id) for one in incidents if (kinship := _kinship(symptom, one))]
    return max(fitting)[2] if fitting else None


def _kinship(symptom: Symptom, incident: Known) -> int:
    """0: none. 3: the same cause at the same place; 2: the same service; 1: what a peer saw of it."""
    if _is_near(symptom.at, incident, NEAR[incident.scope]) and _same_cause(symptom, incident):
        return 3 if incident.scope is not Scope.SERVICE else 2
    peer = incident.scope is Scope.NODE and symptom.root_cause in SYMPTOMS and symptom.nodes & incident.nodes
    return 1 if peer and _is_near(symptom.at, incident, SYMPTOM_NEAR) else 0


def _same_cause(symptom: Symptom, incident: Known) -> bool:
    scope = scope_of(symptom)
    if scope is not incident.scope:
        return False
    if scope is Scope.NODE:
        return bool(accused(symptom) & incident.nodes)
    if symptom.root_cause != incident.root_cause:
        return False
    if scope is Scope.JOB:
        return symptom.job in incident.jobs
    return symptom.root_cause not in WORDED or symptom.words == incident.words


def _is_near(at: datetime, incident: Known, within: timedelta) -> bool:
    return incident.first_at - within <= at <= incident.last_at + within


def words_of(text: str) -> str:
    """The shape of a line: two ranks that say the same on two ports say the same."""
    return " ".join(NUMBERS.sub("#", text).split())[:LONGEST_WORDS]
