"""What has become of open sleeps, by what the cluster reports of their nodes. Part of the turn of `manage`."""

from __future__ import annotations

from datetime import datetime, timedelta

from jobs.actions.one_row import skip_row_on_error
from jobs.core.lifecycle import USABLE_NODE_STATES, NodeFlag, NodeState
from jobs.models import Cluster, ClusterCommand, ClusterCommandKind
from jobs.queries.busy_nodes import nodes_with_jobs
from scheduling.actions import node_sleeps as sleep_actions
from scheduling.actions.node_sleeps import SLEEPER
from scheduling.models import NodeSleep, NodeSleepState
from scheduling.queries.node_sleeps import BootTimes

BOOTS_UNTIL_FAILURE = 3  # boot times after which a node counts as not awake
MIN_FAILURE_DELAY = timedelta(minutes=2)
REPEAT_AFTER = timedelta(minutes=2)  # a cluster may drop a wake-up of a node that falls asleep


def follow_sleeps(cluster: Cluster, now: datetime) -> int:
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
