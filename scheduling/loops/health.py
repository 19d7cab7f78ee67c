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

from failures import sign_actions
from failures.detect import nodes as detect
from failures.detect.findings import Finding, Severity, Symptom
from failures.detect.nodes import Reading
from failures.models import Sign
from failures.past import past_of
from jobs.lifecycle import USABLE_NODE
from jobs.models import Cluster, Event, Node, Resolution, Sample
from scheduling.loops.rows import one_row

WINDOW = timedelta(minutes=10)
SUSTAINED = 4  # samples: one hot moment is weather
FRESH = timedelta(seconds=detect.SILENT_S)
HEARD_AT_ALL = timedelta(days=1)
WORTH_SAYING = (Severity.WARN, Severity.BAD)
XID = re.compile(r"\bXid (\d+):")
ECC = "Uncorrectable memory errors"
NVLINK = ("nvlink_crc", "nvlink_data", "nvlink_replay", "nvlink_recovery")
LEMON = "It fails again and again"
UNWATCHED = "Its cluster has no telemetry any more."
DOWN = "The node is down by its cluster's word."


def health_once(now: datetime) -> int:
    """How many signs were seen or have passed."""
    done = _unwatched(now)
    for cluster in Cluster.objects.exclude(metrics_address=""):
        with one_row(cluster):
            done += _cluster(cluster, now)
    return done


def _unwatched(now: datetime) -> int:
    """Nobody looks there any more, and nothing else would end these signs."""
    done = 0
    lasting = Sign.objects.lasting().of_nodes()
    down = lasting.exclude(cluster__metrics_address="").exclude(node__state__in=USABLE_NODE)
    for signs, why in ((lasting.filter(cluster__metrics_address=""), UNWATCHED), (down, DOWN)):
        for sign in signs.select_related("incident", "node", "attempt"):
            with one_row(sign):
                done += sign_actions.passed(sign, why, now, now)
    return done


def _cluster(cluster: Cluster, now: datetime) -> int:
    nodes = list(Node.objects.filter(cluster=cluster, state__in=USABLE_NODE, gpus__gt=0))
    signs = {
        sign.node_id: sign
        for sign in Sign.objects.lasting().of_nodes().filter(cluster=cluster).select_related("incident")
    }
    found = {node.pk: _worst(reading, now) for node, reading in _readings(cluster, nodes, signs, now)}
    past = past_of(cluster, now)
    done = 0
    for node in nodes:
        sign = signs.get(node.pk)
        if node.pk not in found and sign is not None and not sign.why.startswith(LEMON):
            continue
        with one_row(node):
            said = [*found.get(node.pk, ()), *_lemon(node, past.get(node.pk, ()), now)]
            done += _noted(cluster, node, said, sign, now)
    return done


def _worst(reading: Reading, now: datetime) -> list[Finding]:
    return [one for one in detect.health(reading, now.timestamp()) if one.severity in WORTH_SAYING]


def _noted(cluster: Cluster, node: Node, said: Sequence[Finding], sign: Sign | None, now: datetime) -> bool:
    if said:
        whole = Finding(
            symptom=Symptom.NODE,
            since=now.timestamp(),
            severity=said[0].severity,
            why=" ".join(one.why for one in said),
        )
        return sign_actions.see(whole, cluster, now, node=node) is not None
    return sign is not None and sign_actions.passed(sign, "It is well again.", now, now)


def _lemon(node: Node, past: Sequence[detect.Past], now: datetime) -> list[Finding]:
    at = now.timestamp()
    if not detect.is_lemon(past, at):
        return []
    why = f"{LEMON}: a lemon score of {detect.lemon(past, at):.1f} from the last 30 days."
    return [Finding(symptom=Symptom.NODE, since=at, severity=Severity.WARN, why=why)]


# --- samples → readings


def _readings(
    cluster: Cluster, nodes: Sequence[Node], signs: Mapping[int, Sign], now: datetime
) -> Iterable[tuple[Node, Reading]]:
    """Of the nodes that ever had telemetry; of none while the exporter itself is silent."""
    samples = _samples(cluster, now)
    newest = max((rows[-1].at for rows in samples.values()), default=None)
    if newest is None or now - newest > FRESH:
        return
    silent = _last_heard(cluster, [node for node in nodes if node.pk not in samples], now)
    begun = _judged_until(cluster) | _cleared(signs)
    for node in nodes:
        held = _held(signs.get(node.pk), begun.get(node.pk))
        if rows := samples.get(node.pk):
            ecc = _still_told(signs.get(node.pk), begun.get(node.pk), ECC)
            yield node, reading(node.name, rows, since=begun.get(node.pk), held=held, holds_ecc=ecc)
        elif node.pk in silent:
            yield node, Reading(node=node.name, heard_at=silent[node.pk].timestamp(), xids=held)


def _samples(cluster: Cluster, now: datetime) -> Mapping[int, list[Sample]]:
    rows = Sample.objects.filter(resolution=Resolution.RAW, at__gt=now - WINDOW, at__lte=now, node__cluster=cluster)
    found = defaultdict(list)
    for row in rows.only("node_id", "at", "gpu_temperature_c", "xid", "counted").order_by("at"):
        found[row.node_id].append(row)
    return found


def _last_heard(cluster: Cluster, nodes: Sequence[Node], now: datetime) -> Mapping[int, datetime]:
    rows = Sample.objects.filter(node__in=nodes, resolution=Resolution.RAW, at__gt=now - HEARD_AT_ALL)
    return dict(rows.order_by().values_list("node").annotate(Max("at"))) if nodes else {}


def _held(sign: Sign | None, begun: datetime | None) -> list[int]:
    """The codes that its lasting sign tells of, if nobody has cleared them."""
    return [int(code) for code in XID.findall(sign.why)] if sign and _still_told(sign, begun, "") else []


def _still_told(sign: Sign | None, begun: datetime | None, words: str) -> bool:
    return sign is not None and words in sign.why and not (begun is not None and begun > sign.since)


def _cleared(signs: Mapping[int, Sign]) -> dict[int, datetime]:
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


def _judged_until(cluster: Cluster) -> dict[int, datetime]:
    """What was seen before a sign was closed is not held against a node again."""
    rows = Sign.objects.of_nodes().filter(cluster=cluster, ended_at__isnull=False)
    return dict(rows.order_by().values_list("node").annotate(Max("ended_at")))


def reading(
    name: str,
    rows: Sequence[Sample],
    since: datetime | None = None,
    held: Sequence[int] = (),
    holds_ecc: bool = False,
) -> Reading:
    """`holds_ecc`: its sign tells of memory errors, which last as the codes do: until the driver counts anew."""
    shown = {int(code) for code in rows[-1].xid if code}
    hottest = [max((value for value in row.gpu_temperature_c if value is not None), default=None) for row in rows]
    lately = [value for value in hottest[-SUSTAINED:] if value is not None]
    newest = rows[-1].counted
    return Reading(
        node=name,
        heard_at=rows[-1].at.timestamp(),
        xids=[*(code for code in held if code in shown), *_new_xids(rows, since)],
        hottest_c=min(lately) if len(lately) == SUSTAINED else None,
        ecc_uncorrected=_sum(newest, "ecc_dbe") if holds_ecc else _grown(rows, "ecc_dbe", since),
        ecc_corrected=_grown(rows, "ecc_sbe", since),
        rows_pending=_sum(newest, "rows_pending"),
        remap_failed=_sum(newest, "remap_failed") > 0,
        nvlink_errors=sum(_grown(rows, kind, since) for kind in NVLINK),
        nics_down=_down_for_long(rows),
        throttled=_slowed(rows),
    )


def _sum(counted: Mapping[str, Any], name: str) -> int:
    return int(sum(value for value in counted.get(name, ()) if value))


def _grown(rows: Sequence[Sample], name: str, since: datetime | None) -> int:
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


def _down_for_long(rows: Sequence[Sample]) -> list[str]:
    """Ports that were down at each of the last looks: a link that comes back at once was trained again."""
    lately = [set(row.counted.get("nics_down", ())) for row in rows[-SUSTAINED:]]
    return sorted(set.intersection(*lately)) if len(lately) == SUSTAINED else []


def _slowed(rows: Sequence[Sample]) -> float | None:
    """The part of the measured samples in which heat or power held a GPU back."""
    measured = [row for row in rows if "unmeasured" not in row.counted]
    if len(measured) < SUSTAINED:
        return None
    return sum(_sum(row.counted, "slowed") > 0 for row in measured) / len(measured)


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
