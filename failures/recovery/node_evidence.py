"""Evidence about faults of nodes that does not come from a job: telemetry, and what the cluster reports. Read-only."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime

from failures.detection.findings import Severity
from failures.detection.node_health import LEMON_TEXT, fault_evidence
from failures.incidents import circumstances
from failures.incidents.circumstances import END_STATE_CAUSES, NodeStateChange
from failures.incidents.grouping import NODE_CAUSES
from failures.models import Anomaly
from failures.queries import node_telemetry
from failures.recovery.rules.values import NodeEvidence
from jobs.models import Attempt, Event, Node


def evidence_against(
    cluster_id: int, names: Collection[str], now: datetime, *, attempt: Attempt | None = None, slow: bool = False
) -> tuple[NodeEvidence, ...]:
    """Evidence against these nodes. `slow` says that they are suspected of being slow, not of ending programs."""
    if not names:
        return ()
    nodes = list(Node.objects.filter(cluster=cluster_id, name__in=names).order_by("name"))
    return (*_telemetry_evidence(cluster_id, nodes, now, slow), *_cluster_evidence(nodes, attempt))


def node_state_changes(attempt: Attempt) -> tuple[NodeStateChange, ...]:
    """State changes of the attempt's nodes near its end, not before its start. Late reports are included."""
    ended, began = end_and_start(attempt)
    allocated = attempt.allocations.order_by().values("node")
    window = (max(began, ended - circumstances.NODE_CHANGE_WINDOW), ended + circumstances.NODE_CHANGE_WINDOW)
    rows = Event.objects.filter(node__in=allocated, type="node.state_changed", at__range=window).order_by("id")
    return tuple(
        NodeStateChange(node=name, at=at, condition=to)
        for name, at, to in rows.values_list("node__name", "at", "to_state")[:1000]
    )


def end_and_start(attempt: Attempt) -> tuple[datetime, datetime]:
    """The end and the start of the attempt."""
    ended = attempt.ended_at or attempt.promised_at
    return ended, attempt.confirmed_at or attempt.promised_at


def _telemetry_evidence(cluster_id: int, nodes: Collection[Node], now: datetime, slow: bool) -> Iterator[NodeEvidence]:
    severities = (Severity.WARN, Severity.BAD) if slow else (Severity.BAD,)
    anomalies = Anomaly.objects.not_ended().of_node_health().filter(node__in=nodes, severity__in=severities)
    # Repeated failures of jobs are not telemetry
    findings = dict(anomalies.exclude(why__startswith=LEMON_TEXT).values_list("node", "why"))
    samples = node_telemetry.recent_samples(cluster_id, now, [node.name for node in nodes])
    for node in nodes:
        why = findings.get(node.pk, "")
        if not why and (rows := samples.get(node.pk)):
            why = " ".join(fault_evidence(node_telemetry.build_reading(node.name, rows), slow=slow))
        if why:
            yield NodeEvidence(node=node.name, sentence=f"Telemetry of {node}: {why}")


def _cluster_evidence(nodes: Collection[Node], attempt: Attempt | None) -> Iterator[NodeEvidence]:
    conditions = {change.node: change.condition for change in _deaths(attempt)}
    for node in nodes:
        condition = conditions.get(node.name, node.condition)
        if circumstances.NODE_DEATH_PATTERN.search(condition):
            yield NodeEvidence(node=node.name, sentence=f"The cluster reports {node} as {condition}.")
        elif attempt is not None and _failed_with_its_only_node(attempt):
            yield NodeEvidence(node=node.name, sentence=f"The cluster reports {attempt.state} on {node} alone.")


def _deaths(attempt: Attempt | None) -> list[NodeStateChange]:
    return [change for change in node_state_changes(attempt) if change.is_death] if attempt else []


def _failed_with_its_only_node(attempt: Attempt) -> bool:
    cause = END_STATE_CAUSES.get(attempt.state)
    is_node_failure = cause is not None and cause[0] in NODE_CAUSES
    return is_node_failure and attempt.allocations.order_by().values("node").distinct().count() == 1
