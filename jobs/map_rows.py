"""Rows → what the map shows: what nodes are, who holds which GPU, what telemetry says; now, or some time ago.

Then as now a handful of short statements, whatever the history has grown to: attempts are found by an index over the
time that they took. What no row tells is not guessed: a node has the GPUs and the place of today; which GPUs a foreign
job held nobody wrote down, so it is shown on the first that nobody of ours held.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import QuerySet

from jobs.lifecycle import Badge, NodeFlag, NodeState, node_badge, occupied, read_condition, takes_work
from jobs.mapping import Reading, Spot
from jobs.measures import interval
from jobs.models import Allocation, Cluster, Event, Node, Resolution, Sample

NODE_EVENTS = ("node.moved", "node.drained", "node.resumed")
# When the cluster first told of each node, where that was seen: before it, the node was not there
JOINED = """
SELECT n.id, e.at FROM jobs_node n CROSS JOIN LATERAL (SELECT at, from_state FROM jobs_event
  WHERE node_id = n.id AND what = 'node.moved' ORDER BY id LIMIT 1) AS e
WHERE n.cluster_id = %s AND e.from_state LIKE 'UNKNOWN%%'
"""
# The newest of each node before a moment: each half is one step into an index of its own, however much happened since
BEFORE = """
SELECT n.id, e.what, e.to_state, e.why, e.by FROM jobs_node n CROSS JOIN LATERAL (
  (SELECT what, to_state, why, by FROM jobs_event WHERE node_id = n.id AND what = 'node.moved'
   AND at < %(at)s ORDER BY at DESC, id DESC LIMIT 1)
  UNION ALL
  (SELECT what, to_state, why, by FROM jobs_event WHERE node_id = n.id AND what IN ('node.drained', 'node.resumed')
   AND at < %(at)s ORDER BY at DESC, id DESC LIMIT 1)
) AS e WHERE n.cluster_id = %(cluster)s
"""
REACH = timedelta(days=30)  # how far back the map goes; telemetry of five minutes is kept a day longer
FRESH = timedelta(minutes=1)  # older readings say nothing of now; four samples come in that time
Holder = tuple[int, int, int]  # node, GPU, job


@dataclass(frozen=True, kw_only=True)
class Picture:
    spots: Sequence[Spot]
    holders: Sequence[Holder]


def begins(cluster: Cluster, at: datetime) -> datetime:
    """Of what was before the cluster was entered there is no row, and to draw it as closed would be a guess."""
    return max(cluster.created_at, at - REACH)


# --- now


def now(cluster: Cluster) -> Picture:
    live = Allocation.objects.live().filter(node__cluster=cluster, gpu__isnull=False).order_by()
    return Picture(spots=spots(cluster), holders=list(live.values_list("node_id", "gpu", "attempt__job_id")))


def spots(cluster: Cluster) -> list[Spot]:
    return [_spot(node, node.badge, node.takes_work, node.foreign_gpus) for node in _nodes(cluster)]


def _nodes(cluster: Cluster) -> QuerySet[Node]:
    columns = ("name", "rack", "leaf", "gpus", "state", "flags", "drain_asked", "foreign_gpus")
    return Node.objects.filter(cluster=cluster, gpus__gt=0).only(*columns)


def _spot(node: Node, badge: Badge, takes_work: bool, foreign: Sequence[int]) -> Spot:
    return Spot(
        id=node.pk,
        name=node.name,
        rack=node.rack,
        leaf=node.leaf,
        gpus=node.gpus,
        word=badge.label,
        tone=badge.tone,
        takes_work=takes_work,
        foreign=foreign,
    )


def readings(cluster: Cluster, at: datetime) -> dict[int, Reading]:
    """The newest of the minute before."""
    rows = Sample.objects.filter(resolution=Resolution.RAW, at__gt=at - FRESH, at__lte=at, node__cluster=cluster)
    return _read(rows.order_by("node_id", "-at").distinct("node_id"))


def _read(rows: QuerySet[Sample]) -> dict[int, Reading]:
    found = rows.values_list("node_id", "gpu_util", "gpu_temperature_c", "xid")
    return {node: Reading(busy=busy, hot=hot, xid=xid) for node, busy, hot, xid in found}


# --- then


def readings_then(cluster: Cluster, at: datetime) -> dict[int, Reading]:
    """Means of five minutes; where those are not folded yet, the newest of the minute before."""
    five = Resolution.FIVE_MINUTES
    return _read(Sample.objects.filter(resolution=five, at=interval(at, five), node__cluster=cluster)) or readings(
        cluster, at
    )


def showing_xids(cluster: Cluster, at: datetime) -> dict[int, list[int]]:
    """By node: the GPUs of which the driver shows a code at that moment. It does so until it is loaded again."""
    found = {
        node: [gpu for gpu, code in enumerate(one.xid) if code] for node, one in readings_then(cluster, at).items()
    }
    return {node: gpus for node, gpus in found.items() if gpus}


def then(cluster: Cluster, at: datetime) -> Picture:
    held = _held(cluster, at)
    nodes = list(_nodes(cluster))
    conditions, drained = _told(cluster, nodes, at)
    return Picture(
        spots=[_spot_then(node, conditions[node.pk], node.pk in drained, held.get(node.pk, _Held())) for node in nodes],
        holders=[holder for one in held.values() for holder in one.holders],
    )


@dataclass(kw_only=True)
class _Held:
    """What was held of a node."""

    holders: list[Holder] = field(default_factory=list)
    unplaced: int = 0  # GPUs of foreign jobs, of which only the number is known
    busy: bool = False  # somebody was there, if only with CPUs


def _held(cluster: Cluster, at: datetime) -> Mapping[int, _Held]:
    rows = Allocation.objects.at(at).filter(node__cluster=cluster).order_by()
    found: dict[int, _Held] = defaultdict(_Held)
    job = "attempt__job"
    for node, gpu, pk, foreign, wide in rows.values_list(
        "node_id", "gpu", f"{job}_id", f"{job}__foreign_id", f"{job}__gpus_per_node"
    ):
        found[node].busy = True
        if gpu is not None:
            found[node].holders.append((node, gpu, pk))
        elif foreign:
            found[node].unplaced += wide
    return found


def joined(cluster: Cluster) -> Mapping[int, datetime]:
    """By node, the moment since which it has been there; of who is not in it, since its cluster was added."""
    with connection.cursor() as cursor:
        cursor.execute(JOINED, [cluster.pk])
        return dict(cursor.fetchall())


Told = tuple[int, str, str, str, str]  # node, what, to which state, why, by whom


def told_before(cluster: Cluster, at: datetime) -> list[Told]:
    """What was the last that moved each node, and the last that was asked of it."""
    with connection.cursor() as cursor:
        cursor.execute(BEFORE, {"at": at, "cluster": cluster.pk})
        return cursor.fetchall()


def _told(cluster: Cluster, nodes: Iterable[Node], at: datetime) -> tuple[Mapping[int, str], set[int]]:
    """The condition of each node, and who was drained. Before its first Event a node was what that moved it from."""
    conditions, drained = {}, set()
    for node, what, state, _, _ in told_before(cluster, at):
        if what == "node.moved":
            conditions[node] = state
        elif what == "node.drained":
            drained.add(node)
    untold = [node for node in nodes if node.pk not in conditions]
    moves = (
        Event.objects.filter(node__in=untold, what="node.moved", at__gte=at)
        .order_by("node_id", "id")
        .distinct("node_id")
    )
    first = dict(moves.values_list("node_id", "from_state")) if untold else {}
    return conditions | {node.pk: first.get(node.pk) or node.condition for node in untold}, drained


def _spot_then(node: Node, words: str, drained: bool, held: _Held) -> Spot:
    health, flags = read_condition(words)
    worn = sorted({*flags, NodeFlag.DRAIN}) if drained else flags
    taken = {gpu for _, gpu, _ in held.holders}
    foreign = [gpu for gpu in range(node.gpus) if gpu not in taken][: held.unplaced]
    state = occupied(node.gpus, len(taken) + len(foreign), held.busy) if health == "UP" else NodeState(health)
    return _spot(node, node_badge(state, worn), takes_work(state, worn), foreign)
