"""Sleeping nodes: nodes that are not needed sleep, and wake up before they are needed.

Eligible rows     Clusters with a sleep mode or with sleeps that have not ended; of these, the open sleeps of nodes
                  and all nodes that accept jobs.
What a turn does  Follows each open sleep by what the cluster reports of its node: asleep, awake, or not awake within
                  three boot times, which is an incident that drains the node. Then compares the nodes that are awake
                  with the nodes that are needed (`rules.sleep_plan`) and, by the mode, records, proposes or requests
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
from jobs.core.lifecycle import USABLE_NODE_STATES, NodeFlag, NodeState
from jobs.models import Cluster, ClusterCommand, ClusterCommandKind, ClusterMode, Node, SleepMode
from jobs.queries.busy_nodes import nodes_with_jobs
from scheduling.models import NodeSleep, NodeSleepState
from scheduling.power.actions import sleeps as sleep_actions
from scheduling.power.actions.sleeps import NO_WAKE_CAUSE, SLEEPER
from scheduling.power.reads.sleeps import BootTimes, effective_mode, needed_now, sleep_candidates, sleep_rules
from scheduling.power.rules.sleep_plan import sleep_plan

SLEEP_RETENTION = timedelta(days=90)  # boots are measured on the newest, failures count for 30 days
BOOTS_UNTIL_FAILURE = 3  # boot times after which a node counts as not awake
MIN_FAILURE_DELAY = timedelta(minutes=2)
REPEAT_AFTER = timedelta(minutes=2)  # a cluster may drop a wake-up of a node that falls asleep
SLEEPS_PER_TURN_SHARE = 0.1  # of all nodes, so that a wrong forecast does not send all of them to sleep at once


def clusters_with_sleep() -> list[int]:
    has_sleeps = Q(pk__in=NodeSleep.objects.open().values("cluster"))
    return list(Cluster.objects.filter(~Q(sleep_mode=SleepMode.OFF) | has_sleeps).values_list("pk", flat=True))


def manage_sleep_once(cluster: Cluster, now: datetime) -> int:
    """Return how many sleeps changed."""
    if cluster.is_silent(now):
        return 0
    changed = sleep_actions.adopt_sleeping_nodes(cluster, now) if cluster.lets_nodes_sleep else 0
    changed += _follow_sleeps(cluster, now)
    resolve_returned_node_incidents(cluster.pk, NO_WAKE_CAUSE, now)
    if not cluster.lets_nodes_sleep:
        return changed + _end_all(cluster, now)
    return changed + _decide(cluster, now)


def _follow_sleeps(cluster: Cluster, now: datetime) -> int:
    """What has become of open sleeps, by what the cluster reports of their nodes."""
    boots, changed = BootTimes(cluster), 0
    for sleep in NodeSleep.objects.active().filter(cluster=cluster).select_related("node__cluster").order_by("pk"):
        with skip_row_on_error(sleep):
            changed += _follow(sleep, timedelta(seconds=boots.of(sleep.node.gpu_model)), now)
    return changed


def _follow(sleep: NodeSleep, boot: timedelta, now: datetime) -> bool:
    node, patience = sleep.node, max(MIN_FAILURE_DELAY, BOOTS_UNTIL_FAILURE * boot)
    if NodeFlag.UNREADABLE in node.flags:
        return False
    match sleep.state:
        case NodeSleepState.REQUESTED:
            return _follow_requested(sleep, patience, now)
        case NodeSleepState.ASLEEP:
            return _follow_asleep(sleep, now)
    return _follow_waking(sleep, patience, now)


def _follow_requested(sleep: NodeSleep, patience: timedelta, now: datetime) -> bool:
    node = sleep.node
    if refusal := _refusal(sleep):
        return sleep_actions.withdraw(sleep, refusal, now)
    if NodeFlag.POWERED_DOWN in node.flags:
        return sleep_actions.record_asleep(sleep, now)
    if node.is_drained:
        return sleep_actions.wake(sleep, author=SLEEPER, why="It was drained.", now=now)
    if nodes_with_jobs().filter(pk=node.pk).exists():
        return sleep_actions.wake(sleep, author=SLEEPER, why="It has a job.", now=now)
    if sleep.requested_at and now - sleep.requested_at > patience:
        return sleep_actions.wake(sleep, author=SLEEPER, why="It did not fall asleep.", now=now)
    return False


def _refusal(sleep: NodeSleep) -> str:
    """Why the cluster refused to let the node sleep; empty if it did not."""
    last = _newest_command(sleep, ClusterCommandKind.SLEEP)
    if last is None or last.done_at is None or (sleep.requested_at and last.done_at < sleep.requested_at):
        return ""
    return last.outcome if last.outcome.startswith("refused") else ""


def _newest_command(sleep: NodeSleep, kind: str) -> ClusterCommand | None:
    return ClusterCommand.objects.filter(node=sleep.node_id, kind=kind).order_by("-pk").first()


def _follow_asleep(sleep: NodeSleep, now: datetime) -> bool:
    node = sleep.node
    if node.state == NodeState.DOWN:
        return sleep_actions.record_failed_wake(sleep, f"{node} is down instead of asleep.", now)
    if node.state not in USABLE_NODE_STATES:
        return False
    if NodeFlag.POWERING_UP in node.flags:
        return sleep_actions.record_wake_by_cluster(sleep, now)
    if not node.is_asleep:
        return sleep_actions.record_awake(sleep, now)
    return node.is_drained and sleep_actions.wake(sleep, author=SLEEPER, why="It was drained.", now=now)


def _follow_waking(sleep: NodeSleep, patience: timedelta, now: datetime) -> bool:
    node, passed = sleep.node, now - (sleep.wake_requested_at or now)
    accepted_at, seen_at = _accepted_at(sleep), node.cluster.last_contact_at
    if accepted_at and seen_at and seen_at > accepted_at and node.state in USABLE_NODE_STATES and not node.is_asleep:
        return sleep_actions.record_awake(sleep, now)
    if node.state == NodeState.DOWN or passed > patience:
        minutes = max(1, round(passed.total_seconds() / 60))
        reason = f" ({node.reason})" if node.state == NodeState.DOWN and node.reason else ""
        return sleep_actions.record_failed_wake(sleep, f"{node} did not wake up within {minutes} min{reason}.", now)
    if NodeFlag.POWERED_DOWN in node.flags and accepted_at and now - accepted_at > REPEAT_AFTER:
        sleep_actions.repeat_wake(sleep, now)
    return False


def _accepted_at(sleep: NodeSleep) -> datetime | None:
    """When the cluster and the webhook had accepted the wake-up; None before."""
    last = _newest_command(sleep, ClusterCommandKind.WAKE)
    if (last and last.done_at is None) or (sleep.node.cluster.sleep_webhook and sleep.called_at is None):
        return None
    times = (sleep.wake_requested_at, last.done_at if last else None, sleep.called_at)
    return max(at for at in times if at)


def _decide(cluster: Cluster, now: datetime) -> int:
    nodes = sleep_candidates(cluster, now)
    needed = needed_now(cluster, nodes, now)
    plan = sleep_plan(nodes, needed, sleep_rules(cluster), now.timestamp())
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
