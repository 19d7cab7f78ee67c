"""Nodes in the API: list and read nodes, drain, resume, test and burn in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar

from django.db.models import Count, QuerySet
from rest_framework.exceptions import NotFound
from rest_framework.response import Response

from acmeweb.common.errors import InvalidField
from jobs.actions import nodes as node_actions
from jobs.actions.submissions import request_turn_after_commit
from jobs.api import shapes
from jobs.api.jobs import MAX_REASON_LENGTH
from jobs.core import parsing
from jobs.core.lifecycle import NodeState
from jobs.models import Allocation, ClusterCommand, ClusterCommandKind, DrainMode, Event, Node, TokenScope, clock
from jobs.queries import drain_impact, keyset
from jobs.rest import query_params
from jobs.rest.endpoint import (
    ActionEndpoint,
    DetailEndpoint,
    ListEndpoint,
    current_row_response,
    find_or_404,
    lock_unchanged_row,
    reject_unknown_params,
)
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import ResourceShape, json_value

NODE_REASON_READER = parsing.nonempty_reader(parsing.text_reader(MAX_REASON_LENGTH, lines=True))


def attach_gpus_held(rows: list[Any]) -> None:
    held = Count("gpu", distinct=True)
    counts = dict(
        Allocation.objects.filter(node__in=[row.pk for row in rows], released_at__isnull=True)
        .values_list("node")
        .annotate(held=held)
        .order_by()
    )
    for row in rows:
        row.gpus_allocated = counts.get(row.pk, 0)


class Nodes(ListEndpoint):
    """List nodes."""

    tag = "Nodes"
    what = "nodes"
    shape = shapes.NODE
    filters = {
        "cluster": query_params.text_filter("cluster__name"),
        "name": query_params.text_filter("name", "contains", "startswith"),
        "state": query_params.choice_filter("state", list(NodeState)),
        "gpu_model": query_params.text_filter("gpu_model"),
        "rack": query_params.text_filter("rack"),
        "leaf": query_params.text_filter("leaf"),
        "pod": query_params.text_filter("pod"),
        "gpus": query_params.integer_filter("gpus"),
        "drain_requested": query_params.boolean_filter("drain_requested"),
    }
    orderings = {
        "cluster": keyset.SortColumn(column="cluster__name"),
        "name": keyset.SortColumn(column="name"),
        "since": keyset.SortColumn(column="since", kind=datetime),
        "id": keyset.SORT_BY_ID,
    }
    ordering = "cluster,name"
    rules = {"GET": EndpointRule(scope=TokenScope.READ, says="List nodes", answer=shapes.NODE, many=True)}

    def rows(self) -> QuerySet[Node]:
        return Node.objects.all()

    def attach_computed_values(self, rows: list[Any], names: list[str]) -> None:
        if "gpus_allocated" in names:
            attach_gpus_held(rows)


def full_node(cluster: str, name: str) -> Any:
    """The node with everything that shapes.NODE shows, or 404."""
    node = find_or_404(
        shapes.NODE.load(Node.objects.all(), shapes.NODE.fields), "node", cluster__name=cluster, name=name
    )
    attach_gpus_held([node])
    return node


class OneNode(DetailEndpoint):
    """Get one node."""

    tag = "Nodes"
    shape = shapes.NODE
    rules = {"GET": EndpointRule(scope=TokenScope.READ, says="Get one node", answer=shapes.NODE, team=True)}

    def row(self, cluster: str, name: str) -> Any:
        return full_node(cluster, name)


class NodeActionEndpoint(ActionEndpoint):
    tag = "Nodes"

    def lock(self, cluster: str, name: str) -> Node:
        node = lock_unchanged_row(self.request, shapes.NODE, lambda: full_node(cluster, name))
        return Node.objects.select_related("cluster").get(pk=node.pk)


def _operator_rule(says: str, body: ResourceShape, answer: ResourceShape) -> EndpointRule:
    return EndpointRule(
        scope=TokenScope.OPERATE, says=says, body=body, answer=answer, operator=True, conflicts=True, team=True
    )


class DrainNode(NodeActionEndpoint):
    """Drain a node."""

    rules = {
        "POST": _operator_rule(
            "Drain a node: no new jobs start, running jobs finish or are requeued. A dry run lists them",
            shapes.DRAIN_BODY,
            shapes.DRAIN_CONSEQUENCES,
        )
    }
    takes = {
        "reason": NODE_REASON_READER,
        "mode": parsing.choice_reader(DrainMode.values),
        "dry_run": parsing.read_bool,
    }

    def work(self, cluster: str, name: str) -> Response:
        body = self.body(self.takes, "the verb drain")
        if "reason" not in body:
            raise InvalidField("reason", "is missing; it is shown in the node list")
        node, dry, mode = self.lock(cluster, name), body.get("dry_run", False), body.get("mode", DrainMode.FINISH)
        # Computed before the drain, so that the dry run and the action return the same consequences
        consequences = drain_consequences(node, mode, drained=not dry)
        if not dry:
            node_actions.drain(node, author=self.author, why=body["reason"], now=clock.now(), mode=mode)
            request_turn_after_commit(node.cluster_id)
        return Response(consequences)


class NodeChangeEndpoint(NodeActionEndpoint):
    """An action on a node. The response is the node after the action."""

    verb: ClassVar[str]
    act: ClassVar[Callable[..., None]]
    takes = {"reason": parsing.text_reader(MAX_REASON_LENGTH, lines=True)}

    def work(self, cluster: str, name: str) -> Response:
        body = self.body(self.takes, f"the verb {self.verb}")
        node = self.lock(cluster, name)
        self.act(node, author=self.author, why=body.get("reason", ""), now=clock.now())
        request_turn_after_commit(node.cluster_id)
        return current_row_response(shapes.NODE, full_node(cluster, name))


class ResumeNode(NodeChangeEndpoint):
    """Resume a node."""

    rules = {"POST": _operator_rule("Resume a node so that it accepts jobs again", shapes.REASON_BODY, shapes.NODE)}
    verb, act = "resume", staticmethod(node_actions.resume)


class TestNode(NodeActionEndpoint):
    """Test a node."""

    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ, says="Get the newest test of a node", answer=shapes.NODE_TEST, team=True
        ),
        "POST": _operator_rule("Test a node that is drained and has no jobs", shapes.REASON_BODY, shapes.NODE_TEST),
    }
    takes = {"reason": parsing.text_reader(MAX_REASON_LENGTH, lines=True)}

    def get(self, request: Any, cluster: str, name: str) -> Response:
        reject_unknown_params(request)
        node = full_node(cluster, name)
        newest = ClusterCommand.objects.filter(node=node.pk, kind=ClusterCommandKind.TEST).order_by("-pk").first()
        if newest is None:
            raise NotFound(f"{cluster}/{name} has not been tested.")
        return Response(_node_test_result(newest, f"{cluster}/{name}"))

    def work(self, cluster: str, name: str) -> Response:
        body = self.body(self.takes, "the verb test")
        node = self.lock(cluster, name)
        command = node_actions.start_node_test(node, author=self.author, why=body.get("reason", ""))
        request_turn_after_commit(node.cluster_id)
        return Response(_node_test_result(command, f"{cluster}/{name}"))


class BurnInNode(NodeChangeEndpoint):
    """Burn in a repaired node."""

    rules = {
        "POST": _operator_rule(
            "Start the burn-in of a repaired node. It is tested for a time and then accepts jobs automatically",
            shapes.REASON_BODY,
            shapes.NODE,
        )
    }
    verb, act = "burn-in", staticmethod(node_actions.start_burn_in)


def _node_test_result(command: ClusterCommand, node: str) -> dict[str, Any]:
    event = Event.objects.filter(node=command.node_id, type="node.tested", detail__test=command.pk).first()
    return {
        "id": command.pk,
        "node": node,
        "requested_at": json_value(command.created_at),
        "finished": command.done_at is not None,
        "passed": event.detail["passed"] if event else None,
        "outcome": command.outcome or "Waiting for the cluster.",
        "log": event.detail["log"] if event else "",
    }


def drain_consequences(node: Node, mode: str, *, drained: bool) -> dict[str, Any]:
    """The jobs of all teams that a drain affects. Cluster operators see the owners, but not names or commands."""
    jobs = drain_impact.affected_jobs([node], clock.now())
    return {
        "node": f"{node.cluster.name}/{node.name}",
        "drained": drained,
        "effect": drain_impact.drain_impact_text(jobs, mode),
        "running": len(jobs),
        "gpus": sum(affected.gpus for affected in jobs),
        "mode": mode,
        "gpu_hours_at_risk": round(sum(affected.at_risk for affected in jobs), 2),
        "jobs": [running_job_row(affected) for affected in jobs],
    }


def running_job_row(affected: drain_impact.AffectedJob) -> dict[str, Any]:
    return {
        "id": affected.job.public_id,
        "team": affected.job.team.name,
        "user": affected.job.owner_name,
        "gpus": affected.gpus,
        "started_at": json_value(affected.started_at),
        "preemptible": affected.job.preemptible,
        "gpus_in_all": affected.job.gpus,
        "saved_at": json_value(affected.saved_at),
        "gpu_hours_at_risk": affected.at_risk,
    }
