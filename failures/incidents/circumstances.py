"""What the cluster knows of an end, laid beside what the log says. Pure.

A log is written by the process that dies; the cluster outlives it. Where the log names no cause, or only what a peer
saw, the cluster's own word decides: a node that died, a time limit, memory that ran out. A log that names a sick part
keeps its verdict, for the cluster sees only that something stopped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from failures.diagnosis.labels import LABELS, NONE, UNKNOWN
from failures.diagnosis.values import Blame, ChainLink, FailureCategory, LineRole, LogDiagnosis, SuspectNode
from failures.incidents.grouping import NODE_CAUSES, PEER_SYMPTOM_CAUSES

CLUSTER_ENGINE = "cluster"  # the engine's name, where the verdict is the cluster's
SURE_CONFIDENCE, LIKELY_CONFIDENCE = 0.95, 0.8
NODE_DEATH_PATTERN = re.compile(r"DOWN|ERROR|NOT_RESPONDING|FAIL")
NODE_DEATH_CAUSES = frozenset({"NodeFailure", "SlurmNodeFail"})
CLOCK_TOLERANCE = timedelta(minutes=1)
NODE_CHANGE_WINDOW = timedelta(minutes=10)  # how long before an end a node's trouble still has to do with it


@dataclass(frozen=True, kw_only=True)
class NodeStateChange:
    """A node of the attempt that changed its condition around the attempt's end."""

    node: str
    at: datetime
    condition: str

    @property
    def is_death(self) -> bool:
        return NODE_DEATH_PATTERN.search(self.condition) is not None


@dataclass(frozen=True, kw_only=True)
class ClusterEndReport:
    """How the attempt ended, in the cluster's words."""

    state: str
    reason: str = ""
    news: Sequence[NodeStateChange] = ()

    @property
    def dead_nodes(self) -> tuple[NodeStateChange, ...]:
        return tuple(one for one in self.news if one.is_death)


# What the cluster's word for an end means where the log says nothing: label, how sure, whose fault
END_STATE_CAUSES: dict[str, tuple[str, float, Blame]] = {
    "NODE_FAIL": ("SlurmNodeFail", SURE_CONFIDENCE, Blame.NODE),
    "BOOT_FAIL": ("NodeFailure", LIKELY_CONFIDENCE, Blame.NODE),
    "OUT_OF_MEMORY": ("HostOOMKilled", SURE_CONFIDENCE, Blame.JOB),
    "TIMEOUT": ("Preempted/TimeLimit", SURE_CONFIDENCE, Blame.SCHEDULER),
    "DEADLINE": ("Preempted/TimeLimit", SURE_CONFIDENCE, Blame.SCHEDULER),
}


def merge_cluster_report(diagnosis: LogDiagnosis, end: ClusterEndReport) -> LogDiagnosis:
    """The verdict that counts: the log's, or the cluster's."""
    told = _cluster_cause(end)
    if told and _cluster_cause_wins(diagnosis, told[0]):
        return _with_cluster_cause(diagnosis, *told, end)
    if diagnosis.root_cause == NONE or (diagnosis.root_cause == UNKNOWN and not diagnosis.notes):
        return _unexplained_failure(diagnosis, end)
    return _with_dead_nodes(diagnosis, end) if diagnosis.root_cause in NODE_CAUSES else diagnosis


def _cluster_cause(end: ClusterEndReport) -> tuple[str, float, Blame] | None:
    if (word := END_STATE_CAUSES.get(end.state)) is not None:
        return word
    return ("NodeFailure", LIKELY_CONFIDENCE, Blame.NODE) if end.dead_nodes else None


def _cluster_cause_wins(diagnosis: LogDiagnosis, label: str) -> bool:
    """Whether the log's verdict gives way to the cluster's word."""
    said = diagnosis.root_cause
    if said in (NONE, UNKNOWN) or not any(link.line for link in diagnosis.chain):
        return True  # nothing, or no more than a guess from the exit code
    if label in NODE_CAUSES:
        # A dead node takes its peers' connections and the user's process with it; a named sick part says more
        return said in PEER_SYMPTOM_CAUSES or (
            diagnosis.category is not FailureCategory.INFRASTRUCTURE and diagnosis.confidence < LIKELY_CONFIDENCE
        )
    return said == label


def _with_cluster_cause(
    diagnosis: LogDiagnosis, label: str, confidence: float, blame: Blame, end: ClusterEndReport
) -> LogDiagnosis:
    row = LABELS[label]
    words = f"The cluster reports {end.state}" + (f": {end.reason}" if end.reason else "") + "."
    if diagnosis.root_cause == label:
        confidence = max(confidence, diagnosis.confidence)
    first = ChainLink(role=LineRole.INITIATING, label=label, line=0, text=words, time="", count=1, ranks=())
    later = tuple(
        replace(link, role=LineRole.CASCADE) if link.role is LineRole.INITIATING else link for link in diagnosis.chain
    )
    found = replace(
        diagnosis, root_cause=label, category=row.category, confidence=confidence, blame=blame, chain=(first, *later),
        restart_helps=row.restart, restart_reason=row.reason, action=row.action, engine=CLUSTER_ENGINE,
        notes=(words, *diagnosis.notes),
    )  # fmt: skip
    return _with_dead_nodes(found, end) if label in NODE_CAUSES else found


def _with_dead_nodes(diagnosis: LogDiagnosis, end: ClusterEndReport) -> LogDiagnosis:
    """Where the cluster knows who died, a host that a log names beside it is the one that was left to tell."""
    told = () if end.dead_nodes and diagnosis.root_cause in NODE_DEATH_CAUSES else diagnosis.suspect_nodes
    dead = {one.node for one in end.dead_nodes}
    kept = (*told, *(node for node in diagnosis.suspect_nodes if node.host in dead and node not in told))
    known = {node.host for node in kept}
    more = {
        one.node: SuspectNode(host=one.node, why=f"the cluster reports it {one.condition} since {one.at:%H:%M:%S}")
        for one in end.dead_nodes
        if one.node not in known
    }
    return replace(diagnosis, suspect_nodes=(*kept, *more.values()))


def _unexplained_failure(diagnosis: LogDiagnosis, end: ClusterEndReport) -> LogDiagnosis:
    """The attempt failed, and nothing in its log says why."""
    row = LABELS[UNKNOWN]
    words = f"Nothing in the log says why; the cluster reports {end.state}" + (f": {end.reason}" if end.reason else "")
    return replace(
        diagnosis, root_cause=UNKNOWN, category=row.category, confidence=0.0, restart_helps=row.restart,
        restart_reason=row.reason, action=row.action, notes=(f"{words}.", *diagnosis.notes),
    )  # fmt: skip


def first_symptom_time(diagnosis: LogDiagnosis, end: ClusterEndReport, began: datetime, ended: datetime) -> datetime:
    """The earliest moment at which something was seen. Times of logs have no zone and may lie: only plausible ones."""
    written = [link.time for link in diagnosis.chain] + [row.time for row in diagnosis.evidence]
    seen = [
        at
        for text in written
        if (at := parse_log_time(text)) and began - CLOCK_TOLERANCE <= at <= ended + CLOCK_TOLERANCE
    ]
    died = [one.at for one in end.dead_nodes if began - CLOCK_TOLERANCE <= one.at <= ended]
    return min([*seen, *died, ended])


def parse_log_time(text: str) -> datetime | None:
    """A time as logs write it, taken for UTC where it has no zone; None for what has no date."""
    try:
        found = datetime.fromisoformat(text.strip().replace("/", "-").replace(",", "."))
    except ValueError:
        return None
    if found.year < 1971:  # a clock that was never set
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
