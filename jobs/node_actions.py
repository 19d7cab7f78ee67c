"""The only code that changes a node: what operators ask for, and what a cluster reports."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from acmeweb import live
from jobs import journal
from jobs.journal import Author
from jobs.models import Deed, DeedKind, Mode, Node


class NodeError(Exception):
    """The verb does not fit the node; the message is a sentence."""


@transaction.atomic
def drain(node: Node, *, author: Author, why: str, now: datetime) -> None:
    """No new jobs; the running ones finish. Counts for our scheduler at once; the cluster is told by a deed."""
    if not why.strip():
        raise NodeError("a reason is needed: operators read it in the list of nodes")
    _lock(node)
    if node.drain_asked:
        raise NodeError(f"{node} is drained already, by {node.reason_by}: {node.reason}")
    Node.objects.filter(pk=node.pk).update(drain_asked=True, reason=why, reason_by=author.by, reason_at=now)
    _ask(node, DeedKind.DRAIN, why)
    journal.of_node("node.drained", author, node, why=why).save()
    _done(node)


@transaction.atomic
def resume(node: Node, *, author: Author, why: str = "", now: datetime) -> None:
    """Take work again."""
    _lock(node)
    if not node.is_drained and node.takes_work:
        raise NodeError(f"{node} takes work already")
    Node.objects.filter(pk=node.pk).update(drain_asked=False, reason="", reason_by="", reason_at=None)
    _ask(node, DeedKind.RESUME, why)
    journal.of_node("node.resumed", author, node, why=why).save()
    _done(node)


def _lock(node: Node) -> None:
    """The row of now, and nobody else's until we are done; only where Acme may say what happens."""
    node.refresh_from_db(from_queryset=Node.objects.select_for_update(of=("self",)).select_related("cluster"))
    if node.cluster.mode == Mode.OBSERVE:
        raise NodeError(f"{node.cluster} is only observed: drain and resume its nodes there")


def _ask(node: Node, kind: str, why: str) -> None:
    """The newest wish wins: an open deed of the other kind would undo it."""
    Deed.objects.open().filter(node=node).exclude(kind=kind).delete()
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
