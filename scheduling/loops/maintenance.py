"""Drain nodes when their maintenance begins, and resume them when it ends.

Eligible rows     Open maintenance windows of the cluster that have begun, ended or were cancelled, the earliest first.
What a turn does  During a window: drains its nodes in the window's mode, up to two hundred;
                  `evict_from_drained_nodes_once` evicts their jobs. After a window: resumes the nodes that it drained,
                  and closes the window after the last one. Until then the engine starts no jobs on its nodes.
Failure story     Each node is one transaction that reads the row again under the lock of the window. Killed anywhere
                  or run twice: the next turn compares again. Late: no jobs start on the nodes meanwhile, and the nodes
                  are resumed late. A node that a user resumed leaves the window; one that a user drained stays
                  drained.
"""

from __future__ import annotations

from datetime import datetime

from django.db.models import Q

from jobs.actions import maintenance as maintenance_actions
from jobs.actions.one_row import skip_row_on_error
from jobs.models import Cluster, ClusterMode, Maintenance, Node

NODES_PER_TURN = 200  # a drain takes five short statements, and the lease of a turn lasts 30 s


def apply_maintenances_once(cluster: Cluster, now: datetime) -> int:
    """Return the number of nodes drained or resumed."""
    if cluster.mode == ClusterMode.OBSERVE:
        return 0
    moved = 0
    due = Q(start_at__lte=now) | Q(cancelled_at__isnull=False)
    for window in Maintenance.objects.open().filter(due, cluster=cluster):
        window.cluster = cluster
        with skip_row_on_error(f"maintenance {window}"):
            moved += (
                _drain_window_nodes(window, now) if window.is_in_progress(now) else _resume_window_nodes(window, now)
            )
    return moved


def _drain_window_nodes(window: Maintenance, now: datetime) -> int:
    moved = 0
    for node in window.affected_nodes().filter(drain_requested=False)[:NODES_PER_TURN]:
        with skip_row_on_error(node):
            moved += maintenance_actions.close_node_for_maintenance(window, node, now)
    return moved


def _resume_window_nodes(window: Maintenance, now: datetime) -> int:
    moved = 0
    for node in Node.objects.filter(maintenance=window)[:NODES_PER_TURN]:
        with skip_row_on_error(node):
            moved += maintenance_actions.reopen_node_after_maintenance(window, node, now)
    maintenance_actions.finish(window, now)
    return moved
