"""Drain: send away who runs on nodes that an operator wants empty.

Who is eligible   live attempts on nodes drained `now`, and those on nodes drained after the next `checkpoint` that have
                  saved one since; nobody who is being stopped already, nobody from outside Acme.
What a turn does  each is asked to go back to its old place in the queue: from `now` with a signal and a grace, after a
                  checkpoint at once. The cluster is told by deeds.
Failure story     It looks at the whole each time, and each eviction is a transaction that reads the node again: killed
                  anywhere or run twice, the next turn finds who is left. A resume that came meanwhile wins.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import Q

from jobs.actions import stop
from jobs.actions.journal import SCHEDULER
from jobs.actions.one_row import skip_row_on_error
from jobs.models import Attempt, Cluster, ClusterMode, DrainMode, Node


def evict_from_drained_nodes_once(cluster: Cluster, now: datetime) -> int:
    """Ask whoever must leave. Return how many were asked."""
    if cluster.mode != ClusterMode.DRIVE:
        return 0
    asked = 0
    for node in Node.objects.filter(cluster=cluster, drain_asked=True).exclude(drain_mode=DrainMode.FINISH):
        for attempt in _attempts_to_evict(node):
            with skip_row_on_error(attempt):
                asked += evict(attempt, node)
    return asked


def _attempts_to_evict(node: Node) -> list[Attempt]:
    here = Q(allocations__node=node, allocations__released_at__isnull=True, ended_at__isnull=True)
    staying = Attempt.objects.filter(here, stop_as="", job__foreign_id="")
    if node.drain_mode == DrainMode.CHECKPOINT:
        staying = staying.filter(saved_at__gt=node.reason_at)
    return list(staying.distinct().select_related("job__cluster").order_by("id"))


@transaction.atomic
def evict(attempt: Attempt, node: Node) -> bool:
    """Unless the node was resumed, or drained in another way, since the look."""
    same = Node.objects.filter(pk=node.pk, drain_asked=True, drain_mode=node.drain_mode, reason_at=node.reason_at)
    if not same.select_for_update(no_key=True).exists():
        return False
    why = f"{node} is drained by {node.reason_by}: {node.reason.removeprefix(f'{node.reason_by}: ')}"
    stop.evict(attempt.job, node, author=SCHEDULER, why=why, ask=node.drain_mode == DrainMode.NOW)
    return True
