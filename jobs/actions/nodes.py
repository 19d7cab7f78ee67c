"""The only code that changes a node: requests of operators, results of tests, and reports of the cluster.

A node that failed a test returns in these steps: test, repair, burn-in, return. In burn-in the node runs only its test,
repeatedly, for the time in the cluster's settings; then it accepts jobs again without further approval. One failed
test, or a sign of bad health, returns it to repair.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from acmeweb.common import live
from acmeweb.common.errors import StateConflict
from jobs.actions import journal, stop
from jobs.actions.journal import Author
from jobs.core.slurm_notation import format_count
from jobs.models import (
    NODE_COMMANDS,
    Allocation,
    ClusterCommand,
    ClusterCommandKind,
    ClusterMode,
    DrainMode,
    Event,
    Maintenance,
    Node,
    RepairStage,
)

NODE_TEST_INTERVAL = timedelta(minutes=1)


@transaction.atomic
def drain(
    node: Node,
    *,
    author: Author,
    why: str,
    now: datetime,
    mode: str = DrainMode.FINISH,
    maintenance: Maintenance | None = None,
) -> None:
    """Stop starting jobs on the node. `mode` decides what happens to running jobs, a loop carries it out.

    The drain takes effect for Acme's scheduler at once; a command informs the cluster. A drained node may be drained
    again in another mode. A node that a maintenance has closed may be drained by an operator, who then decides when it
    opens.
    """
    if not why.strip():
        raise StateConflict("a reason is required; it is shown in the node list")
    _lock_node(node)
    if mode != DrainMode.FINISH and node.cluster.mode != ClusterMode.DRIVE:
        raise StateConflict(f"{node.cluster} is not driven by Acme, so its jobs can only finish")
    if node.drain_requested and node.drain_mode == mode and (maintenance or not node.maintenance_id):
        raise StateConflict(f"{node} is already drained by {node.reason_by}: {node.reason}")
    request_fields = {"reason": why, "reason_by": author.by, "reason_at": now}
    Node.objects.filter(pk=node.pk).update(
        drain_requested=True, drain_mode=mode, maintenance=maintenance, **request_fields
    )
    # Evictions of the previous mode are revoked; the loop of drains plans those of the new mode
    stop.cancel_evictions(node, author=author, why=f"The drain mode of {node} was changed.", now=now)
    _queue_node_command(node, ClusterCommandKind.DRAIN, why)
    journal.node_event("node.drained", author, node, why=why, detail={"mode": mode}).save()
    _publish_node_change(node)


@transaction.atomic
def resume(node: Node, *, author: Author, why: str = "", now: datetime) -> None:
    """Accept jobs again. Jobs that were to be evicted and have not been stopped yet keep running.

    A node that is resumed during its maintenance is removed from the maintenance.
    """
    _lock_node(node)
    if not node.is_drained and node.is_schedulable:
        raise StateConflict(f"{node} already accepts jobs")
    left_maintenance = node.maintenance if node.maintenance and node.maintenance.is_in_progress(now) else None
    if left_maintenance:
        # Otherwise the maintenance loop would close the node again in its next turn
        left_maintenance.excluded_nodes.add(node)
    cleared = {
        "reason": "",
        "reason_by": "",
        "reason_at": None,
        "repair_stage": RepairStage.NONE,
        "burn_in_until": None,
    }
    Node.objects.filter(pk=node.pk).update(
        drain_requested=False, drain_mode=DrainMode.FINISH, maintenance=None, **cleared
    )
    stop.cancel_evictions(node, author=author, why=f"{node} accepts jobs again.", now=now)
    _queue_node_command(node, ClusterCommandKind.RESUME, why)
    journal.node_event(
        "node.resumed", author, node, why=why, detail={"left": left_maintenance.name} if left_maintenance else {}
    ).save()
    _publish_node_change(node)


@dataclass(frozen=True, kw_only=True)
class NodeTestResult:
    """The result of a node test."""

    passed: bool
    ran: bool = True  # False: the test did not start, so it has no result for the node
    why: str = ""
    exit_code: int | None = None
    log_path: str = ""

    @property
    def sentence(self) -> str:
        return "It passed its test." if self.passed else f"It failed its test: {self.why}."


@transaction.atomic
def start_node_test(node: Node, *, author: Author, why: str = "") -> ClusterCommand:
    """Queue the test command of the cluster. The node must be drained and empty, so that nothing else starts there."""
    _lock_node(node)
    _check_testable(node)
    command, is_new = _queue_test_command(node, why)
    if not is_new:
        raise StateConflict(f"{node} is already being tested")
    journal.node_event("node.test_requested", author, node, why=why, detail={"test": command.pk}).save()
    _publish_node_change(node)
    command.refresh_from_db()
    return command


def _check_testable(node: Node) -> None:
    if node.cluster.mode != ClusterMode.DRIVE:
        raise StateConflict(f"{node.cluster} is not driven by Acme, which runs node tests as jobs")
    if not node.drain_requested:
        raise StateConflict(f"{node} is not drained; drain it before you test it")
    if (
        running_jobs := Allocation.objects.filter(node=node, released_at__isnull=True)
        .values("attempt")
        .distinct()
        .count()
    ):
        raise StateConflict(
            f"{format_count(running_jobs, 'job')} still {'runs' if running_jobs == 1 else 'run'} on {node}"
        )


def _queue_test_command(node: Node, why: str) -> tuple[ClusterCommand, bool]:
    return ClusterCommand.objects.get_or_create(
        node=node,
        kind=ClusterCommandKind.TEST,
        attempt=None,
        done_at=None,
        defaults={"cluster_id": node.cluster_id, "reason": why or "Node test."},
    )


def record_node_test(node: Node, command: ClusterCommand, outcome: NodeTestResult, *, author: Author) -> None:
    """Record a test result, in the transaction that closes the command."""
    event_detail = {
        "test": command.pk,
        "passed": outcome.passed,
        "ran": outcome.ran,
        "exit_code": outcome.exit_code,
        "log": outcome.log_path,
    }
    journal.node_event("node.tested", author, node, why=outcome.sentence, detail=event_detail).save()
    if outcome.ran and not outcome.passed:
        mark_for_repair(node, author=author, why=outcome.sentence)
    _publish_node_change(node)


# --- repair and burn-in


@transaction.atomic
def mark_for_repair(node: Node, *, author: Author, why: str) -> None:
    """Keep the node closed until it has been repaired. Has no effect on an open node."""
    row = Node.objects.select_for_update().get(pk=node.pk)
    if not row.drain_requested or row.repair_stage == RepairStage.REPAIR:
        return
    if row.repair_stage == RepairStage.BURN_IN:
        journal.node_event("node.burn_in_failed", author, node, why=why).save()
    Node.objects.filter(pk=node.pk).update(repair_stage=RepairStage.REPAIR, burn_in_until=None)
    journal.node_event("node.repair_requested", author, node, why=why).save()
    _publish_node_change(node)


@transaction.atomic
def start_burn_in(node: Node, *, author: Author, why: str = "", now: datetime) -> None:
    """Start the burn-in of a repaired node. It starts with a test and ends with the return of the node."""
    _lock_node(node)
    _check_testable(node)
    if node.repair_stage == RepairStage.BURN_IN:
        raise StateConflict(f"{node} is already in burn-in")
    until = now + timedelta(minutes=node.cluster.burn_in_minutes)
    Node.objects.filter(pk=node.pk).update(repair_stage=RepairStage.BURN_IN, burn_in_until=until)
    command, _ = _queue_test_command(node, "Burn-in test.")
    detail = {"until": until.isoformat(), "test": command.pk}
    journal.node_event("node.burn_in_started", author, node, why=why, detail=detail).save()
    _publish_node_change(node)


@transaction.atomic
def continue_burn_in(node: Node, *, author: Author, now: datetime) -> bool:
    """Carry out the next step of a burn-in if one is due: another test, or the return of the node."""
    _lock_node(node)
    if node.repair_stage != RepairStage.BURN_IN or not node.drain_requested:
        return False
    tests = ClusterCommand.objects.filter(node=node, kind=ClusterCommandKind.TEST)
    last = tests.order_by("-pk").first()
    # The burn-in ends only with a passed test, not just because its time is over
    is_finished = now >= node.burn_in_until and last is not None and _burn_in_test_passed(node, last)
    if last is not None and (last.done_at is None or (last.done_at > now - NODE_TEST_INTERVAL and not is_finished)):
        return False
    if is_finished:
        why = f"It passed its burn-in of {node.cluster.burn_in_minutes} minutes."
        journal.node_event("node.burn_in_passed", author, node, why=why).save()
        resume(node, author=author, why=why, now=now)
        return True
    _check_testable(node)
    _queue_test_command(node, "Burn-in test.")
    return True


def _burn_in_test_passed(node: Node, command: ClusterCommand) -> bool:
    return Event.objects.filter(node=node, type="node.tested", detail__test=command.pk, detail__passed=True).exists()


def _lock_node(node: Node) -> None:
    """Lock the node and read it again. Raises StateConflict for a cluster in mode observe."""
    node.refresh_from_db(from_queryset=Node.objects.select_for_update(of=("self",)).select_related("cluster"))
    if node.cluster.mode == ClusterMode.OBSERVE:
        raise StateConflict(f"{node.cluster} is in mode observe; drain and resume its nodes on the cluster")


def _queue_node_command(node: Node, kind: str, why: str) -> None:
    """Queue a drain or resume command. It replaces an open command of the other kind, which would undo it."""
    # Drain and resume replace each other: only the most recent request may reach the cluster
    ClusterCommand.objects.open().filter(node=node, kind__in=NODE_COMMANDS).exclude(kind=kind).delete()
    ClusterCommand.objects.get_or_create(
        node=node, kind=kind, done_at=None, defaults={"cluster_id": node.cluster_id, "reason": why}
    )


def _publish_node_change(node: Node) -> None:
    node.refresh_from_db()
    live.publish_on_commit("nodes", f"node:{node.pk}")


def record_observation(node: Node, *, author: Author, now: datetime, **reported: object) -> None:
    """Store what the cluster reports about the node. Writes an Event if its condition changed, and nothing if nothing
    changed."""
    changed = {name: value for name, value in reported.items() if getattr(node, name) != value}
    if changed:
        _apply_observation(node, changed, author=author, now=now)


@transaction.atomic
def _apply_observation(node: Node, changed: dict[str, object], *, author: Author, now: datetime) -> None:
    before, old_label = node.condition, node.badge.label
    # `since` is the time of the last change of state, not of the last change of any column
    if {"state", "flags"} & changed.keys():
        changed["since"] = now
    for name, value in changed.items():
        setattr(node, name, value)
    node.save(update_fields=list(changed))
    # Load changes (idle, mixed, allocated) write no Event, because they happen with every job
    if node.condition != before:
        event_fields = {"from_state": before, "to_state": node.condition, "why": node.reason}
        journal.node_event("node.state_changed", author, node, **event_fields).save()
    if node.badge.label != old_label:
        live.publish_on_commit("nodes", f"node:{node.pk}")
