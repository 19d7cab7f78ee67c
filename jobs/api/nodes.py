"""Nodes through the programs' door: look at them, close them, open them again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar

from django.db.models import Count, Q, QuerySet
from rest_framework.exceptions import NotFound
from rest_framework.response import Response

from jobs import clock, node_actions, readers
from jobs import consequences as drains
from jobs.api import shapes
from jobs.api.jobs import LONGEST_REASON
from jobs.api.submitting import soon
from jobs.door import pages, query
from jobs.door.endpoint import Detail, Listing, Verb, as_it_is, found, locked, refuse_unknown
from jobs.door.errors import BadField
from jobs.door.rights import Rule
from jobs.door.shapes import Shape, plain
from jobs.lifecycle import NodeState
from jobs.models import Allocation, Deed, DeedKind, DrainMode, Event, Node, Scope

REASON = readers.needed(readers.text(LONGEST_REASON, lines=True))


def with_gpus_held(rows: list[Any]) -> None:
    held = Count("gpu", filter=Q(released_at__isnull=True))
    counts = dict(
        Allocation.objects.filter(node__in=[row.pk for row in rows], released_at__isnull=True)
        .values_list("node")
        .annotate(held=held)
        .order_by()
    )
    for row in rows:
        row.gpus_held = counts.get(row.pk, 0)


class Nodes(Listing):
    """List nodes."""

    tag = "Nodes"
    what = "nodes"
    shape = shapes.NODE
    filters = {
        "cluster": query.text("cluster__name"),
        "name": query.text("name", "contains", "startswith"),
        "state": query.choice("state", list(NodeState)),
        "gpu_model": query.text("gpu_model"),
        "rack": query.text("rack"),
        "leaf": query.text("leaf"),
        "pod": query.text("pod"),
        "gpus": query.number("gpus"),
        "drain_asked": query.truth("drain_asked"),
    }
    orderings = {
        "cluster": pages.Sort(column="cluster__name"),
        "name": pages.Sort(column="name"),
        "since": pages.Sort(column="since", kind=datetime),
        "id": pages.ID,
    }
    ordering = "cluster,name"
    rules = {"GET": Rule(scope=Scope.READ, says="List nodes", answer=shapes.NODE, many=True)}

    def rows(self) -> QuerySet[Node]:
        return Node.objects.all()

    def complete(self, rows: list[Any], names: list[str]) -> None:
        if "gpus_held" in names:
            with_gpus_held(rows)


def whole_node(cluster: str, name: str) -> Any:
    node = found(shapes.NODE.load(Node.objects.all(), shapes.NODE.fields), "node", cluster__name=cluster, name=name)
    with_gpus_held([node])
    return node


class OneNode(Detail):
    """One node."""

    tag = "Nodes"
    shape = shapes.NODE
    rules = {"GET": Rule(scope=Scope.READ, says="One node", answer=shapes.NODE, team=True)}

    def row(self, cluster: str, name: str) -> Any:
        return whole_node(cluster, name)


class NodeVerb(Verb):
    tag = "Nodes"

    def lock(self, cluster: str, name: str) -> Node:
        node = locked(self.request, shapes.NODE, lambda: whole_node(cluster, name))
        return Node.objects.select_related("cluster").get(pk=node.pk)


def _operated(says: str, body: Shape, answer: Shape) -> Rule:
    return Rule(scope=Scope.OPERATE, says=says, body=body, answer=answer, operator=True, conflicts=True, team=True)


class DrainNode(NodeVerb):
    """Close a node."""

    rules = {
        "POST": _operated(
            "Drain a node: no new jobs; running ones finish, or are requeued. A dry run shows which",
            shapes.DRAIN,
            shapes.CONSEQUENCES,
        )
    }
    takes = {"reason": REASON, "mode": readers.one_of(DrainMode.values), "dry_run": readers.truth}

    def work(self, cluster: str, name: str) -> Response:
        asked = self.body(self.takes, "the verb drain")
        if "reason" not in asked:
            raise BadField("reason", "is missing: operators read it in the list of nodes")
        node, dry, mode = self.lock(cluster, name), asked.get("dry_run", False), asked.get("mode", DrainMode.FINISH)
        # Looked at before: a preview and a deed are told in the same words
        said = consequences(node, mode, done=not dry)
        if not dry:
            node_actions.drain(node, author=self.author, why=asked["reason"], now=clock.now(), mode=mode)
            soon(node.cluster_id)
        return Response(said)


class ChangeNode(NodeVerb):
    """A verb whose answer is the node as it is then."""

    verb: ClassVar[str]
    act: ClassVar[Callable[..., None]]
    takes = {"reason": readers.text(LONGEST_REASON, lines=True)}

    def work(self, cluster: str, name: str) -> Response:
        asked = self.body(self.takes, f"the verb {self.verb}")
        node = self.lock(cluster, name)
        self.act(node, author=self.author, why=asked.get("reason", ""), now=clock.now())
        soon(node.cluster_id)
        return as_it_is(shapes.NODE, whole_node(cluster, name))


class ResumeNode(ChangeNode):
    """Open a node again."""

    rules = {"POST": _operated("Let a node take work again", shapes.WHY, shapes.NODE)}
    verb, act = "resume", staticmethod(node_actions.resume)


class TestNode(NodeVerb):
    """Test a node."""

    rules = {
        "GET": Rule(scope=Scope.READ, says="The newest test of a node", answer=shapes.NODE_TEST, team=True),
        "POST": _operated("Run the cluster's test on a node that is drained and empty", shapes.WHY, shapes.NODE_TEST),
    }
    takes = {"reason": readers.text(LONGEST_REASON, lines=True)}

    def get(self, request: Any, cluster: str, name: str) -> Response:
        refuse_unknown(request)
        node = whole_node(cluster, name)
        newest = Deed.objects.filter(node=node.pk, kind=DeedKind.TEST).order_by("-pk").first()
        if newest is None:
            raise NotFound(f"{cluster}/{name} has not been tested.")
        return Response(_test(newest, f"{cluster}/{name}"))

    def work(self, cluster: str, name: str) -> Response:
        asked = self.body(self.takes, "the verb test")
        node = self.lock(cluster, name)
        deed = node_actions.test(node, author=self.author, why=asked.get("reason", ""))
        soon(node.cluster_id)
        return Response(_test(deed, f"{cluster}/{name}"))


class BurnInNode(ChangeNode):
    """Bring a repaired node back."""

    rules = {
        "POST": _operated(
            "Begin the burn-in of a repaired node: tested for a time, then it returns by itself",
            shapes.WHY,
            shapes.NODE,
        )
    }
    verb, act = "burn-in", staticmethod(node_actions.burn_in)


def _test(deed: Deed, node: str) -> dict[str, Any]:
    told = Event.objects.filter(node=deed.node_id, what="node.tested", detail__test=deed.pk).first()
    return {
        "id": deed.pk,
        "node": node,
        "asked_at": plain(deed.created_at),
        "done": deed.done_at is not None,
        "passed": told.detail["passed"] if told else None,
        "outcome": deed.outcome or "It waits for its cluster.",
        "log": told.detail["log"] if told else "",
    }


def consequences(node: Node, mode: str, *, done: bool) -> dict[str, Any]:
    """Which jobs a drain touches, in any team: whoever operates clusters sees whose they are, not what they do."""
    touched = drains.of_drain([node], clock.now())
    return {
        "node": f"{node.cluster.name}/{node.name}",
        "done": done,
        "effect": drains.sentence(touched, mode),
        "running": len(touched),
        "gpus": sum(one.gpus for one in touched),
        "mode": mode,
        "gpu_hours_at_risk": round(sum(one.at_risk for one in touched), 2),
        "jobs": [held(one) for one in touched],
    }


def held(one: drains.Touched) -> dict[str, Any]:
    return {
        "id": one.job.public_id,
        "team": one.job.team.name,
        "user": one.job.owner_name,
        "gpus": one.gpus,
        "started_at": plain(one.started_at),
        "preemptible": one.job.preemptible,
        "gpus_in_all": one.job.gpus,
        "saved_at": plain(one.saved_at),
        "gpu_hours_at_risk": one.at_risk,
    }
