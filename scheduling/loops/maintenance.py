"""Maintain: close nodes when their maintenance begins, and open them when it is over.

Who is eligible   maintenances of the cluster that are not closed: those that have begun, and those whose end has come
                  or that were cancelled, the earliest first.
What a turn does  nodes of one that goes on and that nobody has drained are drained in its mode, up to two hundred; who
                  runs there is `drain_once`'s. Nodes of one that is over are resumed, but only those that it closed
                  itself. When none is left it is closed. Until then the engine keeps everybody off by the row alone.
Failure story     Each node is a transaction that looks again under the lock of its maintenance: killed anywhere or run
                  twice, the next turn compares anew. Late: nothing starts on the nodes meanwhile, and they open late.
                  A node that somebody resumed is in it no more; one that somebody drained stays as he left it.
"""

from __future__ import annotations

from datetime import datetime

from django.db.models import Q

from jobs.actions import maintenance as actions
from jobs.actions.one_row import skip_row_on_error
from jobs.models import Cluster, ClusterMode, Maintenance, Node

NODES_PER_TURN = 200  # a drain is five short statements, and the lease of a turn is half a minute


def apply_maintenances_once(cluster: Cluster, now: datetime) -> int:
    """Return how many nodes were closed or opened."""
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
    for node in window.affected_nodes().filter(drain_asked=False)[:NODES_PER_TURN]:
        with skip_row_on_error(node):
            moved += actions.close_node_for_maintenance(window, node, now)
    return moved


def _resume_window_nodes(window: Maintenance, now: datetime) -> int:
    moved = 0
    for node in Node.objects.filter(maintenance=window)[:NODES_PER_TURN]:
        with skip_row_on_error(node):
            moved += actions.reopen_node_after_maintenance(window, node, now)
    actions.finish(window, now)
    return moved
