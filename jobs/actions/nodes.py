"""The only code that changes a node: what operators ask for, what tests find, and what a cluster reports.

The way back of a node that failed a test: test → repair → burn-in → return. In burn-in nothing runs there but its test,
again and again, for a time that its cluster's settings say; then it takes work by itself. One test that fails, or a bad
sign of its health, sends it back to repair.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from acmeweb.common import live
from jobs.actions import journal, stop
from jobs.actions.journal import Author
from jobs.core.slurm_notation import format_count
from jobs.models import (
    NODE_COMMANDS,
    Allocation,
    ClusterCommandKind,
    ClusterMode,
    Deed,
    DrainMode,
    Event,
    Maintenance,
    Node,
    RepairStage,
)

NODE_TEST_INTERVAL = timedelta(minutes=1)


class NodeError(Exception):
    """The verb does not fit the node; the message is a sentence."""


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
    """No new jobs; what becomes of the running ones says the mode, and `drain_once` does it. Counts for our scheduler
    at once; the cluster is told by a deed. A node that is drained already may be drained in another mode; one that a
    maintenance closed may be drained by somebody, who then says when it opens."""
    if not why.strip():
        raise NodeError("a reason is needed: operators read it in the list of nodes")
    _lock_node(node)
    if mode != DrainMode.FINISH and node.cluster.mode != ClusterMode.DRIVE:
        raise NodeError(f"{node.cluster} is not driven by Acme, so its jobs can only finish")
    if node.drain_asked and node.drain_mode == mode and (maintenance or not node.maintenance_id):
        raise NodeError(f"{node} is drained already, by {node.reason_by}: {node.reason}")
    asked = {"reason": why, "reason_by": author.by, "reason_at": now}
    Node.objects.filter(pk=node.pk).update(drain_asked=True, drain_mode=mode, maintenance=maintenance, **asked)
    stop.cancel_evictions(node, author=author, why=f"{node} is drained in another way.", now=now)
    _queue_node_command(node, ClusterCommandKind.DRAIN, why)
    journal.node_event("node.drained", author, node, why=why, detail={"mode": mode}).save()
    _publish_node_change(node)


@transaction.atomic
def resume(node: Node, *, author: Author, why: str = "", now: datetime) -> None:
    """Take work again. Who was to leave and has not been told to end yet runs on. A node that is resumed while its
    maintenance goes on is in it no more."""
    _lock_node(node)
    if not node.is_drained and node.takes_work:
        raise NodeError(f"{node} takes work already")
    left = node.maintenance if node.maintenance and node.maintenance.is_in_progress(now) else None
    if left:
        left.spared.add(node)
    nothing = {"reason": "", "reason_by": "", "reason_at": None, "care": RepairStage.NONE, "care_until": None}
    Node.objects.filter(pk=node.pk).update(drain_asked=False, drain_mode=DrainMode.FINISH, maintenance=None, **nothing)
    stop.cancel_evictions(node, author=author, why=f"{node} takes work again.", now=now)
    _queue_node_command(node, ClusterCommandKind.RESUME, why)
    journal.node_event("node.resumed", author, node, why=why, detail={"left": left.name} if left else {}).save()
    _publish_node_change(node)


@dataclass(frozen=True, kw_only=True)
class NodeTestResult:
    """How a test of a node came out."""

    passed: bool
    ran: bool = True  # a test that never began says nothing of its node
    why: str = ""
    exit_code: int | None = None
    log_path: str = ""

    @property
    def sentence(self) -> str:
        return "It passed its test." if self.passed else f"It failed its test: {self.why}."


@transaction.atomic
def start_node_test(node: Node, *, author: Author, why: str = "") -> Deed:
    """Run the cluster's test command on it, while nothing else may start there: on a node that is drained and empty."""
    _lock_node(node)
    _check_testable(node)
    deed, new = _queue_test_command(node, why)
    if not new:
        raise NodeError(f"{node} is being tested already")
    journal.node_event("node.test_asked", author, node, why=why, detail={"test": deed.pk}).save()
    _publish_node_change(node)
    deed.refresh_from_db()
    return deed


def _check_testable(node: Node) -> None:
    if node.cluster.mode != ClusterMode.DRIVE:
        raise NodeError(f"{node.cluster} is not driven by Acme, which runs tests as jobs")
    if not node.drain_asked:
        raise NodeError(f"{node} is not drained; drain it first, so that the test has it alone")
    if held := Allocation.objects.filter(node=node, released_at__isnull=True).values("attempt").distinct().count():
        raise NodeError(f"{format_count(held, 'job')} still {'runs' if held == 1 else 'run'} on {node}")


def _queue_test_command(node: Node, why: str) -> tuple[Deed, bool]:
    return Deed.objects.get_or_create(
        node=node,
        kind=ClusterCommandKind.TEST,
        attempt=None,
        done_at=None,
        defaults={"cluster_id": node.cluster_id, "reason": why or "It is tested."},
    )


def record_node_test(node: Node, deed: Deed, outcome: NodeTestResult, *, author: Author) -> None:
    """In the transaction that settles the deed."""
    told = {
        "test": deed.pk,
        "passed": outcome.passed,
        "ran": outcome.ran,
        "exit_code": outcome.exit_code,
        "log": outcome.log_path,
    }
    journal.node_event("node.tested", author, node, why=outcome.sentence, detail=told).save()
    if outcome.ran and not outcome.passed:
        mark_for_repair(node, author=author, why=outcome.sentence)
    _publish_node_change(node)


# --- the way back


@transaction.atomic
def mark_for_repair(node: Node, *, author: Author, why: str) -> None:
    """Something is broken: it stays closed until somebody has repaired it. Of an open node nothing is said."""
    row = Node.objects.select_for_update().get(pk=node.pk)
    if not row.drain_asked or row.care == RepairStage.REPAIR:
        return
    if row.care == RepairStage.BURN_IN:
        journal.node_event("node.burn_in_failed", author, node, why=why).save()
    Node.objects.filter(pk=node.pk).update(care=RepairStage.REPAIR, care_until=None)
    journal.node_event("node.repair_asked", author, node, why=why).save()
    _publish_node_change(node)


@transaction.atomic
def start_burn_in(node: Node, *, author: Author, why: str = "", now: datetime) -> None:
    """It is repaired: its burn-in begins with a test, and ends with its return."""
    _lock_node(node)
    _check_testable(node)
    if node.care == RepairStage.BURN_IN:
        raise NodeError(f"{node} is in burn-in already")
    until = now + timedelta(minutes=node.cluster.burn_in_minutes)
    Node.objects.filter(pk=node.pk).update(care=RepairStage.BURN_IN, care_until=until)
    deed, _ = _queue_test_command(node, "It is in burn-in.")
    detail = {"until": until.isoformat(), "test": deed.pk}
    journal.node_event("node.burn_in_began", author, node, why=why, detail=detail).save()
    _publish_node_change(node)


@transaction.atomic
def continue_burn_in(node: Node, *, author: Author, now: datetime) -> bool:
    """The next step of a burn-in, where one is due: another test, or the node's return."""
    _lock_node(node)
    if node.care != RepairStage.BURN_IN or not node.drain_asked:
        return False
    tests = Deed.objects.filter(node=node, kind=ClusterCommandKind.TEST)
    last = tests.order_by("-pk").first()
    over = now >= node.care_until and last is not None and _burn_in_test_passed(node, last)
    if last is not None and (last.done_at is None or (last.done_at > now - NODE_TEST_INTERVAL and not over)):
        return False
    if over:
        why = f"It passed its burn-in of {node.cluster.burn_in_minutes} minutes."
        journal.node_event("node.burn_in_passed", author, node, why=why).save()
        resume(node, author=author, why=why, now=now)
        return True
    _check_testable(node)
    _queue_test_command(node, "It is in burn-in.")
    return True


def _burn_in_test_passed(node: Node, deed: Deed) -> bool:
    return Event.objects.filter(node=node, what="node.tested", detail__test=deed.pk, detail__passed=True).exists()


def _lock_node(node: Node) -> None:
    """The row of now, and nobody else's until we are done; only where Acme may say what happens."""
    node.refresh_from_db(from_queryset=Node.objects.select_for_update(of=("self",)).select_related("cluster"))
    if node.cluster.mode == ClusterMode.OBSERVE:
        raise NodeError(f"{node.cluster} is only observed: drain and resume its nodes there")


def _queue_node_command(node: Node, kind: str, why: str) -> None:
    """The newest wish wins: an open deed of the other kind would undo it."""
    Deed.objects.open().filter(node=node, kind__in=NODE_COMMANDS).exclude(kind=kind).delete()
    Deed.objects.get_or_create(
        node=node, kind=kind, done_at=None, defaults={"cluster_id": node.cluster_id, "reason": why}
    )


def _publish_node_change(node: Node) -> None:
    node.refresh_from_db()
    live.publish_on_commit("nodes", f"node:{node.pk}")


def record_observation(node: Node, *, author: Author, now: datetime, **seen: object) -> None:
    """Take over what the cluster reports of it; an Event if its state or flags moved, nothing if nothing is new."""
    changed = {name: value for name, value in seen.items() if getattr(node, name) != value}
    if changed:
        _apply_observation(node, changed, author=author, now=now)


@transaction.atomic
def _apply_observation(node: Node, changed: dict[str, object], *, author: Author, now: datetime) -> None:
    before, shown = node.condition, node.badge.label
    if {"state", "flags"} & changed.keys():
        changed["since"] = now
    for name, value in changed.items():
        setattr(node, name, value)
    node.save(update_fields=list(changed))
    if node.condition != before:
        told = {"from_state": before, "to_state": node.condition, "why": node.reason}
        journal.node_event("node.moved", author, node, **told).save()
    if node.badge.label != shown:
        live.publish_on_commit("nodes", f"node:{node.pk}")
