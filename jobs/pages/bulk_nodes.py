"""One verb on many nodes: first what it would do to those who run there, then each node for itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from jobs.actions import drain_impact
from jobs.actions import nodes as node_actions
from jobs.actions.journal import Author
from jobs.actions.nodes import NodeError
from jobs.actions.wake import request_turn
from jobs.models import ClusterMode, DrainMode, Node, clock
from jobs.pages.nodes import DRAIN_MODE_CHOICES, drain_affected_jobs, visible_job_ids
from jobs.web.page import posted_text

MAX_NODES = 500  # at once; each is a transaction of its own
MAX_JOBS_SHOWN = 100  # told by name
NODE_ACTION_EFFECTS = {"drain": "No new job starts there.", "resume": "New jobs may start there again."}


@dataclass(frozen=True, kw_only=True)
class NodeActionOutcome:
    """`error` is empty where it was done, or would be."""

    node: Node
    error: str = ""


class _NodeDryRunRollback(Exception):
    """The end of a dry run: what it did is rolled back."""


@require_POST
@permission_required("jobs.operate_cluster", raise_exception=True)
def bulk_node_action(request: HttpRequest) -> HttpResponse:
    """With `confirm` it is done, and told node by node."""
    verb, mode = request.POST.get("verb", ""), request.POST.get("mode", DrainMode.FINISH)
    if verb not in NODE_ACTION_EFFECTS or mode not in DrainMode.values:
        raise Http404("no such verb, or no such way to drain")
    nodes = _selected_nodes(request)
    if not nodes:
        messages.warning(request, "No node was chosen: tick some.")
        return redirect("nodes")
    unsaid = verb == "drain" and not posted_text(request)
    confirmed = request.POST.get("confirm") == "1"
    done = confirmed and not unsaid
    touched = drain_impact.affected_jobs(nodes, clock.now()) if verb == "drain" and not done else []
    outcomes = [_try_node_action(request, node, verb, mode, dry=not done) for node in nodes[:MAX_NODES]]
    if done:
        for cluster in {one.node.cluster_id for one in outcomes if not one.error}:
            request_turn(cluster)
    good = [one.node for one in outcomes if not one.error]
    context = {
        "now": clock.now(),
        "verb": verb,
        "effect": NODE_ACTION_EFFECTS[verb],
        "done": done,
        "unsaid": confirmed and unsaid,
        "mode": mode,
        "outcomes": sorted(outcomes, key=lambda one: not one.error),
        "good": good,
        "gpus": sum(node.gpus for node in good),
        "more": len(nodes) > MAX_NODES,
        "most": MAX_NODES,
        "running": drain_affected_jobs(touched, visible_job_ids(request, {one.job.pk for one in touched})),
        "most_jobs": MAX_JOBS_SHOWN,
        "ways": [(way, words, drain_impact.drain_impact_text(touched, way)) for way, words in _drain_modes(nodes)],
    }
    return render(request, "nodes/many.html", context, status=422 if confirmed and unsaid else 200)


def _selected_nodes(request: HttpRequest) -> Sequence[Node]:
    """One more than are taken, which says that there are more."""
    ids = [int(one) for one in request.POST.getlist("id") if one.isascii() and one.isdecimal() and len(one) < 19]
    rows = Node.objects.filter(pk__in=ids[: MAX_NODES + 1]).select_related("cluster")
    return list(rows.order_by("cluster__name", "name"))


def _drain_modes(nodes: Sequence[Node]) -> list[tuple[str, str]]:
    """Where Acme only watches, jobs can but finish."""
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
            if dry:
                raise _NodeDryRunRollback
    except _NodeDryRunRollback:
        node.refresh_from_db()
        return NodeActionOutcome(node=node)
    except NodeError as error:
        return NodeActionOutcome(node=node, error=str(error))
    return NodeActionOutcome(node=node)
