"""Rows → what became of those who ran on a node: the history that a lemon score is made of. Reads; changes nothing.

Three statements for a cluster, whatever the number of its nodes, or for one node; what is read grows with the
failures of thirty days, and where those are too many, the newest count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from django.db.models import Q

from failures.detection.node_health import HISTORY_DAYS, NodeHistoryEntry
from failures.incidents.grouping import NODE_CAUSES
from failures.models import Diagnosis, Sign
from jobs.models import Cluster, Event, Node

MAX_HISTORY_ROWS = 20_000
HistoryEntry = tuple[int, datetime, str]


def history_by_node(cluster: Cluster, now: datetime) -> Mapping[int, list[NodeHistoryEntry]]:
    """By node."""
    return _load_history(Q(cluster=cluster), Q(node__cluster=cluster), Q(cluster=cluster), now)


def history_of_node(node: Node, now: datetime) -> list[NodeHistoryEntry]:
    naming = Diagnosis.nodes.through.objects.filter(node=node).values("diagnosis")
    return list(_load_history(Q(pk__in=naming), Q(node=node), Q(node=node), now).get(node.pk, ()))


def _load_history(failures: Q, told: Q, signs: Q, now: datetime) -> Mapping[int, list[NodeHistoryEntry]]:
    since = now - timedelta(days=HISTORY_DAYS)
    found = defaultdict(list)
    for node, at, what in (
        *_failure_history_entries(failures, since),
        *event_history_entries(told, since, now),
        *_xid_history_entries(signs, since),
    ):
        found[node].append(NodeHistoryEntry(at=at.timestamp(), what=what))
    return found


def _failure_history_entries(whose: Q, since: datetime) -> Iterator[HistoryEntry]:
    """Those whose evidence names it; alone, if it named nobody else."""
    rows = Diagnosis.objects.filter(whose, failed_at__gte=since, root_cause__in=NODE_CAUSES)
    named = defaultdict(list)
    rows = rows.filter(nodes__isnull=False).order_by("-failed_at", "-pk")
    for pk, node, at in rows.values_list("pk", "nodes", "failed_at")[:MAX_HISTORY_ROWS]:
        named[pk].append((node, at))
    for there in named.values():
        what = "job_failed_here_alone" if len(there) == 1 else "gang_failed_here"
        yield from ((node, at, what) for node, at in there)


def event_history_entries(whose: Q, since: datetime, until: datetime) -> Iterator[HistoryEntry]:
    down = Q(what="node.moved", to_state__startswith="DOWN")
    # Of the way down nothing is told of a test; a negated comparison would leave out what is not told
    ran = Q(detail__ran=True) | Q(detail__ran__isnull=True)
    failed = Q(ran, what="node.tested", detail__passed=False)
    rows = Event.objects.filter(down | failed, whose, at__gte=since, at__lte=until)
    for node, at, what in rows.order_by("-at").values_list("node", "at", "what")[:MAX_HISTORY_ROWS]:
        yield node, at, "down" if what == "node.moved" else "failed_test"


def _xid_history_entries(whose: Q, since: datetime) -> Iterator[HistoryEntry]:
    rows = Sign.objects.of_node_health().filter(whose, since__gte=since, why__startswith="Xid ")
    for node, at in rows.order_by("-since").values_list("node", "since")[:MAX_HISTORY_ROWS]:
        yield node, at, "xid"
