"""The only code that changes the sleeps of nodes. Each change writes its Event and is guarded by the expected state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime

from django.db import transaction
from django.db.models import F

from acmeweb.common import live
from acmeweb.common.errors import StateConflict
from failures.actions import incidents as incident_actions
from jobs.actions import journal
from jobs.actions import nodes as node_actions
from jobs.actions.journal import Author
from jobs.actions.wake import request_turn
from jobs.core.lifecycle import NodeFlag
from jobs.models import POWER_COMMANDS, Cluster, ClusterCommand, ClusterCommandKind, DrainMode, Node
from jobs.queries.busy_nodes import nodes_with_jobs
from scheduling.models import ACTIVE_SLEEP_STATES, UNDECIDED_SLEEP_STATES, NodeSleep, NodeSleepState

SLEEPER = Author(by="sleep")
NO_WAKE_CAUSE = "NodeDidNotWake"  # the root cause of incidents
UNDER_WAY = (NodeSleepState.REQUESTED, NodeSleepState.ASLEEP)


@transaction.atomic
def propose(nodes: Sequence[Node], state: str, why: str) -> int:
    """Record that these nodes would sleep, or should after an approval. Nodes with an open sleep are left out."""
    rows = [NodeSleep(cluster_id=node.cluster_id, node=node, state=state, why=why) for node in nodes]
    created = NodeSleep.objects.bulk_create(rows, ignore_conflicts=True)
    if created:
        live.publish_on_commit("nodes")
    return len(created)


@transaction.atomic
def adopt_sleeping_nodes(cluster: Cluster, now: datetime) -> int:
    """Add a row for each node that the cluster itself has put to sleep, so that it wakes up when it is needed. Drained
    nodes are left out: their operators decide, as about one that did not wake up.
    """
    asleep = Node.objects.filter(cluster=cluster, flags__contains=[NodeFlag.POWERED_DOWN.value])
    known = NodeSleep.objects.open().filter(cluster=cluster, state__in=ACTIVE_SLEEP_STATES).values("node")
    rows = [
        NodeSleep(
            cluster=cluster,
            node=node,
            state=NodeSleepState.ASLEEP,
            why="The cluster let it sleep.",
            requested_at=now,
            asleep_at=now,
        )
        for node in asleep.exclude(pk__in=known)
        if not node.is_drained
    ]
    if not rows:
        return 0
    NodeSleep.objects.open().filter(node__in=[row.node for row in rows]).update(
        state=NodeSleepState.WITHDRAWN, closed_at=now
    )
    return len(NodeSleep.objects.bulk_create(rows, ignore_conflicts=True))


@transaction.atomic
def let_sleep(node: Node, *, author: Author, why: str, now: datetime) -> bool:
    """Let the node sleep. False if it has got a job, was drained or sleeps already: user actions take precedence."""
    node.refresh_from_db(from_queryset=Node.objects.select_for_update(of=("self",)).select_related("cluster"))
    is_free = node.is_schedulable and not node.is_asleep and not nodes_with_jobs().filter(pk=node.pk).exists()
    if not is_free or not node.cluster.lets_nodes_sleep:
        return False
    sleep, _ = NodeSleep.objects.open().get_or_create(
        node=node, defaults={"cluster_id": node.cluster_id, "state": NodeSleepState.PROPOSED, "why": why}
    )
    columns = {"requested_at": now, "requested_by": author.by, "call_due_at": now}
    if not _change(sleep, UNDECIDED_SLEEP_STATES, NodeSleepState.REQUESTED, **columns):
        return False
    _queue_power_command(sleep, ClusterCommandKind.SLEEP, why)
    journal.node_event("node.sleep_requested", author, node, why=why).save()
    _publish(sleep)
    return True


@transaction.atomic
def approve(sleep: NodeSleep, *, author: Author, now: datetime) -> None:
    if sleep.state != NodeSleepState.PROPOSED:
        raise StateConflict(f"{sleep.node} is not proposed for sleep any more")
    if not let_sleep(sleep.node, author=author, why=sleep.why, now=now):
        raise StateConflict(f"{sleep.node} is needed, drained or asleep now")


@transaction.atomic
def decline(sleep: NodeSleep, *, author: Author, now: datetime) -> None:
    """Keep the node awake. It is not proposed again for some hours."""
    if not _change(sleep, (NodeSleepState.PROPOSED,), NodeSleepState.DECLINED, closed_at=now):
        raise StateConflict(f"{sleep.node} is not proposed for sleep any more")
    journal.node_event("node.sleep_declined", author, sleep.node).save()
    _publish(sleep)


@transaction.atomic
def withdraw(sleep: NodeSleep, why: str, now: datetime) -> bool:
    """End a sleep that has not begun."""
    states = (*UNDECIDED_SLEEP_STATES, NodeSleepState.REQUESTED)
    withdrawn = _change(sleep, states, NodeSleepState.WITHDRAWN, closed_at=now, last_error=why)
    if withdrawn:
        ClusterCommand.objects.open().filter(node=sleep.node_id, kind=ClusterCommandKind.SLEEP).delete()
        _publish(sleep)
    return withdrawn


@transaction.atomic
def wake(sleep: NodeSleep, *, author: Author, why: str, now: datetime) -> bool:
    """Wake the node up. Its boot counts from now. False if it wakes up already."""
    columns = {"wake_requested_at": now, "wake_why": why, "called_at": None, "call_due_at": now, "last_error": ""}
    if not _change(sleep, UNDER_WAY, NodeSleepState.WAKING, **columns):
        return False
    _queue_power_command(sleep, ClusterCommandKind.WAKE, why)
    journal.node_event("node.wake_requested", author, sleep.node, why=why).save()
    _publish(sleep)
    request_turn(sleep.cluster_id)
    return True


def wake_by_user(sleep: NodeSleep, *, author: Author, now: datetime) -> None:
    if not wake(sleep, author=author, why=f"Requested by {author.by}.", now=now):
        raise StateConflict(f"{sleep.node} does not sleep any more")


def wake_for_jobs(nodes: Iterable[int], *, author: Author, now: datetime) -> int:
    """Wake the nodes that jobs were allocated on. Runs in the transaction of the allocation."""
    rows = NodeSleep.objects.open().filter(node__in=set(nodes), state__in=UNDER_WAY).select_related("node")
    return sum(wake(row, author=author, why="A job starts on it.", now=now) for row in rows)


@transaction.atomic
def repeat_wake(sleep: NodeSleep, now: datetime) -> None:
    """Wake the node again: the cluster reports it as asleep although it accepted the wake-up."""
    _queue_power_command(sleep, ClusterCommandKind.WAKE, sleep.wake_why)
    NodeSleep.objects.filter(pk=sleep.pk, state=NodeSleepState.WAKING).update(
        called_at=None, call_due_at=now, wake_repeats=F("wake_repeats") + 1
    )


def record_asleep(sleep: NodeSleep, now: datetime) -> bool:
    changed = _change(sleep, (NodeSleepState.REQUESTED,), NodeSleepState.ASLEEP, asleep_at=now)
    if changed:
        _publish(sleep)
    return changed


@transaction.atomic
def record_wake_by_cluster(sleep: NodeSleep, now: datetime) -> bool:
    """The cluster or somebody else woke the node up."""
    columns = {"wake_requested_at": now, "wake_why": "The cluster woke it up.", "called_at": now}
    changed = _change(sleep, UNDER_WAY, NodeSleepState.WAKING, **columns)
    if changed:
        _publish(sleep)
    return changed


@transaction.atomic
def record_awake(sleep: NodeSleep, now: datetime) -> bool:
    changed = _change(sleep, (*UNDER_WAY, NodeSleepState.WAKING), NodeSleepState.AWAKE, closed_at=now)
    if changed:
        ClusterCommand.objects.open().filter(node=sleep.node_id, kind__in=POWER_COMMANDS).delete()
        journal.node_event("node.woke_up", SLEEPER, sleep.node, why=sleep.wake_why).save()
        _publish(sleep)
    return changed


@transaction.atomic
def record_failed_wake(sleep: NodeSleep, why: str, now: datetime) -> bool:
    """Drain the node, requeue its jobs and open an incident. An operator returns the node."""
    states = (*UNDER_WAY, NodeSleepState.WAKING)
    if not _change(sleep, states, NodeSleepState.FAILED, closed_at=now, last_error=why):
        return False
    ClusterCommand.objects.open().filter(node=sleep.node_id, kind__in=POWER_COMMANDS).delete()
    journal.node_event("node.wake_failed", SLEEPER, sleep.node, why=why).save()
    incident_actions.open_node_incident(sleep.node, NO_WAKE_CAUSE, why, author=SLEEPER, now=now)
    with suppress(StateConflict):  # an operator has drained it already
        node_actions.drain(sleep.node, author=SLEEPER, why=why, now=now, mode=DrainMode.NOW)
    _publish(sleep)
    return True


def _change(sleep: NodeSleep, states: Sequence[str], state: str, **columns: object) -> bool:
    if not NodeSleep.objects.open().filter(pk=sleep.pk, state__in=states).update(state=state, **columns):
        return False
    sleep.refresh_from_db(fields=["state", *columns])
    return True


def _queue_power_command(sleep: NodeSleep, kind: str, why: str) -> None:
    """Queue the command in place of an open one of the other kind. With a webhook on Slurm, there is none."""
    node = Node.objects.select_related("cluster").get(pk=sleep.node_id)
    open_commands = ClusterCommand.objects.open().filter(node=node, kind__in=POWER_COMMANDS)
    open_commands.exclude(kind=kind).delete()
    if node.cluster.sends_power_commands:
        ClusterCommand.objects.get_or_create(
            node=node, kind=kind, attempt=None, done_at=None, defaults={"cluster_id": node.cluster_id, "reason": why}
        )


def _publish(sleep: NodeSleep) -> None:
    live.publish_on_commit("nodes", f"node:{sleep.node_id}")
