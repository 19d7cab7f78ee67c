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

from jobs import clock, consequences, node_actions
from jobs.journal import Author
from jobs.models import DrainMode, Mode, Node
from jobs.node_actions import NodeError
from jobs.node_views import WAYS_TO_DRAIN, running_of, visible_ids
from jobs.pages import said
from jobs.wishes import want_turn

MOST_NODES = 500  # at once; each is a transaction of its own
MOST_JOBS = 100  # told by name
EFFECTS = {"drain": "No new job starts there.", "resume": "New jobs may start there again."}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`error` is empty where it was done, or would be."""

    node: Node
    error: str = ""


class _Rehearsed(Exception):
    """The end of a dry run: what it did is rolled back."""


@require_POST
@permission_required("jobs.operate_cluster", raise_exception=True)
def on_many(request: HttpRequest) -> HttpResponse:
    """With `confirm` it is done, and told node by node."""
    verb, mode = request.POST.get("verb", ""), request.POST.get("mode", DrainMode.FINISH)
    if verb not in EFFECTS or mode not in DrainMode.values:
        raise Http404("no such verb, or no such way to drain")
    nodes = _chosen(request)
    if not nodes:
        messages.warning(request, "No node was chosen: tick some.")
        return redirect("nodes")
    unsaid = verb == "drain" and not said(request)
    confirmed = request.POST.get("confirm") == "1"
    done = confirmed and not unsaid
    touched = consequences.of_drain(nodes, clock.now()) if verb == "drain" and not done else []
    outcomes = [_tried(request, node, verb, mode, dry=not done) for node in nodes[:MOST_NODES]]
    if done:
        for cluster in {one.node.cluster_id for one in outcomes if not one.error}:
            want_turn(cluster)
    good = [one.node for one in outcomes if not one.error]
    context = {
        "now": clock.now(),
        "verb": verb,
        "effect": EFFECTS[verb],
        "done": done,
        "unsaid": confirmed and unsaid,
        "mode": mode,
        "outcomes": sorted(outcomes, key=lambda one: not one.error),
        "good": good,
        "gpus": sum(node.gpus for node in good),
        "more": len(nodes) > MOST_NODES,
        "most": MOST_NODES,
        "running": running_of(touched, visible_ids(request, {one.job.pk for one in touched})),
        "most_jobs": MOST_JOBS,
        "ways": [(way, words, consequences.sentence(touched, way)) for way, words in _ways(nodes)],
    }
    return render(request, "nodes/many.html", context, status=422 if confirmed and unsaid else 200)


def _chosen(request: HttpRequest) -> Sequence[Node]:
    """One more than are taken, which says that there are more."""
    ids = [int(one) for one in request.POST.getlist("id") if one.isascii() and one.isdecimal() and len(one) < 19]
    rows = Node.objects.filter(pk__in=ids[: MOST_NODES + 1]).select_related("cluster")
    return list(rows.order_by("cluster__name", "name"))


def _ways(nodes: Sequence[Node]) -> list[tuple[str, str]]:
    """Where Acme only watches, jobs can but finish."""
    return WAYS_TO_DRAIN if all(node.cluster.mode == Mode.DRIVE for node in nodes) else WAYS_TO_DRAIN[:1]


def _tried(request: HttpRequest, node: Node, verb: str, mode: str, *, dry: bool) -> Outcome:
    author, why, now = Author.of(request), said(request), clock.now()
    try:
        with transaction.atomic():
            if verb == "drain":
                node_actions.drain(node, author=author, why=why or ("?" if dry else ""), now=now, mode=mode)
            else:
                node_actions.resume(node, author=author, why=why, now=now)
            if dry:
                raise _Rehearsed
    except _Rehearsed:
        node.refresh_from_db()
        return Outcome(node=node)
    except NodeError as error:
        return Outcome(node=node, error=str(error))
    return Outcome(node=node)
