"""Node health: anomalies from the telemetry of nodes and from the failures of jobs on them.

Eligible rows     Nodes of clusters with telemetry that their cluster reports as up and awake.
What a turn does  Runs the pure detector on the last minutes of each node. A finding becomes an anomaly of the node that
                  lasts as long as the finding. Only severe anomalies open an incident, from which recovery decides.
Failure story     An ongoing anomaly is one row, so a kill or a second run does not duplicate it. If telemetry stops on
                  all nodes at once, the exporter has failed, and no node gets an anomaly. An Xid counts when it
                  changes. Its anomaly lasts while the driver shows the Xid, which it does until it is reloaded; a
                  passed test, resuming the node or resolving the incident ends it earlier. Memory errors last in the
                  same way; other counters count only what was added within the last minutes. If a node has no
                  telemetry, its anomaly stays.

A turn reads the samples of the last minutes by the index on time: 40 narrow rows per node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from django.db.models import Max, Q

from failures.actions import anomalies as anomaly_actions
from failures.detection import node_health as detect
from failures.detection.findings import DetectorFinding, Severity, SymptomType
from failures.detection.node_health import NodeTelemetryWindow
from failures.models import Anomaly
from failures.queries import node_telemetry
from failures.queries.node_history import history_by_node
from jobs.actions.one_row import skip_row_on_error
from jobs.core.lifecycle import USABLE_NODE_STATES
from jobs.models import Cluster, Event, Node, Resolution, Sample

FRESH_SAMPLE_AGE = timedelta(seconds=detect.TELEMETRY_TIMEOUT_S)
FIRST_SAMPLE_TIME = timedelta(minutes=5)  # of a node that has booted
LAST_SAMPLE_WINDOW = timedelta(days=1)
REPORTED_SEVERITIES = (Severity.WARN, Severity.BAD)
XID_PATTERN = re.compile(r"\bXid (\d+):")
ECC_TEXT = "Uncorrectable memory errors"
NO_TELEMETRY_REASON = "The cluster no longer has telemetry."
NODE_DOWN_REASON = "The cluster reports the node as down."


def node_health_once(now: datetime) -> int:
    """Update the health anomalies of all nodes. Returns how many were opened, changed or ended."""
    done = _end_unwatched_anomalies(now)
    for cluster in Cluster.objects.exclude(metrics_address=""):
        with skip_row_on_error(cluster):
            done += _check_cluster(cluster, now)
    return done


def _end_unwatched_anomalies(now: datetime) -> int:
    """Ends anomalies of nodes that are down or without telemetry, because no other code would end them."""
    done = 0
    lasting = Anomaly.objects.not_ended().of_node_health()
    down = lasting.exclude(cluster__metrics_address="").exclude(node__state__in=USABLE_NODE_STATES)
    for anomalies, why in (
        (lasting.filter(cluster__metrics_address=""), NO_TELEMETRY_REASON),
        (down, NODE_DOWN_REASON),
    ):
        for anomaly in anomalies.select_related("incident", "node", "attempt"):
            with skip_row_on_error(anomaly):
                done += anomaly_actions.end_anomaly(anomaly, why, now, now)
    return done


def _check_cluster(cluster: Cluster, now: datetime) -> int:
    usable = Node.objects.filter(cluster=cluster, state__in=USABLE_NODE_STATES, gpus__gt=0)
    nodes = [node for node in usable if not node.is_asleep]
    anomalies = {
        anomaly.node_id: anomaly
        for anomaly in Anomaly.objects.not_ended().of_node_health().filter(cluster=cluster).select_related("incident")
    }
    findings = {
        node.pk: _reportable_findings(reading, now) for node, reading in _node_readings(cluster, nodes, anomalies, now)
    }
    history = history_by_node(cluster, now)
    done = 0
    for node in nodes:
        anomaly = anomalies.get(node.pk)
        if node.pk not in findings and anomaly is not None and not anomaly.why.startswith(detect.LEMON_TEXT):
            continue
        with skip_row_on_error(node):
            node_findings = [*findings.get(node.pk, ()), *_lemon_findings(node, history.get(node.pk, ()), now)]
            done += _update_anomaly(cluster, node, node_findings, anomaly, now)
    return done


def _reportable_findings(reading: NodeTelemetryWindow, now: datetime) -> list[DetectorFinding]:
    findings = detect.node_health_findings(reading, now.timestamp())
    return [finding for finding in findings if finding.severity in REPORTED_SEVERITIES]


def _update_anomaly(
    cluster: Cluster, node: Node, findings: Sequence[DetectorFinding], anomaly: Anomaly | None, now: datetime
) -> bool:
    if findings:
        combined = DetectorFinding(
            symptom=SymptomType.NODE,
            since=now.timestamp(),
            severity=findings[0].severity,
            why=" ".join(finding.why for finding in findings),
        )
        return anomaly_actions.record_finding(combined, cluster, now, node=node) is not None
    return anomaly is not None and anomaly_actions.end_anomaly(anomaly, "The node is healthy again.", now, now)


def _lemon_findings(node: Node, history: Sequence[detect.NodeHistoryEntry], now: datetime) -> list[DetectorFinding]:
    timestamp = now.timestamp()
    if not detect.is_lemon(history, timestamp):
        return []
    why = f"{detect.LEMON_TEXT}: lemon score {detect.lemon_score(history, timestamp):.1f} over the last 30 days."
    return [DetectorFinding(symptom=SymptomType.NODE, since=timestamp, severity=Severity.WARN, why=why)]


# --- telemetry windows from samples


def _node_readings(
    cluster: Cluster, nodes: Sequence[Node], anomalies: Mapping[int, Anomaly], now: datetime
) -> Iterable[tuple[Node, NodeTelemetryWindow]]:
    """The telemetry windows of the nodes with telemetry; none while the whole exporter is silent."""
    samples = node_telemetry.recent_samples(cluster.pk, now)
    newest = max((rows[-1].at for rows in samples.values()), default=None)
    if newest is None or now - newest > FRESH_SAMPLE_AGE:
        return
    silent = _last_sample_times(cluster, [node for node in nodes if node.pk not in samples], now)
    woken = _just_woken(cluster, now)
    valid_since = _last_anomaly_end_times(cluster) | _cleared_times(anomalies)
    for node in nodes:
        xids = _active_xids(anomalies.get(node.pk), valid_since.get(node.pk))
        if node.pk in woken and (node.pk not in samples or now - samples[node.pk][-1].at > FRESH_SAMPLE_AGE):
            continue
        if rows := samples.get(node.pk):
            ecc = _is_still_reported(anomalies.get(node.pk), valid_since.get(node.pk), ECC_TEXT)
            yield (
                node,
                node_telemetry.build_reading(node.name, rows, since=valid_since.get(node.pk), held=xids, holds_ecc=ecc),
            )
        elif node.pk in silent:
            yield node, NodeTelemetryWindow(node=node.name, last_sample_at=silent[node.pk].timestamp(), xids=xids)


def _just_woken(cluster: Cluster, now: datetime) -> set[int]:
    """The nodes that slept until a moment ago, so their telemetry may not have begun again."""
    events = Event.objects.filter(cluster=cluster, type="node.state_changed", at__gt=now - FIRST_SAMPLE_TIME)
    return set(events.filter(from_state__contains="POWER").values_list("node_id", flat=True))


def _last_sample_times(cluster: Cluster, nodes: Sequence[Node], now: datetime) -> Mapping[int, datetime]:
    rows = Sample.objects.filter(node__in=nodes, resolution=Resolution.RAW, at__gt=now - LAST_SAMPLE_WINDOW)
    return dict(rows.order_by().values_list("node").annotate(Max("at"))) if nodes else {}


def _active_xids(anomaly: Anomaly | None, begun: datetime | None) -> list[int]:
    """The Xids of an ongoing anomaly, unless they were cleared since."""
    return (
        [int(code) for code in XID_PATTERN.findall(anomaly.why)]
        if anomaly and _is_still_reported(anomaly, begun, "")
        else []
    )


def _is_still_reported(anomaly: Anomaly | None, begun: datetime | None, words: str) -> bool:
    return anomaly is not None and words in anomaly.why and not (begun is not None and begun > anomaly.since)


def _cleared_times(anomalies: Mapping[int, Anomaly]) -> dict[int, datetime]:
    """When the anomaly of a node was cleared since it began: by a passed test, a resume or a resolved incident."""
    oldest = min((anomaly.since for anomaly in anomalies.values()), default=None)
    if oldest is None:
        return {}
    cleared = Q(type="node.resumed") | Q(type="node.tested", detail__passed=True)
    rows = Event.objects.filter(cleared, node__in=anomalies, at__gt=oldest)
    times = dict(rows.order_by().values_list("node").annotate(Max("at")))
    for node, anomaly in anomalies.items():
        resolved = anomaly.incident.resolved_at if anomaly.incident else None
        times[node] = max((at for at in (times.get(node), resolved) if at), default=anomaly.since)
    return {node: at for node, at in times.items() if at > anomalies[node].since}


def _last_anomaly_end_times(cluster: Cluster) -> dict[int, datetime]:
    """The end of the last anomaly of each node. Earlier samples do not count again."""
    rows = Anomaly.objects.of_node_health().filter(cluster=cluster, ended_at__isnull=False)
    return dict(rows.order_by().values_list("node").annotate(Max("ended_at")))
