"""The failure history of nodes, from which the lemon score is computed. Read-only.

Three queries for all clusters, a cluster or a node, independent of the number of nodes. They read the failures of 30
days, at most MAX_HISTORY_ROWS of each kind, newest first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from django.db.models import Q

from failures.detection.node_health import HISTORY_DAYS, NodeHistoryEntry, lemon_score
from failures.incidents.grouping import NODE_CAUSES
from failures.models import Anomaly, Diagnosis
from jobs.models import Cluster, Event, Node

MAX_HISTORY_ROWS = 20_000
XID_PREFIX = "Xid "  # of the text of an anomaly
HistoryEntry = tuple[int, datetime, str]


def history_by_node(cluster: Cluster, now: datetime) -> Mapping[int, list[NodeHistoryEntry]]:
    """The history of each node of the cluster, by node id."""
    return _load_history(Q(cluster=cluster), Q(node__cluster=cluster), Q(cluster=cluster), now)


def lemon_scores(cluster: Cluster, now: datetime) -> dict[int, float]:
    """The lemon score of each node with a history, by node id."""
    history = history_by_node(cluster, now)
    return {node: lemon_score(entries, now.timestamp()) for node, entries in history.items()}


def history_of_node(node: Node, now: datetime, most: int = MAX_HISTORY_ROWS) -> list[NodeHistoryEntry]:
    naming = Diagnosis.nodes.through.objects.filter(node=node).values("diagnosis")
    return list(_load_history(Q(pk__in=naming), Q(node=node), Q(node=node), now, most).get(node.pk, ()))


def _load_history(
    failures: Q, event_filter: Q, anomalies: Q, now: datetime, most: int = MAX_HISTORY_ROWS
) -> Mapping[int, list[NodeHistoryEntry]]:
    since = now - timedelta(days=HISTORY_DAYS)
    history = defaultdict(list)
    for node, at, what in (
        *_failure_history_entries(failures, since, most),
        *event_history_entries(event_filter, since, now, most),
        *_xid_history_entries(anomalies, since, most),
    ):
        history[node].append(NodeHistoryEntry(at=at.timestamp(), what=what))
    return history


def _failure_history_entries(whose: Q, since: datetime, most: int) -> Iterator[HistoryEntry]:
    """Failures whose evidence names the node, either alone or among others."""
    rows = Diagnosis.objects.filter(whose, failed_at__gte=since, root_cause__in=NODE_CAUSES)
    nodes_by_failure = defaultdict(list)
    rows = rows.filter(nodes__isnull=False).order_by("-failed_at", "-pk")
    for pk, node, at in rows.values_list("pk", "nodes", "failed_at")[:most]:
        nodes_by_failure[pk].append((node, at))
    for entries in nodes_by_failure.values():
        what = "job_failed_here_alone" if len(entries) == 1 else "gang_failed_here"
        yield from ((node, at, what) for node, at in entries)


def event_history_entries(
    whose: Q, since: datetime, until: datetime, most: int = MAX_HISTORY_ROWS
) -> Iterator[HistoryEntry]:
    rows = Event.objects.filter(whose, at__gte=since, at__lte=until).order_by()
    # Events of outages have no `ran`; a negated comparison would exclude rows without the key
    test_ran = Q(detail__ran=True) | Q(detail__ran__isnull=True)
    # Two halves, because each has an index of its own: the events of all jobs are never read
    down = rows.filter(type="node.state_changed", to_state__startswith="DOWN").values_list("node", "at", "type")
    failed = rows.filter(test_ran, type="node.tested", detail__passed=False).values_list("node", "at", "type")
    for node, at, what in down.union(failed, all=True).order_by("-at")[:most]:
        yield node, at, "down" if what == "node.state_changed" else "failed_test"


def _xid_history_entries(whose: Q, since: datetime, most: int) -> Iterator[HistoryEntry]:
    rows = Anomaly.objects.of_node_health().filter(whose, since__gte=since, why__startswith=XID_PREFIX)
    for node, at in rows.order_by("-since").values_list("node", "since")[:most]:
        yield node, at, "xid"


def is_xid_text(why: str) -> bool:
    """Whether this is the text of an anomaly that an Xid caused."""
    return why.startswith(XID_PREFIX)
