"""The only code that changes a node: what operators ask for, and what a cluster reports."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from acmeweb import live
from jobs import journal, stop_actions
from jobs.journal import Author
from jobs.models import TO_NODES, Allocation, Deed, DeedKind, DrainMode, Maintenance, Mode, Node
from jobs.notation import count


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
    _lock(node)
    if mode != DrainMode.FINISH and node.cluster.mode != Mode.DRIVE:
        raise NodeError(f"{node.cluster} is not driven by Acme, so its jobs can only finish")
    if node.drain_asked and node.drain_mode == mode and (maintenance or not node.maintenance_id):
        raise NodeError(f"{node} is drained already, by {node.reason_by}: {node.reason}")
    asked = {"reason": why, "reason_by": author.by, "reason_at": now}
    Node.objects.filter(pk=node.pk).update(drain_asked=True, drain_mode=mode, maintenance=maintenance, **asked)
    stop_actions.call_off(node, author=author, why=f"{node} is drained in another way.", now=now)
    _ask(node, DeedKind.DRAIN, why)
    journal.of_node("node.drained", author, node, why=why, detail={"mode": mode}).save()
    _done(node)


@transaction.atomic
def resume(node: Node, *, author: Author, why: str = "", now: datetime) -> None:
    """Take work again. Who was to leave and has not been told to end yet runs on. A node that is resumed while its
    maintenance goes on is in it no more."""
    _lock(node)
    if not node.is_drained and node.takes_work:
        raise NodeError(f"{node} takes work already")
    left = node.maintenance
    if left and left.is_wanted(now):
        left.spared.add(node)
    nothing = {"reason": "", "reason_by": "", "reason_at": None}
    Node.objects.filter(pk=node.pk).update(drain_asked=False, drain_mode=DrainMode.FINISH, maintenance=None, **nothing)
    stop_actions.call_off(node, author=author, why=f"{node} takes work again.", now=now)
    _ask(node, DeedKind.RESUME, why)
    journal.of_node("node.resumed", author, node, why=why).save()
    _done(node)


@dataclass(frozen=True, kw_only=True)
class Outcome:
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
def test(node: Node, *, author: Author, why: str = "") -> Deed:
    """Run the cluster's test command on it, while nothing else may start there: on a node that is drained and empty."""
    _lock(node)
    if node.cluster.mode != Mode.DRIVE:
        raise NodeError(f"{node.cluster} is not driven by Acme, which runs tests as jobs")
    if not node.drain_asked:
        raise NodeError(f"{node} is not drained; drain it first, so that the test has it alone")
    if held := Allocation.objects.filter(node=node, released_at__isnull=True).values("attempt").distinct().count():
        raise NodeError(f"{count(held, 'job')} still {'runs' if held == 1 else 'run'} on {node}")
    deed, new = Deed.objects.get_or_create(
        node=node,
        kind=DeedKind.TEST,
        attempt=None,
        done_at=None,
        defaults={"cluster_id": node.cluster_id, "reason": why or "It is tested."},
    )
    if not new:
        raise NodeError(f"{node} is being tested already")
    journal.of_node("node.test_asked", author, node, why=why, detail={"test": deed.pk}).save()
    _done(node)
    deed.refresh_from_db()
    return deed


def tested(node: Node, deed: Deed, outcome: Outcome, *, author: Author) -> None:
    """In the transaction that settles the deed."""
    told = {"test": deed.pk, "passed": outcome.passed, "exit_code": outcome.exit_code, "log": outcome.log_path}
    journal.of_node("node.tested", author, node, why=outcome.sentence, detail=told).save()
    _done(node)


def _lock(node: Node) -> None:
    """The row of now, and nobody else's until we are done; only where Acme may say what happens."""
    node.refresh_from_db(from_queryset=Node.objects.select_for_update(of=("self",)).select_related("cluster"))
    if node.cluster.mode == Mode.OBSERVE:
        raise NodeError(f"{node.cluster} is only observed: drain and resume its nodes there")


def _ask(node: Node, kind: str, why: str) -> None:
    """The newest wish wins: an open deed of the other kind would undo it."""
    Deed.objects.open().filter(node=node, kind__in=TO_NODES).exclude(kind=kind).delete()
    Deed.objects.get_or_create(
        node=node, kind=kind, done_at=None, defaults={"cluster_id": node.cluster_id, "reason": why}
    )


def _done(node: Node) -> None:
    node.refresh_from_db()
    live.changed("nodes", f"node:{node.pk}")


def observe(node: Node, *, author: Author, now: datetime, **seen: object) -> None:
    """Take over what the cluster reports of it; an Event if its state or flags moved, nothing if nothing is new."""
    changed = {name: value for name, value in seen.items() if getattr(node, name) != value}
    if changed:
        _take_over(node, changed, author=author, now=now)


@transaction.atomic
def _take_over(node: Node, changed: dict[str, object], *, author: Author, now: datetime) -> None:
    before, shown = node.condition, node.badge.label
    if {"state", "flags"} & changed.keys():
        changed["since"] = now
    for name, value in changed.items():
        setattr(node, name, value)
    node.save(update_fields=list(changed))
    if node.condition != before:
        told = {"from_state": before, "to_state": node.condition, "why": node.reason}
        journal.of_node("node.moved", author, node, **told).save()
    if node.badge.label != shown:
        live.changed("nodes", f"node:{node.pk}")
