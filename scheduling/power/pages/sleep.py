"""The page of the sleeping nodes of a cluster: what is needed, what sleeps, and proposals to approve or decline."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_POST, require_safe

from acmeweb.common.errors import StateConflict
from jobs.actions.journal import Author
from jobs.actions.wake import request_turn
from jobs.models import Cluster, SleepMode, clock
from jobs.web.page import render_page
from scheduling.models import NodeSleep, NodeSleepState
from scheduling.power.actions import sleeps as sleep_actions
from scheduling.power.reads.sleeps import BootTimes, effective_mode, needed_now, sleep_candidates

OPERATE_PERMISSION = "jobs.operate_cluster"
MAX_ENDED_SHOWN = 30
MAX_OPEN_SHOWN = 500
SLEEP_VERBS: dict[str, tuple[Callable[..., None], str]] = {
    "approve": (sleep_actions.approve, "approved"),
    "decline": (sleep_actions.decline, "declined"),
    "wake": (sleep_actions.wake_by_user, "wake-up requested"),
}


@require_safe
def sleeping_nodes(request: HttpRequest, cluster: str) -> HttpResponse:
    row, now = get_object_or_404(Cluster, name=cluster), clock.now()
    rows = NodeSleep.objects.filter(cluster=row).select_related("node__cluster")
    ended = rows.filter(closed_at__isnull=False).order_by("-closed_at")
    context = {
        "now": now,
        "cluster": row,
        "here": request.get_full_path(),
        "figures": cache(lambda: _figures(row)),
        "proposed": cache(lambda: rows.open().filter(state=NodeSleepState.PROPOSED).count()),
        "open": cache(lambda: list(rows.open().order_by("node__name")[:MAX_OPEN_SHOWN])),
        "ended": cache(lambda: list(ended[:MAX_ENDED_SHOWN])),
        "may_operate": request.user.has_perm(OPERATE_PERMISSION),
    }
    return render_page(request, "scheduling/sleep.html", context, {"sleep": "scheduling/_sleep.html"})


def _figures(cluster: Cluster) -> dict[str, Any]:
    now = clock.now()
    nodes = sleep_candidates(cluster, now)
    mode = effective_mode(cluster, now)
    return {
        "mode": mode if cluster.lets_nodes_sleep else SleepMode.OFF,
        "is_lowered": mode != cluster.sleep_mode,
        "lacks_means": cluster.sleep_mode != SleepMode.OFF and not cluster.lets_nodes_sleep,
        "nodes": len(nodes),
        "needed": needed_now(cluster, nodes, now) if nodes else 0,
        "awake": sum(not node.is_asleep for node in nodes),
        "busy": sum(not node.is_idle for node in nodes),
        "boot_minutes": max(1, round(BootTimes(cluster).longest_s / 60)),
    }


@require_POST
@permission_required(OPERATE_PERMISSION, raise_exception=True)
def sleep_verb(request: HttpRequest, cluster: str, number: int, verb: str) -> HttpResponse:
    rows = NodeSleep.objects.select_related("node", "cluster")
    sleep = get_object_or_404(rows, cluster__name=cluster, pk=number)
    if verb not in SLEEP_VERBS:
        raise Http404("Unknown action.")
    act, outcome = SLEEP_VERBS[verb]
    try:
        act(sleep, author=Author.of(request), now=clock.now())
    except StateConflict as error:
        messages.error(request, f"Nothing was changed: {error}.")
    else:
        request_turn(sleep.cluster_id)
        messages.success(request, f"{sleep.node}: {outcome}.")
    return redirect("sleeping-nodes", cluster)


@require_POST
@permission_required(OPERATE_PERMISSION, raise_exception=True)
def approve_all(request: HttpRequest, cluster: str) -> HttpResponse:
    """Approve all proposals. Each is one transaction, so one that no longer fits does not affect the others."""
    row, approved, refused = get_object_or_404(Cluster, name=cluster), 0, 0
    proposals = NodeSleep.objects.open().filter(cluster=row, state=NodeSleepState.PROPOSED)
    for sleep in proposals.select_related("node"):
        try:
            sleep_actions.approve(sleep, author=Author.of(request), now=clock.now())
            approved += 1
        except StateConflict:
            refused += 1
    request_turn(row.pk)
    left = f" {refused} did not fit any more." if refused else ""
    messages.success(request, f"{approved} approved.{left}")
    return redirect("sleeping-nodes", cluster)
