"""Loads the data of the GPU map: nodes, GPU holders and telemetry, for now or for a time in the past.

Both use a few short statements, whatever the size of the history: past attempts are found by an index over their
periods. Data without history is approximated. A node is shown with its present GPUs and rack. Which GPUs a foreign job
held was not recorded, so the job is shown on the first GPUs that no job of Acme held.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import QuerySet

from jobs.core.charts.gpu_map import GpuReadings, MapNode
from jobs.core.lifecycle import (
    NodeFlag,
    NodeState,
    StateBadge,
    is_schedulable,
    node_badge,
    node_state_for_usage,
    parse_node_condition,
)
from jobs.core.telemetry_math import interval_start
from jobs.models import Allocation, Cluster, Event, Node, Resolution, Sample

NODE_EVENTS = ("node.state_changed", "node.drained", "node.resumed")
# When the cluster first reported each node, if Acme observed it. Before that, the node did not exist
NODE_FIRST_SEEN_SQL = """
SELECT n.id, e.at FROM jobs_node n CROSS JOIN LATERAL (SELECT at, from_state FROM jobs_event
  WHERE node_id = n.id AND type = 'node.state_changed' ORDER BY id LIMIT 1) AS e
WHERE n.cluster_id = %s AND e.from_state LIKE 'UNKNOWN%%'
"""
# The newest events of each node before a time. Each half is one lookup in its own index, whatever the history's size
LAST_NODE_EVENTS_SQL = """
SELECT n.id, e.type, e.to_state, e.why, e.by FROM jobs_node n CROSS JOIN LATERAL (
  (SELECT id, at, type, to_state, why, by FROM jobs_event WHERE node_id = n.id AND type = 'node.state_changed'
   AND at < %(at)s ORDER BY at DESC, id DESC LIMIT 1)
  UNION ALL
  (SELECT id, at, type, to_state, why, by FROM jobs_event
   WHERE node_id = n.id AND type IN ('node.drained', 'node.resumed') AND at < %(at)s ORDER BY at DESC, id DESC LIMIT 1)
) AS e WHERE n.cluster_id = %(cluster)s ORDER BY e.at, e.id
"""
MAX_MAP_HISTORY = timedelta(days=30)  # range of the map; 5-minute telemetry is kept one day longer
MAX_READING_AGE = timedelta(minutes=1)  # older readings are not current; four samples arrive in this time
GpuHolder = tuple[int, int, int, int]  # node, GPU, job, thousandths of the GPU


@dataclass(frozen=True, kw_only=True)
class MapSnapshot:
    """The nodes and GPU holders of a map."""

    spots: Sequence[MapNode]
    holders: Sequence[GpuHolder]


def map_history_start(cluster: Cluster, at: datetime) -> datetime:
    """Return the earliest time of the map. There are no rows from before the cluster was added."""
    return max(cluster.created_at, at - MAX_MAP_HISTORY)


# --- now


def current_map(cluster: Cluster) -> MapSnapshot:
    live = Allocation.objects.live().filter(node__cluster=cluster, gpu__isnull=False).order_by()
    holders = live.values_list("node_id", "gpu", "attempt__job_id", "share")
    return MapSnapshot(spots=current_map_nodes(cluster), holders=list(holders))


def current_map_nodes(cluster: Cluster) -> list[MapNode]:
    return [_map_node(node, node.badge, node.is_schedulable, node.foreign_gpus) for node in _gpu_nodes(cluster)]


def _gpu_nodes(cluster: Cluster) -> QuerySet[Node]:
    columns = ("name", "rack", "leaf", "gpus", "state", "flags", "drain_requested", "foreign_gpus", "mig_slices")
    return Node.objects.filter(cluster=cluster, gpus__gt=0).only(*columns)


def _map_node(node: Node, badge: StateBadge, is_schedulable: bool, foreign: Sequence[int]) -> MapNode:
    return MapNode(
        id=node.pk,
        name=node.name,
        rack=node.rack,
        leaf=node.leaf,
        gpus=node.gpus,
        word=badge.label,
        tone=badge.tone,
        is_schedulable=is_schedulable,
        foreign=foreign,
        slices=node.slice_profiles,
    )


def readings(cluster: Cluster, at: datetime) -> dict[int, GpuReadings]:
    """Return the newest reading of each node in the last minute."""
    rows = Sample.objects.filter(
        resolution=Resolution.RAW, at__gt=at - MAX_READING_AGE, at__lte=at, node__cluster=cluster
    )
    # DISTINCT ON keeps the first row of each node, which is the newest
    return _readings_by_node(rows.order_by("node_id", "-at").distinct("node_id"))


def _readings_by_node(rows: QuerySet[Sample]) -> dict[int, GpuReadings]:
    values = rows.values_list("node_id", "gpu_util", "gpu_temperature_c", "xid")
    return {node: GpuReadings(busy=busy, hot=hot, xid=xid) for node, busy, hot, xid in values}


# --- then


def readings_at(cluster: Cluster, at: datetime) -> dict[int, GpuReadings]:
    """Return 5-minute means or, where they are not aggregated yet, the newest reading of the minute before."""
    five = Resolution.FIVE_MINUTES
    samples = Sample.objects.filter(resolution=five, at=interval_start(at, five), node__cluster=cluster)
    return _readings_by_node(samples) or readings(cluster, at)


def gpus_with_xid(cluster: Cluster, at: datetime) -> dict[int, list[int]]:
    """Return the GPUs with an Xid code at that time, by node. The driver shows a code until it is reloaded."""
    rows = readings_at(cluster, at).items()
    coded = {node: [gpu for gpu, code in enumerate(gpus.xid) if code] for node, gpus in rows}
    return {node: gpus for node, gpus in coded.items() if gpus}


def past_map(cluster: Cluster, at: datetime) -> MapSnapshot:
    usage = _past_usage_by_node(cluster, at)
    nodes = list(_gpu_nodes(cluster))
    conditions, drained = _past_conditions(cluster, nodes, at)
    return MapSnapshot(
        spots=[
            _past_map_node(node, conditions[node.pk], node.pk in drained, usage.get(node.pk, _NodeUsage()))
            for node in nodes
        ],
        holders=[holder for node_usage in usage.values() for holder in node_usage.holders],
    )


@dataclass(kw_only=True)
class _NodeUsage:
    """What was held on a node."""

    holders: list[GpuHolder] = field(default_factory=list)
    unplaced_gpus: int = 0  # GPUs of foreign jobs, of which only the count is known
    busy: bool = False  # a job ran there, possibly only with CPUs


def _past_usage_by_node(cluster: Cluster, at: datetime) -> Mapping[int, _NodeUsage]:
    rows = Allocation.objects.at(at).filter(node__cluster=cluster).order_by()
    usage: dict[int, _NodeUsage] = defaultdict(_NodeUsage)
    job = "attempt__job"
    columns = "node_id", "gpu", "share", f"{job}_id", f"{job}__foreign_id", f"{job}__gpus_per_node"
    for node, gpu, share, pk, foreign, wide in rows.values_list(*columns):
        usage[node].busy = True
        if gpu is not None:
            usage[node].holders.append((node, gpu, pk, share))
        elif foreign:
            usage[node].unplaced_gpus += wide
    return usage


def node_first_seen(cluster: Cluster) -> Mapping[int, datetime]:
    """Return the time since which each node exists. Nodes that are missing here exist since the cluster was added."""
    with connection.cursor() as cursor:
        cursor.execute(NODE_FIRST_SEEN_SQL, [cluster.pk])
        return dict(cursor.fetchall())


NodeEventRow = tuple[int, str, str, str, str]  # node, type, new state, why, author


def last_node_events(cluster: Cluster, at: datetime) -> list[NodeEventRow]:
    """Return the last change and the last requested drain or resume of each node before this time, oldest first."""
    with connection.cursor() as cursor:
        cursor.execute(LAST_NODE_EVENTS_SQL, {"at": at, "cluster": cluster.pk})
        return cursor.fetchall()


def _past_conditions(cluster: Cluster, nodes: Iterable[Node], at: datetime) -> tuple[Mapping[int, str], set[int]]:
    """Return the condition of each node, and the drained nodes.

    Before its first event, a node had the state that this event changed.
    """
    conditions, drained = {}, set()
    for node, what, state, _, _ in last_node_events(cluster, at):
        if what == "node.state_changed":
            conditions[node] = state
        elif what == "node.drained":
            drained.add(node)
    unchanged = [node for node in nodes if node.pk not in conditions]
    # Nodes without an event before this time: the state before their first later event was the state at this time
    moves = (
        Event.objects.filter(node__in=unchanged, type="node.state_changed", at__gte=at)
        .order_by("node_id", "id")
        .distinct("node_id")
    )
    first = dict(moves.values_list("node_id", "from_state")) if unchanged else {}
    return conditions | {node.pk: first.get(node.pk) or node.condition for node in unchanged}, drained


def _past_map_node(node: Node, condition: str, drained: bool, usage: _NodeUsage) -> MapNode:
    health, flags = parse_node_condition(condition)
    shown_flags = sorted({*flags, NodeFlag.DRAIN}) if drained else flags
    held_gpus = {gpu for _, gpu, _, _ in usage.holders}
    foreign = [gpu for gpu in range(node.gpus) if gpu not in held_gpus][: usage.unplaced_gpus]
    state = (
        node_state_for_usage(node.gpus, len(held_gpus) + len(foreign), usage.busy)
        if health == "UP"
        else NodeState(health)
    )
    return _map_node(node, node_badge(state, shown_flags), is_schedulable(state, shown_flags), foreign)
