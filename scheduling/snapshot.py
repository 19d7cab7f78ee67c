"""Rows to the engine's Picture: the one place where the two worlds meet. Reads only, seven short queries a cluster."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import Count, Sum

from jobs.lifecycle import FINAL, LIVE, USABLE_NODE, Kind, State
from jobs.models import After, Allocation, Attempt, Cluster, Dependency, Hold, Job, Node, Quota
from scheduling.engine.cluster import ClosedNode, Need, NodeView, Picture, QuotaView, RunningJob, WaitingJob
from scheduling.simulator.durations import PastJob

PAST = timedelta(days=30)
PAST_JOBS = 5000


@dataclass(kw_only=True)
class Held:
    """What live attempts hold on one node."""

    gpus: set[int] = field(default_factory=set)
    cpus: int = 0
    memory_mb: int = 0
    jobs: dict[int, int] = field(default_factory=dict)  # job -> how many of the GPUs


def of(cluster: Cluster, now: datetime) -> Picture:
    held = held_on(cluster)
    places: dict[int, dict[int, int]] = defaultdict(dict)
    for node_id, on in held.items():
        for job_id, gpus in on.jobs.items():
            places[job_id][node_id] = gpus
    ours = Job.objects.waiting().filter(cluster=cluster, foreign_id="")
    waiting = list(ours.select_related("team").defer("command", "environment"))
    live = _live_attempts(cluster)
    unmet = unmet_dependencies(job.pk for job in waiting)
    running = Job.objects.filter(cluster=cluster, state__in=LIVE).select_related("team").defer("command", "environment")
    nodes = list(Node.objects.filter(cluster=cluster))
    return Picture(
        now=now,
        nodes=tuple(_node(node, held[node.pk]) for node in nodes if node.takes_work),
        waiting=tuple(_waiting(job, unmet.get(job.pk, ())) for job in waiting),
        running=tuple(_running(job, places.get(job.pk, {}), *live.get(job.pk, (None, ""))) for job in running),
        quotas=tuple(_quotas(cluster)),
        placement=cluster.placement,
        closed=tuple(_closed(node, held[node.pk]) for node in nodes if not node.takes_work),
    )


def looks(cluster: Cluster) -> str:
    """Changes when who waits, what runs or what takes work changes; three short sums over indexes."""
    sums = (Count("pk"), Sum("pk"), Sum("priority"))
    waiting = Job.objects.waiting().filter(cluster=cluster, hold="").order_by().aggregate(*sums)
    running = Job.objects.live().filter(cluster=cluster).order_by().aggregate(*sums[:2])
    nodes = Node.objects.usable().filter(cluster=cluster).order_by().aggregate(*sums[:2])
    numbers = (*waiting.values(), *running.values(), *nodes.values())
    return ":".join([cluster.policy, *(str(number or 0) for number in numbers)])


def past(cluster: Cluster, now: datetime) -> list[PastJob]:
    """What ran lately, the newest last."""
    rows = Job.objects.filter(cluster=cluster, started_at__isnull=False, ended_at__gte=now - PAST).order_by("-ended_at")
    columns = ("user_id", "name", "nodes", "gpus_per_node", "started_at", "ended_at", "time_limit")
    return [
        PastJob(
            user=str(user),
            title=name,
            gpus=nodes * gpus,
            ran_s=max(0.0, (ended - started).total_seconds()),
            limit_s=limit.total_seconds() if limit else math.inf,
        )
        for user, name, nodes, gpus, started, ended, limit in reversed(rows.values_list(*columns)[:PAST_JOBS])
    ]


def held_on(cluster: Cluster) -> Mapping[int, Held]:
    """Node id -> what is held there. CPUs and memory are counted once per node of an attempt, not once per GPU."""
    held: dict[int, Held] = defaultdict(Held)
    rows = Allocation.objects.filter(node__cluster=cluster, released_at__isnull=True).values_list(
        "node_id", "gpu", "attempt__job_id", "attempt__job__cpus_per_node", "attempt__job__memory_per_node_mb"
    )
    for node_id, gpu, job_id, cpus, memory_mb in rows:
        on = held[node_id]
        if job_id not in on.jobs:
            on.jobs[job_id] = 0
            on.cpus += cpus
            on.memory_mb += memory_mb
        if gpu is not None:
            on.gpus.add(gpu)
            on.jobs[job_id] += 1
    return held


def unmet_dependencies(job_ids: Iterable[int]) -> dict[int, list[str]]:
    """Waiting job -> the public ids it still waits for."""
    unmet: dict[int, list[str]] = defaultdict(list)
    rows = Dependency.objects.filter(job__in=list(job_ids)).exclude(on__state__in=FINAL)
    for job_id, name in rows.values_list("job_id", "on__public_id"):
        unmet[job_id].append(name)
    return unmet


def never_met(cluster: Cluster) -> list[tuple[Job, str]]:
    """Waiting jobs whose condition can no longer come true, each with the sentence that says so."""
    rows = (
        Dependency.objects.filter(job__cluster=cluster, job__state=State.PENDING, on__state__in=FINAL)
        .exclude(after=After.ANY)
        .select_related("job", "on")
    )
    return [
        (row.job, f"{row.on} ended as {row.on.state}, but {row.after} was asked.")
        for row in rows
        if (row.on.state == State.COMPLETED) != (row.after == After.OK)
    ]


def _node(node: Node, held: Held) -> NodeView:
    taken = held.gpus.union(node.foreign_gpus)
    return NodeView(
        id=node.pk,
        name=node.name,
        gpus=node.gpus,
        free_gpus=tuple(gpu for gpu in range(node.gpus) if gpu not in taken),
        free_cpus=node.cpus - held.cpus,
        free_memory_mb=node.memory_mb - held.memory_mb,
        gpu_model=node.gpu_model,
        nic_type=node.nic_type,
        leaf=node.leaf,
        pod=node.pod,
    )


def _closed(node: Node, held: Held) -> ClosedNode:
    """An operator's drain is over when somebody resumes it; everything else must come back by itself."""
    answers = node.state in USABLE_NODE and node.is_drained
    return ClosedNode(node=_node(node, held), back="resumed" if answers else "back", why=node.reason)


def _waiting(job: Job, waits_for: Iterable[str]) -> WaitingJob:
    return WaitingJob(
        id=job.pk,
        name=job.public_id,
        team=job.team.name,
        kind=Kind(job.kind),
        need=Need(
            nodes=job.nodes,
            gpus=job.gpus_per_node,
            cpus=job.cpus_per_node,
            memory_mb=job.memory_per_node_mb,
            gpu_model=job.gpu_model,
            nic_type=job.nic_type,
        ),
        priority=job.priority,
        submitted_at=job.submitted_at,
        preemptible=job.preemptible,
        time_limit=job.time_limit,
        hold=job.hold,
        held_why=job.why if job.hold != Hold.NONE else "",
        begin_at=job.begin_at,
        waits_for=tuple(waits_for),
        array=job.array_id,
        array_limit=job.array_limit,
        user=str(job.user_id),
        title=job.name,
    )


def _live_attempts(cluster: Cluster) -> dict[int, tuple[datetime | None, str]]:
    """Job -> when it last saved its work, and what it was asked to become."""
    live = Attempt.objects.filter(job__cluster=cluster, ended_at__isnull=True)
    return {job_id: (saved_at, stop_as) for job_id, saved_at, stop_as in live.values_list("job", "saved_at", "stop_as")}


def _running(job: Job, places: Mapping[int, int], saved_at: datetime | None, stop_as: str) -> RunningJob:
    return RunningJob(
        id=job.pk,
        name=job.public_id,
        team=job.team.name,
        kind=Kind(job.kind),
        gpus=job.gpus,
        priority=job.priority,
        preemptible=job.preemptible,
        started_at=job.started_at,
        time_limit=job.time_limit,
        array=job.array_id,
        places=places,
        cpus=job.cpus_per_node,
        memory_mb=job.memory_per_node_mb,
        saved_at=saved_at,
        stopping=bool(stop_as),
        user=str(job.user_id),
        title=job.name,
    )


def _quotas(cluster: Cluster) -> Iterable[QuotaView]:
    for quota in Quota.objects.filter(cluster=cluster).select_related("team"):
        yield QuotaView(team=quota.team.name, kind=Kind(quota.kind) if quota.kind else None, gpus=quota.gpus)
