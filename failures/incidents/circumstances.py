"""Combines the diagnosis of a log with the cluster's report about the end of the attempt. Pure.

A log ends with the process that writes it, while the cluster keeps running. If the log names no cause or only a
symptom seen by a peer, the report of the cluster decides: a failed node, a time limit, memory that ran out. If the log
names a faulty part, its diagnosis stands, because the cluster sees only that the job stopped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from failures.diagnosis.labels import LABELS, NONE, UNKNOWN
from failures.diagnosis.values import Blame, ChainLink, FailureCategory, LineRole, LogDiagnosis, SuspectNode
from failures.incidents.grouping import NODE_CAUSES, PEER_SYMPTOM_CAUSES

CLUSTER_ENGINE = "cluster"  # name of the engine if the report of the cluster decides
SURE_CONFIDENCE, LIKELY_CONFIDENCE = 0.95, 0.8
NODE_DEATH_PATTERN = re.compile(r"DOWN|ERROR|NOT_RESPONDING|FAIL")
NODE_DEATH_CAUSES = frozenset({"NodeFailure", "SlurmNodeFail"})
CLOCK_TOLERANCE = timedelta(minutes=1)
NODE_CHANGE_WINDOW = timedelta(minutes=10)  # node changes this close to the end count as related


@dataclass(frozen=True, kw_only=True)
class NodeStateChange:
    """A state change of a node of the attempt around the end of the attempt."""

    node: str
    at: datetime
    condition: str

    @property
    def is_death(self) -> bool:
        return NODE_DEATH_PATTERN.search(self.condition) is not None


@dataclass(frozen=True, kw_only=True)
class ClusterEndReport:
    """The cluster's report about the end of the attempt."""

    state: str
    reason: str = ""
    news: Sequence[NodeStateChange] = ()

    @property
    def dead_nodes(self) -> tuple[NodeStateChange, ...]:
        return tuple(change for change in self.news if change.is_death)


# The meaning of the reported state if the log names no cause: label, confidence, blame
END_STATE_CAUSES: dict[str, tuple[str, float, Blame]] = {
    "NODE_FAIL": ("SlurmNodeFail", SURE_CONFIDENCE, Blame.NODE),
    "BOOT_FAIL": ("NodeFailure", LIKELY_CONFIDENCE, Blame.NODE),
    "OUT_OF_MEMORY": ("HostOOMKilled", SURE_CONFIDENCE, Blame.JOB),
    "TIMEOUT": ("Preempted/TimeLimit", SURE_CONFIDENCE, Blame.SCHEDULER),
    "DEADLINE": ("Preempted/TimeLimit", SURE_CONFIDENCE, Blame.SCHEDULER),
}


def merge_cluster_report(diagnosis: LogDiagnosis, end: ClusterEndReport) -> LogDiagnosis:
    """The final diagnosis, from the log or from the report of the cluster."""
    cluster_cause = _cluster_cause(end)
    if cluster_cause and _cluster_cause_wins(diagnosis, cluster_cause[0]):
        return _with_cluster_cause(diagnosis, *cluster_cause, end)
    if diagnosis.root_cause == NONE or (diagnosis.root_cause == UNKNOWN and not diagnosis.notes):
        return _unexplained_failure(diagnosis, end)
    return _with_dead_nodes(diagnosis, end) if diagnosis.root_cause in NODE_CAUSES else diagnosis


def _cluster_cause(end: ClusterEndReport) -> tuple[str, float, Blame] | None:
    if (cause := END_STATE_CAUSES.get(end.state)) is not None:
        return cause
    return ("NodeFailure", LIKELY_CONFIDENCE, Blame.NODE) if end.dead_nodes else None


def _cluster_cause_wins(diagnosis: LogDiagnosis, label: str) -> bool:
    """Whether the report of the cluster overrides the diagnosis of the log."""
    log_cause = diagnosis.root_cause
    if log_cause in (NONE, UNKNOWN) or not any(link.line for link in diagnosis.chain):
        return True  # no cause, or only a guess from the exit code
    if label in NODE_CAUSES:
        # A failed node breaks connections and user processes on other nodes; a named faulty part is more specific
        return log_cause in PEER_SYMPTOM_CAUSES or (
            diagnosis.category is not FailureCategory.INFRASTRUCTURE and diagnosis.confidence < LIKELY_CONFIDENCE
        )
    return log_cause == label


def _with_cluster_cause(
    diagnosis: LogDiagnosis, label: str, confidence: float, blame: Blame, end: ClusterEndReport
) -> LogDiagnosis:
    row = LABELS[label]
    sentence = f"The cluster reports {end.state}" + (f": {end.reason}" if end.reason else "") + "."
    if diagnosis.root_cause == label:
        confidence = max(confidence, diagnosis.confidence)
    first = ChainLink(role=LineRole.INITIATING, label=label, line=0, text=sentence, time="", count=1, ranks=())
    later = tuple(
        replace(link, role=LineRole.CASCADE) if link.role is LineRole.INITIATING else link for link in diagnosis.chain
    )
    merged = replace(
        diagnosis, root_cause=label, category=row.category, confidence=confidence, blame=blame, chain=(first, *later),
        restart_helps=row.restart, restart_reason=row.reason, action=row.action, engine=CLUSTER_ENGINE,
        notes=(sentence, *diagnosis.notes),
    )  # fmt: skip
    return _with_dead_nodes(merged, end) if label in NODE_CAUSES else merged


def _with_dead_nodes(diagnosis: LogDiagnosis, end: ClusterEndReport) -> LogDiagnosis:
    """The diagnosis with the failed nodes as suspects.

    If the cluster reports failed nodes, other hosts named in the log only observed the failure and are dropped.
    """
    named = () if end.dead_nodes and diagnosis.root_cause in NODE_DEATH_CAUSES else diagnosis.suspect_nodes
    dead_hosts = {change.node for change in end.dead_nodes}
    suspects = (*named, *(node for node in diagnosis.suspect_nodes if node.host in dead_hosts and node not in named))
    hosts = {node.host for node in suspects}
    added = {
        change.node: SuspectNode(
            host=change.node, why=f"reported as {change.condition} by the cluster since {change.at:%H:%M:%S} UTC"
        )
        for change in end.dead_nodes
        if change.node not in hosts
    }
    return replace(diagnosis, suspect_nodes=(*suspects, *added.values()))


def _unexplained_failure(diagnosis: LogDiagnosis, end: ClusterEndReport) -> LogDiagnosis:
    """The diagnosis of a failed attempt whose log does not name a cause."""
    row = LABELS[UNKNOWN]
    sentence = f"The log does not show the cause. The cluster reports {end.state}" + (
        f": {end.reason}" if end.reason else ""
    )
    return replace(
        diagnosis, root_cause=UNKNOWN, category=row.category, confidence=0.0, restart_helps=row.restart,
        restart_reason=row.reason, action=row.action, notes=(f"{sentence}.", *diagnosis.notes),
    )  # fmt: skip


def first_symptom_time(diagnosis: LogDiagnosis, end: ClusterEndReport, began: datetime, ended: datetime) -> datetime:
    """The earliest time of a symptom. Times in logs have no zone and may be wrong, so implausible ones are ignored."""
    texts = [link.time for link in diagnosis.chain] + [row.time for row in diagnosis.evidence]
    logged = [
        at
        for text in texts
        if (at := parse_log_time(text)) and began - CLOCK_TOLERANCE <= at <= ended + CLOCK_TOLERANCE
    ]
    node_deaths = [change.at for change in end.dead_nodes if began - CLOCK_TOLERANCE <= change.at <= ended]
    return min([*logged, *node_deaths, ended])


def parse_log_time(text: str) -> datetime | None:
    """The time in a log line, as UTC if it has no zone; None if it has no date."""
    try:
        moment = datetime.fromisoformat(text.strip().replace("/", "-").replace(",", "."))
    except ValueError:
        return None
    if moment.year < 1971:  # the clock was never set
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
