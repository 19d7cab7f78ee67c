"""Bulk actions on nodes: a preview with the affected jobs, then one transaction per node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from acmeweb.common.errors import StateConflict
from jobs.actions import nodes as node_actions
from jobs.actions.journal import Author
from jobs.actions.wake import request_turn
from jobs.models import ClusterMode, DrainMode, Node, clock
from jobs.pages.nodes import DRAIN_MODE_CHOICES, drain_affected_jobs, visible_job_ids
from jobs.queries import drain_impact
from jobs.web.page import posted_text

MAX_NODES = 500  # per request; each node takes a transaction of its own
MAX_JOBS_SHOWN = 100  # affected jobs listed in the preview
NODE_ACTION_EFFECTS = {
    "drain": "No new jobs start on these nodes.",
    "resume": "New jobs can start on these nodes again.",
}


@dataclass(frozen=True, kw_only=True)
class NodeActionOutcome:
    """The result for one node. `error` is empty if the action succeeded, or would succeed in a preview."""

    node: Node
    error: str = ""


@require_POST
@permission_required("jobs.operate_cluster", raise_exception=True)
def bulk_node_action(request: HttpRequest) -> HttpResponse:
    """Preview a drain or resume of the selected nodes; with `confirm`, perform it."""
    verb, mode = request.POST.get("verb", ""), request.POST.get("mode", DrainMode.FINISH)
    if verb not in NODE_ACTION_EFFECTS or mode not in DrainMode.values:
        raise Http404("unknown verb or drain mode")
    nodes = _selected_nodes(request)
    if not nodes:
        messages.warning(request, "No nodes selected.")
        return redirect("nodes")
    lacks_reason = verb == "drain" and not posted_text(request)
    confirmed = request.POST.get("confirm") == "1"
    done = confirmed and not lacks_reason
    affected = drain_impact.affected_jobs(nodes, clock.now()) if verb == "drain" and not done else []
    outcomes = [_try_node_action(request, node, verb, mode, dry=not done) for node in nodes[:MAX_NODES]]
    if done:
        for cluster in {outcome.node.cluster_id for outcome in outcomes if not outcome.error}:
            request_turn(cluster)
    good = [outcome.node for outcome in outcomes if not outcome.error]
    context = {
        "now": clock.now(),
        "verb": verb,
        "is_drain": verb == "drain",
        "effect": NODE_ACTION_EFFECTS[verb],
        "done": done,
        "lacks_reason": confirmed and lacks_reason,
        "mode": mode,
        "outcomes": sorted(outcomes, key=lambda outcome: not outcome.error),
        "good": good,
        "gpus": sum(node.gpus for node in good),
        "more": len(nodes) > MAX_NODES,
        "most": MAX_NODES,
        "running": drain_affected_jobs(affected, visible_job_ids(request, {hit.job.pk for hit in affected})),
        "most_jobs": MAX_JOBS_SHOWN,
        "ways": [(way, label, drain_impact.drain_impact_text(affected, way)) for way, label in _drain_modes(nodes)],
    }
    return render(request, "nodes/many.html", context, status=422 if confirmed and lacks_reason else 200)


def _selected_nodes(request: HttpRequest) -> Sequence[Node]:
    """Up to MAX_NODES + 1 nodes; the extra one shows that the selection is larger."""
    ids = [int(text) for text in request.POST.getlist("id") if text.isascii() and text.isdecimal() and len(text) < 19]
    rows = Node.objects.filter(pk__in=ids[: MAX_NODES + 1]).select_related("cluster")
    return list(rows.order_by("cluster__name", "name"))


def _drain_modes(nodes: Sequence[Node]) -> list[tuple[str, str]]:
    """The drain modes possible on all these nodes. Acme can requeue jobs only on clusters that it drives."""
    return (
        DRAIN_MODE_CHOICES if all(node.cluster.mode == ClusterMode.DRIVE for node in nodes) else DRAIN_MODE_CHOICES[:1]
    )


def _try_node_action(request: HttpRequest, node: Node, verb: str, mode: str, *, dry: bool) -> NodeActionOutcome:
    author, why, now = Author.of(request), posted_text(request), clock.now()
    try:
        with transaction.atomic():
            if verb == "drain":
                node_actions.drain(node, author=author, why=why or ("?" if dry else ""), now=now, mode=mode)
            else:
                node_actions.resume(node, author=author, why=why, now=now)
            transaction.set_rollback(dry)
    except StateConflict as error:
        return NodeActionOutcome(node=node, error=str(error))
    if dry:
        node.refresh_from_db()
    return NodeActionOutcome(node=node)
