"""The page of one node, and the node actions. The node list is in `failures.pages.node_list`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_POST, require_safe

from acmeweb.common.errors import StateConflict
from jobs.actions import nodes as node_actions
from jobs.actions.journal import Author
from jobs.actions.wake import request_turn
from jobs.core.gpu_shares import WHOLE_GPU, gpu_number
from jobs.models import (
    Allocation,
    Attempt,
    ClusterMode,
    DrainMode,
    Event,
    Job,
    Node,
    RepairStage,
    Resolution,
    Sample,
    clock,
)
from jobs.models.permissions import Caller
from jobs.queries import drain_impact
from jobs.queries.drain_impact import AffectedJob
from jobs.queries.node_month import node_month
from jobs.web.page import MAX_EVENTS, posted_text, render_page

DRAIN_MODE_CHOICES = [
    (str(DrainMode.FINISH), "Let them finish"),
    (str(DrainMode.CHECKPOINT), "Requeue after the next checkpoint"),
    (str(DrainMode.NOW), "Requeue now"),
]


@require_safe
def node_page(request: HttpRequest, cluster: str, name: str) -> HttpResponse:
    row, now = _find_node(cluster, name), clock.now()
    # Functions, because each fragment shows only some of this
    sample = cache(lambda: Sample.objects.filter(node=row, resolution=Resolution.RAW).order_by("-at").first())
    allocations = cache(lambda: list(row.allocations.live().select_related("attempt__job__user", "attempt__job__team")))
    visible = cache(lambda: visible_job_ids(request, {held.attempt.job_id for held in allocations()}))
    context = {
        "now": now,
        "node": row,
        "sample": sample,
        "gpu_cap": cache(lambda: row.clocks.open().caps().first()),
        "gpus": cache(lambda: _node_gpus(row, sample(), allocations(), visible())),
        "running": cache(lambda: drain_affected_jobs(drain_impact.affected_jobs([row], now), visible())),
        "modes": _drain_choices(row),
        **_repair_texts(row),
        "may_test": lambda: row.drain_requested and row.cluster.mode == ClusterMode.DRIVE and not allocations(),
        "month": cache(lambda: node_month(row, Caller(user=request.user).visible_team_ids(), now)),
        "recent": cache(lambda: _recent_attempts(request, row)),
        "events": cache(lambda: list(Event.objects.filter(node=row).order_by("-id")[:MAX_EVENTS])),
        "may_operate": cache(lambda: request.user.has_perm("jobs.operate_cluster")),
    }
    fragments = {"node": "nodes/_node.html", "month": "nodes/_month.html", "node-log": "nodes/_node_log.html"}
    return render_page(request, "nodes/node.html", context, fragments)


def _repair_texts(row: Node) -> dict[str, Any]:
    """The repair stage, and the end of a burn-in."""
    is_burn_in = row.repair_stage == RepairStage.BURN_IN
    return {
        "repair_text": "in burn-in until" if is_burn_in else "awaiting repair",
        "burn_in_until": row.burn_in_until if is_burn_in else None,
    }


def _find_node(cluster: str, name: str) -> Node:
    if "\0" in cluster + name:  # PostgreSQL rejects NUL bytes
        raise Http404
    return get_object_or_404(Node.objects.select_related("cluster"), cluster__name=cluster, name=name)


def visible_job_ids(request: HttpRequest, ids: set[int]) -> set[int]:
    return set(Job.objects.visible_to(request.user).filter(pk__in=ids).values_list("pk", flat=True)) if ids else set()


@dataclass(frozen=True, kw_only=True)
class NodeGpu:
    """One GPU of a node: its identity, the job that holds it, and its last telemetry.

    `job` is None if the viewer may not see the job; `taken` is still true then.
    """

    index: int
    profile: str  # of a MIG slice; empty for a GPU
    uuid: str
    pci: str
    jobs: list[tuple[Job, str]]  # visible jobs, each with its part of the GPU, empty if it has all of it
    hidden_jobs: int
    left: str  # what is left of a shared GPU
    is_foreign: bool
    utilization: float | None
    memory_gib: float | None
    temperature: float | None
    power: float | None
    xid: int


def _node_gpus(row: Node, sample: Sample | None, allocations: list[Allocation], visible: set[int]) -> list[NodeGpu]:
    holders: dict[int | None, list[Allocation]] = defaultdict(list)
    for allocation in sorted(allocations, key=lambda one: (one.share_begin, one.pk)):
        holders[allocation.gpu].append(allocation)

    def gpu_reading(values: list[float | None] | None, index: int) -> float | None:
        return values[index] if values and index < len(values) else None

    gpus = []
    for index in range(row.gpus):
        here = holders[index]
        seen = [one for one in here if one.attempt.job_id in visible]
        left = WHOLE_GPU - sum(one.share for one in here) if here else 0
        memory = gpu_reading(sample and sample.gpu_memory_mib, index)
        gpus.append(
            NodeGpu(
                index=index,
                profile=row.slice_profiles.get(index, ""),
                uuid=row.gpu_uuids[index] if index < len(row.gpu_uuids) else "",
                pci=row.gpu_pci[index] if index < len(row.gpu_pci) else "",
                jobs=[(one.attempt.job, one.share_text) for one in seen],
                hidden_jobs=len(here) - len(seen),
                left=str(gpu_number(left)) if left > 0 else "",
                is_foreign=index in row.foreign_gpus,
                utilization=gpu_reading(sample and sample.gpu_util, index),
                memory_gib=None if memory is None else memory / 1024,
                temperature=gpu_reading(sample and sample.gpu_temperature_c, index),
                power=gpu_reading(sample and sample.gpu_power_w, index),
                xid=int(gpu_reading(sample and sample.xid, index) or 0),
            )
        )
    return gpus


@dataclass(frozen=True, kw_only=True)
class DrainAffectedJobs:
    """The running jobs that a drain affects."""

    jobs: list[AffectedJob]
    hidden: int  # jobs of other teams
    at_risk: float  # GPU-hours of all jobs, including the hidden ones

    @property
    def count(self) -> int:
        return len(self.jobs) + self.hidden


def drain_affected_jobs(affected: list[AffectedJob], visible: set[int]) -> DrainAffectedJobs:
    """The affected jobs, of which the viewer sees those with an id in `visible`."""
    shown = [hit for hit in affected if hit.job.pk in visible]
    at_risk = sum(hit.at_risk for hit in affected)
    return DrainAffectedJobs(jobs=shown, hidden=len(affected) - len(shown), at_risk=at_risk)


def _drain_choices(row: Node) -> list[tuple[str, str]]:
    """The drain modes that the node's cluster supports, without the one already in effect."""
    modes = DRAIN_MODE_CHOICES if row.cluster.mode == ClusterMode.DRIVE else DRAIN_MODE_CHOICES[:1]
    return [mode for mode in modes if not (row.drain_requested and row.drain_mode == mode[0])]


def _recent_attempts(request: HttpRequest, row: Node) -> list[Attempt]:
    """The 20 latest attempts on this node, of jobs that the viewer may see."""
    jobs = Job.objects.visible_to(request.user)
    here = Allocation.objects.filter(node=row).values("attempt")
    attempts = Attempt.objects.filter(pk__in=here, job__in=jobs).select_related("job__user")
    return list(attempts.order_by("-pk")[:20])


NODE_ACTION_MESSAGES = {
    "drain": "drain requested",
    "resume": "resume requested",
    "test": "test requested",
    "burn-in": "burn-in started",
}


@require_POST
@permission_required("jobs.operate_cluster", raise_exception=True)
def node_action_view(request: HttpRequest, cluster: str, name: str, verb: str) -> HttpResponse:
    row = _find_node(cluster, name)
    if verb not in NODE_ACTION_MESSAGES:
        raise Http404("unknown verb")
    mode = request.POST.get("mode", DrainMode.FINISH)
    if mode not in DrainMode.values:
        raise Http404("unknown drain mode")
    author, why = Author.of(request), posted_text(request)
    try:
        match verb:
            case "drain":
                node_actions.drain(row, author=author, why=why, now=clock.now(), mode=mode)
            case "resume":
                node_actions.resume(row, author=author, why=why, now=clock.now())
            case "test":
                node_actions.start_node_test(row, author=author, why=why)
            case "burn-in":
                node_actions.start_burn_in(row, author=author, why=why, now=clock.now())
    except StateConflict as error:
        messages.error(request, f"Conflict, nothing was changed: {error}.")
    else:
        request_turn(row.cluster_id)
        messages.success(request, f"{row}: {NODE_ACTION_MESSAGES[verb]}.")
    return redirect("node", cluster, name)
