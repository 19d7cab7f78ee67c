"""Evict jobs from drained nodes.

Eligible rows     Running attempts on nodes drained in mode `now`, and attempts on nodes drained in mode `checkpoint`
                  that have saved a checkpoint since. Not attempts that are already being stopped or that the cluster
                  does not show, because they may have ended, and not foreign jobs.
What a turn does  Requeues each attempt at its old place in the queue: in mode `now` with a signal and a grace time, in
                  mode `checkpoint` at once. Commands are queued for the cluster.
Failure story     Each eviction is one transaction that reads the node again. Killed anywhere or run twice: the next
                  turn finds the remaining attempts. If a user has resumed the node meanwhile, the job stays.
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
    """Evict the eligible attempts. Return their number."""
    if cluster.mode != ClusterMode.DRIVE:
        return 0
    evicted = 0
    for node in Node.objects.filter(cluster=cluster, drain_requested=True).exclude(drain_mode=DrainMode.FINISH):
        for attempt in _attempts_to_evict(node):
            with skip_row_on_error(attempt):
                evicted += evict(attempt, node)
    return evicted


def _attempts_to_evict(node: Node) -> list[Attempt]:
    here = Q(allocations__node=node, allocations__released_at__isnull=True, ended_at__isnull=True)
    staying = Attempt.objects.filter(here, stop_state="", job__foreign_id="", missing_since__isnull=True)
    if node.drain_mode == DrainMode.CHECKPOINT:
        staying = staying.filter(saved_at__gt=node.reason_at)
    return list(staying.distinct().select_related("job__cluster").order_by("id"))


@transaction.atomic
def evict(attempt: Attempt, node: Node) -> bool:
    """Evict the attempt, unless the node was resumed or drained differently since it was read."""
    same = Node.objects.filter(pk=node.pk, drain_requested=True, drain_mode=node.drain_mode, reason_at=node.reason_at)
    if not same.select_for_update(no_key=True).exists():
        return False
    why = f"{node} is drained by {node.reason_by}: {node.reason.removeprefix(f'{node.reason_by}: ')}"
    stop.evict(attempt.job, node, author=SCHEDULER, why=why, saves=node.drain_mode == DrainMode.NOW)
    return True
