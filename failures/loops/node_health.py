"""Health: what nodes report of themselves, and what became of those who ran on them, as signs.

Who is eligible   nodes of clusters with telemetry that are up by their cluster's word.
What a turn does  asks the pure detector about the last minutes of each node; what it finds is a sign of the node, for
                  as long as it lasts. Only what is bad opens an incident, from which recovery decides.
Failure story     A sign is one row while it lasts; killed anywhere or run twice, nothing is said twice. Telemetry that
                  stops everywhere at once says something of the exporter, and nothing of any node. An Xid counts when
                  it changes, and its sign lasts while the driver shows it, which it does until it is loaded again: a
                  passed test, a node that is resumed or a person who resolves its incident ends it before. Of a node
                  of which nothing is known, nothing is said: what was seen of it lasts. Memory errors last as Xids do;
                  other counters tell of what was added within the last minutes.

A turn reads the samples of the last minutes: 40 narrow rows of each node, by the index on time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Max, Q

from failures.actions import signs as sign_actions
from failures.detection import node_health as detect
from failures.detection.findings import DetectorFinding, Severity, SymptomType
from failures.detection.node_health import NodeTelemetryWindow
from failures.models import Sign
from failures.queries.node_history import history_by_node
from jobs.actions.one_row import skip_row_on_error
from jobs.core.lifecycle import USABLE_NODE_STATES
from jobs.models import Cluster, Event, Node, Resolution, Sample

SAMPLE_WINDOW = timedelta(minutes=10)
SUSTAINED_SAMPLES = 4  # samples: one hot moment is weather
FRESH_SAMPLE_AGE = timedelta(seconds=detect.TELEMETRY_TIMEOUT_S)
LAST_SAMPLE_WINDOW = timedelta(days=1)
REPORTED_SEVERITIES = (Severity.WARN, Severity.BAD)
XID_PATTERN = re.compile(r"\bXid (\d+):")
ECC_TEXT = "Uncorrectable memory errors"
NVLINK_COUNTERS = ("nvlink_crc", "nvlink_data", "nvlink_replay", "nvlink_recovery")
LEMON_TEXT = "It fails again and again"
NO_TELEMETRY_REASON = "Its cluster has no telemetry any more."
NODE_DOWN_REASON = "The node is down by its cluster's word."


def node_health_once(now: datetime) -> int:
    """How many signs were seen or have passed."""
    done = _end_unwatched_signs(now)
    for cluster in Cluster.objects.exclude(metrics_address=""):
        with skip_row_on_error(cluster):
            done += _check_cluster(cluster, now)
    return done


def _end_unwatched_signs(now: datetime) -> int:
    """Nobody looks there any more, and nothing else would end these signs."""
    done = 0
    lasting = Sign.objects.not_ended().of_node_health()
    down = lasting.exclude(cluster__metrics_address="").exclude(node__state__in=USABLE_NODE_STATES)
    for signs, why in ((lasting.filter(cluster__metrics_address=""), NO_TELEMETRY_REASON), (down, NODE_DOWN_REASON)):
        for sign in signs.select_related("incident", "node", "attempt"):
            with skip_row_on_error(sign):
                done += sign_actions.end_sign(sign, why, now, now)
    return done


def _check_cluster(cluster: Cluster, now: datetime) -> int:
    nodes = list(Node.objects.filter(cluster=cluster, state__in=USABLE_NODE_STATES, gpus__gt=0))
    signs = {
        sign.node_id: sign
        for sign in Sign.objects.not_ended().of_node_health().filter(cluster=cluster).select_related("incident")
    }
    found = {
        node.pk: _reportable_findings(reading, now) for node, reading in _node_readings(cluster, nodes, signs, now)
    }
    past = history_by_node(cluster, now)
    done = 0
    for node in nodes:
        sign = signs.get(node.pk)
        if node.pk not in found and sign is not None and not sign.why.startswith(LEMON_TEXT):
            continue
        with skip_row_on_error(node):
            said = [*found.get(node.pk, ()), *_lemon_findings(node, past.get(node.pk, ()), now)]
            done += _update_sign(cluster, node, said, sign, now)
    return done


def _reportable_findings(reading: NodeTelemetryWindow, now: datetime) -> list[DetectorFinding]:
    return [one for one in detect.node_health_findings(reading, now.timestamp()) if one.severity in REPORTED_SEVERITIES]


def _update_sign(
    cluster: Cluster, node: Node, said: Sequence[DetectorFinding], sign: Sign | None, now: datetime
) -> bool:
    if said:
        whole = DetectorFinding(
            symptom=SymptomType.NODE,
            since=now.timestamp(),
            severity=said[0].severity,
            why=" ".join(one.why for one in said),
        )
        return sign_actions.record_finding(whole, cluster, now, node=node) is not None
    return sign is not None and sign_actions.end_sign(sign, "It is well again.", now, now)


def _lemon_findings(node: Node, past: Sequence[detect.NodeHistoryEntry], now: datetime) -> list[DetectorFinding]:
    at = now.timestamp()
    if not detect.is_lemon(past, at):
        return []
    why = f"{LEMON_TEXT}: a lemon score of {detect.lemon_score(past, at):.1f} from the last 30 days."
    return [DetectorFinding(symptom=SymptomType.NODE, since=at, severity=Severity.WARN, why=why)]


# --- samples → readings


def _node_readings(
    cluster: Cluster, nodes: Sequence[Node], signs: Mapping[int, Sign], now: datetime
) -> Iterable[tuple[Node, NodeTelemetryWindow]]:
    """Of the nodes that ever had telemetry; of none while the exporter itself is silent."""
    samples = _recent_samples(cluster, now)
    newest = max((rows[-1].at for rows in samples.values()), default=None)
    if newest is None or now - newest > FRESH_SAMPLE_AGE:
        return
    silent = _last_sample_times(cluster, [node for node in nodes if node.pk not in samples], now)
    begun = _last_sign_end_times(cluster) | _cleared_times(signs)
    for node in nodes:
        held = _active_xids(signs.get(node.pk), begun.get(node.pk))
        if rows := samples.get(node.pk):
            ecc = _is_still_reported(signs.get(node.pk), begun.get(node.pk), ECC_TEXT)
            yield node, build_reading(node.name, rows, since=begun.get(node.pk), held=held, holds_ecc=ecc)
        elif node.pk in silent:
            yield node, NodeTelemetryWindow(node=node.name, heard_at=silent[node.pk].timestamp(), xids=held)


def _recent_samples(cluster: Cluster, now: datetime) -> Mapping[int, list[Sample]]:
    rows = Sample.objects.filter(
        resolution=Resolution.RAW, at__gt=now - SAMPLE_WINDOW, at__lte=now, node__cluster=cluster
    )
    found = defaultdict(list)
    for row in rows.only("node_id", "at", "gpu_temperature_c", "xid", "counted").order_by("at"):
        found[row.node_id].append(row)
    return found


def _last_sample_times(cluster: Cluster, nodes: Sequence[Node], now: datetime) -> Mapping[int, datetime]:
    rows = Sample.objects.filter(node__in=nodes, resolution=Resolution.RAW, at__gt=now - LAST_SAMPLE_WINDOW)
    return dict(rows.order_by().values_list("node").annotate(Max("at"))) if nodes else {}


def _active_xids(sign: Sign | None, begun: datetime | None) -> list[int]:
    """The codes that its lasting sign tells of, if nobody has cleared them."""
    return [int(code) for code in XID_PATTERN.findall(sign.why)] if sign and _is_still_reported(sign, begun, "") else []


def _is_still_reported(sign: Sign | None, begun: datetime | None, words: str) -> bool:
    return sign is not None and words in sign.why and not (begun is not None and begun > sign.since)


def _cleared_times(signs: Mapping[int, Sign]) -> dict[int, datetime]:
    """Since their sign began: a test that was passed, a node that was resumed, an incident that was resolved."""
    oldest = min((sign.since for sign in signs.values()), default=None)
    if oldest is None:
        return {}
    cleared = Q(what="node.resumed") | Q(what="node.tested", detail__passed=True)
    rows = Event.objects.filter(cleared, node__in=signs, at__gt=oldest)
    found = dict(rows.order_by().values_list("node").annotate(Max("at")))
    for node, sign in signs.items():
        resolved = sign.incident.resolved_at if sign.incident else None
        found[node] = max((at for at in (found.get(node), resolved) if at), default=sign.since)
    return {node: at for node, at in found.items() if at > signs[node].since}


def _last_sign_end_times(cluster: Cluster) -> dict[int, datetime]:
    """What was seen before a sign was closed is not held against a node again."""
    rows = Sign.objects.of_node_health().filter(cluster=cluster, ended_at__isnull=False)
    return dict(rows.order_by().values_list("node").annotate(Max("ended_at")))


def build_reading(
    name: str,
    rows: Sequence[Sample],
    since: datetime | None = None,
    held: Sequence[int] = (),
    holds_ecc: bool = False,
) -> NodeTelemetryWindow:
    """`holds_ecc`: its sign tells of memory errors, which last as the codes do: until the driver counts anew."""
    shown = {int(code) for code in rows[-1].xid if code}
    hottest = [max((value for value in row.gpu_temperature_c if value is not None), default=None) for row in rows]
    lately = [value for value in hottest[-SUSTAINED_SAMPLES:] if value is not None]
    newest = rows[-1].counted
    return NodeTelemetryWindow(
        node=name,
        heard_at=rows[-1].at.timestamp(),
        xids=[*(code for code in held if code in shown), *_new_xids(rows, since)],
        hottest_c=min(lately) if len(lately) == SUSTAINED_SAMPLES else None,
        ecc_uncorrected=_sum_counter(newest, "ecc_dbe") if holds_ecc else _counter_growth(rows, "ecc_dbe", since),
        ecc_corrected=_counter_growth(rows, "ecc_sbe", since),
        rows_pending=_sum_counter(newest, "rows_pending"),
        remap_failed=_sum_counter(newest, "remap_failed") > 0,
        nvlink_errors=sum(_counter_growth(rows, kind, since) for kind in NVLINK_COUNTERS),
        nics_down=_long_down_ports(rows),
        throttled=_throttled_fraction(rows),
    )


def _sum_counter(counted: Mapping[str, Any], name: str) -> int:
    return int(sum(value for value in counted.get(name, ()) if value))


def _counter_growth(rows: Sequence[Sample], name: str, since: datetime | None) -> int:
    """What was added within this time, GPU by GPU. A counter that is lower than before began anew; what nobody measured
    tells nothing of what came meanwhile."""
    last: dict[int, float] | None = None
    grown = 0.0
    for row in rows:
        if "unmeasured" in row.counted:
            last = None
            continue
        now = {gpu: value or 0.0 for gpu, value in enumerate(row.counted.get(name, ()))}
        if last is not None and (since is None or row.at > since):
            was = last
            grown += sum(value - was.get(gpu, 0.0) for gpu, value in now.items() if value > was.get(gpu, 0.0))
        last = now
    return int(grown)


def _long_down_ports(rows: Sequence[Sample]) -> list[str]:
    """Ports that were down at each of the last looks: a link that comes back at once was trained again."""
    lately = [set(row.counted.get("nics_down", ())) for row in rows[-SUSTAINED_SAMPLES:]]
    return sorted(set.intersection(*lately)) if len(lately) == SUSTAINED_SAMPLES else []


def _throttled_fraction(rows: Sequence[Sample]) -> float | None:
    """The part of the measured samples in which heat or power held a GPU back."""
    measured = [row for row in rows if "unmeasured" not in row.counted]
    if len(measured) < SUSTAINED_SAMPLES:
        return None
    return sum(_sum_counter(row.counted, "slowed") > 0 for row in measured) / len(measured)


def _new_xids(rows: Sequence[Sample], since: datetime | None) -> list[int]:
    """Those that came within this time, in order."""
    last: dict[int, float | None] = {}
    found = []
    for row in rows:
        for gpu, code in enumerate(row.xid):
            if gpu in last and code and code != last[gpu] and (since is None or row.at > since):
                found.append(int(code))
            last[gpu] = code
    return found
