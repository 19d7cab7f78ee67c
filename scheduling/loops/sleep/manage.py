"""Sleeping nodes: nodes that are not needed sleep, and wake up before they are needed.

Eligible rows     Clusters with a sleep mode or with sleeps that have not ended; of these, the open sleeps of nodes
                  and all nodes that accept jobs.
What a turn does  Follows each open sleep by what the cluster reports of its node: asleep, awake, or not awake within
                  three boot times, which is an incident that drains the node. Then compares the nodes that are awake
                  with the nodes that are needed (`power.sleep_plan`) and, by the mode, records, proposes or requests
                  sleeps, and wakes nodes up. Proposals that no longer hold are withdrawn. In mode off, or where Acme
                  does not drive any more, all nodes wake up. After two failed wake-ups within a day, the cluster falls
                  back to proposals. Allocations wake nodes themselves, in their own transaction (`schedule`).
                  `delete_old_sleeps` deletes rows after the retention time.
Failure story     Each change is guarded by the state of its row and writes its command for the cluster in the same
                  transaction. Killed anywhere: the next turn sees the rows and the report and goes on. Run twice, or
                  by two workers: the second change finds another state and does nothing. Late: boots are measured too
                  long by the delay, and nodes stay awake or asleep longer; a job that starts does not wait for this
                  loop. The cluster is silent or its rows are unreadable: nothing is known of the nodes, so nothing is
                  decided, and no boot counts as failed. A user drains a node or a job starts on it between the look
                  and the act: the node is read again under a lock, and stays awake.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db.models import Q

from failures.actions.incidents import resolve_returned_node_incidents
from jobs.actions.one_row import skip_row_on_error
from jobs.actions.retention import delete_all
from jobs.models import Cluster, ClusterMode, Node, SleepMode
from scheduling.actions import node_sleeps as sleep_actions
from scheduling.actions.node_sleeps import NO_WAKE_CAUSE, SLEEPER
from scheduling.loops.sleep.follow import follow_sleeps
from scheduling.models import NodeSleep, NodeSleepState
from scheduling.power.sleep_plan import sleep_plan
from scheduling.queries import node_sleeps
from scheduling.queries.node_sleeps import effective_mode, needed_now

SLEEP_RETENTION = timedelta(days=90)  # boots are measured on the newest, failures count for 30 days
SLEEPS_PER_TURN_SHARE = 0.1  # of all nodes, so that a wrong forecast does not send all of them to sleep at once


def clusters_with_sleep() -> list[int]:
    has_sleeps = Q(pk__in=NodeSleep.objects.open().values("cluster"))
    return list(Cluster.objects.filter(~Q(sleep_mode=SleepMode.OFF) | has_sleeps).values_list("pk", flat=True))


def manage_sleep_once(cluster: Cluster, now: datetime) -> int:
    """Return how many sleeps changed."""
    if cluster.is_silent(now):
        return 0
    changed = sleep_actions.adopt_sleeping_nodes(cluster, now) if cluster.lets_nodes_sleep else 0
    changed += follow_sleeps(cluster, now)
    resolve_returned_node_incidents(cluster.pk, NO_WAKE_CAUSE, now)
    if not cluster.lets_nodes_sleep:
        return changed + _end_all(cluster, now)
    return changed + _decide(cluster, now)


def _decide(cluster: Cluster, now: datetime) -> int:
    nodes = node_sleeps.sleep_candidates(cluster, now)
    needed = needed_now(cluster, nodes, now)
    plan = sleep_plan(nodes, needed, node_sleeps.sleep_rules(cluster), now.timestamp())
    changed = _wake(cluster, plan.wake, needed, now)
    most = max(1, round(SLEEPS_PER_TURN_SHARE * len(nodes)))
    why = f"{needed} of {len(nodes)} nodes are needed, {sum(not node.is_asleep for node in nodes)} are awake."
    mode = effective_mode(cluster, now)
    if mode == SleepMode.ACT:
        _withdraw_undecided(cluster, plan.sleep, now)
        candidates = Node.objects.filter(pk__in=plan.sleep[:most]).select_related("cluster").order_by("pk")
        return changed + sum(_let_sleep(node, why, now) for node in candidates)
    _withdraw_undecided(cluster, plan.sleep, now, keep=_undecided_state(mode))
    known = NodeSleep.objects.open().filter(cluster=cluster).values("node")
    candidates = Node.objects.filter(pk__in=plan.sleep).exclude(pk__in=known)
    return changed + sleep_actions.propose(list(candidates), _undecided_state(mode), why)


def _let_sleep(node: Node, why: str, now: datetime) -> bool:
    with skip_row_on_error(node):
        return sleep_actions.let_sleep(node, author=SLEEPER, why=why, now=now)
    return False


def _undecided_state(mode: str) -> str:
    return NodeSleepState.PROPOSED if mode == SleepMode.PROPOSE else NodeSleepState.OBSERVED


def _wake(cluster: Cluster, ids: Sequence[int], needed: int, now: datetime) -> int:
    rows = NodeSleep.objects.active().filter(cluster=cluster, node__in=ids).select_related("node")
    return sum(_wake_one(row, f"{needed} nodes are needed.", now) for row in rows)


def _wake_one(sleep: NodeSleep, why: str, now: datetime) -> bool:
    with skip_row_on_error(sleep):
        return sleep_actions.wake(sleep, author=SLEEPER, why=why, now=now)
    return False


def _withdraw_undecided(cluster: Cluster, wanted: Sequence[int], now: datetime, keep: str | None = None) -> None:
    """End proposals of nodes that are needed now, and those of another mode."""
    undecided = NodeSleep.objects.open().filter(
        cluster=cluster, state__in=(NodeSleepState.OBSERVED, NodeSleepState.PROPOSED)
    )
    for row in undecided.select_related("node"):
        if row.state != keep or row.node_id not in wanted:
            why = "The node is needed." if row.state == keep else "The mode has changed."
            with skip_row_on_error(row):
                sleep_actions.withdraw(row, why, now)


def _end_all(cluster: Cluster, now: datetime) -> int:
    """Wake all nodes up. Where Acme does not drive any more, commands are not sent, so the rows just end."""
    _withdraw_undecided(cluster, (), now)
    rows = NodeSleep.objects.active().filter(cluster=cluster).select_related("node")
    if cluster.mode != ClusterMode.DRIVE:
        return sum(sleep_actions.record_awake(row, now) for row in rows)
    why = "Nodes of this cluster do not sleep any more."
    return sum(_wake_one(row, why, now) for row in rows)


def delete_old_sleeps(now: datetime) -> int:
    return delete_all(NodeSleep.objects.filter(closed_at__lt=now - SLEEP_RETENTION))
