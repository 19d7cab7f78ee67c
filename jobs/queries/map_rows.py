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

from jobs.core.gpu_map import GpuReadings, MapNode
from jobs.core.lifecycle import (
    NodeFlag,
    NodeState,
    StateBadge,
    node_badge,
    node_state_for_usage,
    parse_node_condition,
    takes_work,
)
from jobs.core.telemetry_math import interval_start
from jobs.models import Allocation, Cluster, Event, Node, Resolution, Sample

NODE_EVENTS = ("node.moved", "node.drained", "node.resumed")
# When the cluster first told of each node, where that was seen: before it, the node was not there
NODE_FIRST_SEEN_SQL = """
SELECT n.id, e.at FROM jobs_node n CROSS JOIN LATERAL (SELECT at, from_state FROM jobs_event
  WHERE node_id = n.id AND what = 'node.moved' ORDER BY id LIMIT 1) AS e
WHERE n.cluster_id = %s AND e.from_state LIKE 'UNKNOWN%%'
"""
# The newest of each node before a moment: each half is one step into an index of its own, however much happened since
LAST_NODE_EVENTS_SQL = """
SELECT n.id, e.what, e.to_state, e.why, e.by FROM jobs_node n CROSS JOIN LATERAL (
  (SELECT what, to_state, why, by FROM jobs_event WHERE node_id = n.id AND what = 'node.moved'
   AND at < %(at)s ORDER BY at DESC, id DESC LIMIT 1)
  UNION ALL
  (SELECT what, to_state, why, by FROM jobs_event WHERE node_id = n.id AND what IN ('node.drained', 'node.resumed')
   AND at < %(at)s ORDER BY at DESC, id DESC LIMIT 1)
) AS e WHERE n.cluster_id = %(cluster)s
"""
MAX_MAP_HISTORY = timedelta(days=30)  # how far back the map goes; telemetry of five minutes is kept a day longer
MAX_READING_AGE = timedelta(minutes=1)  # older readings say nothing of now; four samples come in that time
GpuHolder = tuple[int, int, int]  # node, GPU, job


@dataclass(frozen=True, kw_only=True)
class MapSnapshot:
    spots: Sequence[MapNode]
    holders: Sequence[GpuHolder]


def map_history_start(cluster: Cluster, at: datetime) -> datetime:
    """Of what was before the cluster was entered there is no row, and to draw it as closed would be a guess."""
    return max(cluster.created_at, at - MAX_MAP_HISTORY)


# --- now


def current_map(cluster: Cluster) -> MapSnapshot:
    live = Allocation.objects.live().filter(node__cluster=cluster, gpu__isnull=False).order_by()
    return MapSnapshot(
        spots=current_map_nodes(cluster), holders=list(live.values_list("node_id", "gpu", "attempt__job_id"))
    )


def current_map_nodes(cluster: Cluster) -> list[MapNode]:
    return [_map_node(node, node.badge, node.takes_work, node.foreign_gpus) for node in _gpu_nodes(cluster)]


def _gpu_nodes(cluster: Cluster) -> QuerySet[Node]:
    columns = ("name", "rack", "leaf", "gpus", "state", "flags", "drain_asked", "foreign_gpus")
    return Node.objects.filter(cluster=cluster, gpus__gt=0).only(*columns)


def _map_node(node: Node, badge: StateBadge, takes_work: bool, foreign: Sequence[int]) -> MapNode:
    return MapNode(
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


def readings(cluster: Cluster, at: datetime) -> dict[int, GpuReadings]:
    """The newest of the minute before."""
    rows = Sample.objects.filter(
        resolution=Resolution.RAW, at__gt=at - MAX_READING_AGE, at__lte=at, node__cluster=cluster
    )
    return _readings_by_node(rows.order_by("node_id", "-at").distinct("node_id"))


def _readings_by_node(rows: QuerySet[Sample]) -> dict[int, GpuReadings]:
    found = rows.values_list("node_id", "gpu_util", "gpu_temperature_c", "xid")
    return {node: GpuReadings(busy=busy, hot=hot, xid=xid) for node, busy, hot, xid in found}


# --- then


def readings_at(cluster: Cluster, at: datetime) -> dict[int, GpuReadings]:
    """Means of five minutes; where those are not folded yet, the newest of the minute before."""
    five = Resolution.FIVE_MINUTES
    return _readings_by_node(
        Sample.objects.filter(resolution=five, at=interval_start(at, five), node__cluster=cluster)
    ) or readings(cluster, at)


def gpus_with_xid(cluster: Cluster, at: datetime) -> dict[int, list[int]]:
    """By node: the GPUs of which the driver shows a code at that moment. It does so until it is loaded again."""
    found = {node: [gpu for gpu, code in enumerate(one.xid) if code] for node, one in readings_at(cluster, at).items()}
    return {node: gpus for node, gpus in found.items() if gpus}


def past_map(cluster: Cluster, at: datetime) -> MapSnapshot:
    held = _past_usage_by_node(cluster, at)
    nodes = list(_gpu_nodes(cluster))
    conditions, drained = _past_conditions(cluster, nodes, at)
    return MapSnapshot(
        spots=[
            _past_map_node(node, conditions[node.pk], node.pk in drained, held.get(node.pk, _NodeUsage()))
            for node in nodes
        ],
        holders=[holder for one in held.values() for holder in one.holders],
    )


@dataclass(kw_only=True)
class _NodeUsage:
    """What was held of a node."""

    holders: list[GpuHolder] = field(default_factory=list)
    unplaced_gpus: int = 0  # GPUs of foreign jobs, of which only the number is known
    busy: bool = False  # somebody was there, if only with CPUs


def _past_usage_by_node(cluster: Cluster, at: datetime) -> Mapping[int, _NodeUsage]:
    rows = Allocation.objects.at(at).filter(node__cluster=cluster).order_by()
    found: dict[int, _NodeUsage] = defaultdict(_NodeUsage)
    job = "attempt__job"
    for node, gpu, pk, foreign, wide in rows.values_list(
        "node_id", "gpu", f"{job}_id", f"{job}__foreign_id", f"{job}__gpus_per_node"
    ):
        found[node].busy = True
        if gpu is not None:
            found[node].holders.append((node, gpu, pk))
        elif foreign:
            found[node].unplaced_gpus += wide
    return found


def node_first_seen(cluster: Cluster) -> Mapping[int, datetime]:
    """By node, the moment since which it has been there; of who is not in it, since its cluster was added."""
    with connection.cursor() as cursor:
        cursor.execute(NODE_FIRST_SEEN_SQL, [cluster.pk])
        return dict(cursor.fetchall())


NodeEventRow = tuple[int, str, str, str, str]  # node, what, to which state, why, by whom


def last_node_events(cluster: Cluster, at: datetime) -> list[NodeEventRow]:
    """What was the last that moved each node, and the last that was asked of it."""
    with connection.cursor() as cursor:
        cursor.execute(LAST_NODE_EVENTS_SQL, {"at": at, "cluster": cluster.pk})
        return cursor.fetchall()


def _past_conditions(cluster: Cluster, nodes: Iterable[Node], at: datetime) -> tuple[Mapping[int, str], set[int]]:
    """The condition of each node, and who was drained. Before its first Event a node was what that moved it from."""
    conditions, drained = {}, set()
    for node, what, state, _, _ in last_node_events(cluster, at):
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


def _past_map_node(node: Node, words: str, drained: bool, held: _NodeUsage) -> MapNode:
    health, flags = parse_node_condition(words)
    worn = sorted({*flags, NodeFlag.DRAIN}) if drained else flags
    taken = {gpu for _, gpu, _ in held.holders}
    foreign = [gpu for gpu in range(node.gpus) if gpu not in taken][: held.unplaced_gpus]
    state = (
        node_state_for_usage(node.gpus, len(taken) + len(foreign), held.busy) if health == "UP" else NodeState(health)
    )
    return _map_node(node, node_badge(state, worn), takes_work(state, worn), foreign)
