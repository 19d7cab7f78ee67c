"""Rows → what became of those who ran on a node: the history that a lemon score is made of. Reads; changes nothing.

Four statements for a cluster, whatever the number of its nodes; what is read grows with the failures of thirty days.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from django.db.models import Q

from failures.detect.nodes import FORGOTTEN_DAYS, Past
from failures.grouping import NODE_CAUSES
from failures.models import Diagnosis, Sign
from jobs.models import Cluster, Event, Node

MOST = 20_000
Entry = tuple[int, datetime, str]


def past_of(cluster: Cluster, now: datetime) -> Mapping[int, list[Past]]:
    """By node."""
    since = now - timedelta(days=FORGOTTEN_DAYS)
    found = defaultdict(list)
    for node, at, what in (*_failures(cluster, since), *_events(cluster, since), *_signs(cluster, since)):
        found[node].append(Past(at=at.timestamp(), what=what))
    return found


def past_of_node(node: Node, now: datetime) -> list[Past]:
    return list(past_of(node.cluster, now).get(node.pk, ()))


def _failures(cluster: Cluster, since: datetime) -> Iterator[Entry]:
    """Those whose evidence names it; alone, if it named nobody else."""
    rows = Diagnosis.objects.filter(cluster=cluster, failed_at__gte=since, root_cause__in=NODE_CAUSES)
    named = defaultdict(list)
    for pk, node, at in rows.filter(nodes__isnull=False).values_list("pk", "nodes", "failed_at")[:MOST]:
        named[pk].append((node, at))
    for there in named.values():
        what = "job_failed_here_alone" if len(there) == 1 else "gang_failed_here"
        yield from ((node, at, what) for node, at in there)


def _events(cluster: Cluster, since: datetime) -> Iterator[Entry]:
    down = Q(what="node.moved", to_state__startswith="DOWN")
    failed = Q(what="node.tested", detail__passed=False)
    rows = Event.objects.filter(down | failed, node__cluster=cluster, at__gte=since).exclude(detail__ran=False)
    for node, at, what in rows.values_list("node", "at", "what")[:MOST]:
        yield node, at, "down" if what == "node.moved" else "failed_test"


def _signs(cluster: Cluster, since: datetime) -> Iterator[Entry]:
    rows = Sign.objects.of_nodes().filter(cluster=cluster, since__gte=since, why__startswith="Xid ")
    for node, at in rows.values_list("node", "since")[:MOST]:
        yield node, at, "xid"
