"""Builds the engine's ClusterSnapshot from the database. Reads only, with about a dozen short queries per cluster."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

from django.db.models import (
    Case,
    Count,
    FilteredRelation,
    FloatField,
    Func,
    Max,
    OuterRef,
    Q,
    Subquery,
    Sum,
    Value,
    When,
)
from django.db.models.functions import Coalesce

from jobs.core.gpu_models import SEPARATOR
from jobs.core.gpu_shares import MPS, WHOLE_GPU, profile_milli, whole_gpus
from jobs.core.lifecycle import FINAL_STATES, LIVE_STATES, USABLE_NODE_STATES, JobKind, State
from jobs.core.preemption_contract import ANY_TIME, CONTRACT_FIELDS, DAY, PreemptionContract, PreemptionFacts
from jobs.models import (
    Allocation,
    Attempt,
    Cluster,
    ClusterCommand,
    Dependency,
    DependencyCondition,
    Job,
    Maintenance,
    Node,
    Quota,
    Team,
)
from scheduling.engine.cluster import (
    MAINTENANCE,
    ClosedNode,
    ClusterSnapshot,
    NodeView,
    QuotaView,
    ResourceRequest,
    RunningJob,
    WaitingJob,
)
from scheduling.engine.history import UNKNOWN_S, SchedulingHistory
from scheduling.engine.run_time_estimates import PastJob, RunTimeEstimates
from scheduling.engine.windows import NodeWindow
from scheduling.models import PowerBudget
from scheduling.models.history import half_life_s
from scheduling.power.reads.budgets import with_power
from scheduling.power.reads.sleeps import remaining_boots
from scheduling.queries import gpu_speeds, history

PAST_JOBS_WINDOW = timedelta(days=30)
MAX_PAST_JOBS = 5000


@dataclass(kw_only=True)
class NodeUsage:
    """The resources that live attempts use on one node."""

    gpus: set[int] = field(default_factory=set)  # also those of which shares are held
    shared: dict[int, int] = field(default_factory=dict)  # GPU -> thousandths that shares hold
    cpus: int = 0
    memory_mb: int = 0
    jobs: dict[int, int] = field(default_factory=dict)  # job id -> number of whole GPUs
    shares: dict[int, int] = field(default_factory=dict)  # job id -> the GPU of which it has a share, or its MIG slice


# Of a job that holds nodes, and of its live attempt, or None without one
LIVE_COLUMNS = (
    *("pk", "public_id", "name", "user_id", "team_id", "kind"),
    *("predicted_s", "trees_predicted_s"),
    *("nodes", "gpus_per_node", "gpu_milli", "mig_profile", "cpus_per_node", "memory_per_node_mb"),
    *("priority", "preemptible", "deadline_at", "started_at", "time_limit", "array_id"),
    *CONTRACT_FIELDS,
    *("live__pk", "live__seen_running_at", "live__saved_at", "live__checkpoint_asked_at", "live__stop_state"),
    *("live__slowdown", "live__missing_since"),
)


@dataclass(kw_only=True)
class StoredPredictions:
    """Predicted run times by job id."""

    rolling_s: dict[int, float] = field(default_factory=dict)
    trees_s: dict[int, float] = field(default_factory=dict)

    def add(self, job: int, rolling_s: float, trees_s: float | None) -> None:
        self.rolling_s[job] = rolling_s
        if trees_s is not None:
            self.trees_s[job] = trees_s


def take_snapshot(cluster: Cluster, now: datetime) -> ClusterSnapshot:
    teams = _team_names()
    predictions = StoredPredictions()
    needs: dict[tuple[Any, ...], ResourceRequest] = {}
    waiting = tuple(_waiting(cluster, teams, predictions, needs))
    held, live = usage_by_node(cluster)
    nodes = list(Node.objects.filter(cluster=cluster))
    boots = remaining_boots(cluster, nodes, now)
    windows = tuple(_windows(cluster, nodes, now))
    attained, attained_by_speed = history.attained_service(cluster)
    picture = ClusterSnapshot(
        now=now,
        nodes=tuple(_node_view(node, held[node.pk], boots.get(node.pk, 0.0)) for node in nodes if node.is_schedulable),
        waiting=_with_expected_durations(cluster, waiting, now) if windows else waiting,
        running=tuple(_running(cluster, teams, held, live, now, predictions)),
        quotas=tuple(_quotas(cluster)),
        placement=cluster.placement,
        closed=tuple(_closed_node(node, held[node.pk]) for node in nodes if not node.is_schedulable),
        windows=windows,
        history=SchedulingHistory(
            half_life_s=half_life_s(cluster),
            usage=history.account_usage(cluster, now),
            attained=attained,
            attained_by_speed=attained_by_speed,
            predicted_s=predictions.rolling_s,
            trees_s=predictions.trees_s,
        ),
        speeds=gpu_speeds.speeds_of(cluster, waiting) if any(map(_has_several_models, needs.values())) else None,
    )
    return with_power(cluster, picture, nodes)


def running_snapshot(cluster: Cluster, now: datetime) -> ClusterSnapshot:
    """Return a snapshot of the nodes and the running jobs only."""
    held, live = usage_by_node(cluster)
    nodes = list(Node.objects.filter(cluster=cluster))
    picture = ClusterSnapshot(
        now=now,
        nodes=tuple(_node_view(node, held[node.pk]) for node in nodes if node.is_schedulable),
        closed=tuple(_closed_node(node, held[node.pk]) for node in nodes if not node.is_schedulable),
        running=tuple(_running(cluster, _team_names(), held, live, now, StoredPredictions())),
    )
    return with_power(cluster, picture, nodes)


def _team_names() -> dict[int, str]:
    return dict(Team.objects.values_list("pk", "name"))


def _places(held: Mapping[int, NodeUsage]) -> tuple[Mapping[int, Mapping[int, int]], Mapping[int, int]]:
    """Return the GPUs by node of each job, and the shared GPU of each job that has a share, by job id."""
    places: dict[int, dict[int, int]] = defaultdict(dict)
    for node_id, on in held.items():
        for job_id, gpus in on.jobs.items():
            places[job_id][node_id] = gpus
    return places, {job_id: gpu for on in held.values() for job_id, gpu in on.shares.items()}


def snapshot_version(cluster: Cluster) -> str:
    """Return a text that changes with the waiting jobs, running jobs, usable nodes, maintenance windows and power
    budgets. Takes a few short sums over indexes."""
    sums = (Count("pk"), Sum("pk"), Sum("priority"))
    waiting = Job.objects.waiting().filter(cluster=cluster, hold="").order_by().aggregate(*sums)
    running = Job.objects.live().filter(cluster=cluster).order_by().aggregate(*sums[:2])
    nodes = Node.objects.usable().filter(cluster=cluster).order_by().aggregate(*sums[:2])
    windows = Maintenance.objects.open().filter(cluster=cluster, cancelled_at=None).order_by()
    ahead = windows.aggregate(*sums[:2], Max("end_at"))
    power = PowerBudget.objects.filter(cluster=cluster).order_by().aggregate(Count("pk"), Sum("limit_w"))
    numbers = (*waiting.values(), *running.values(), *nodes.values(), *ahead.values(), *power.values())
    return ":".join([cluster.policy, *(str(number or 0) for number in numbers)])


def past_jobs(cluster: Cluster, now: datetime, **only: object) -> list[PastJob]:
    """Return the jobs that ended recently, the newest last. Run times are those on the first GPU model of a request."""
    rows = Job.objects.filter(cluster=cluster, started_at__isnull=False, ended_at__gte=now - PAST_JOBS_WINDOW, **only)
    predicted = Coalesce("trees_predicted_s", "predicted_s", Value(UNKNOWN_S))
    rows = rows.order_by("-ended_at").annotate(predicted=predicted, slowdown=_last_slowdown())
    columns = ("user_id", "name", "nodes", "gpus_per_node", "started_at", "ended_at", "time_limit", "kind")
    return [
        PastJob(
            user=str(row.user_id),
            title=row.name,
            gpus=row.nodes * row.gpus_per_node,
            ran_s=max(0.0, (row.ended_at - row.started_at).total_seconds()) / (row.slowdown or 1.0),
            limit_s=row.time_limit.total_seconds() if row.time_limit else math.inf,
            kind=row.kind,
            predicted_s=row.predicted,
        )
        for row in reversed(rows.values_list(*columns, "predicted", "slowdown", named=True)[:MAX_PAST_JOBS])
    ]


def _last_slowdown() -> Case:
    """That of the last attempt, which is looked up only for jobs that requested several GPU models."""
    attempts = Attempt.objects.filter(job=OuterRef("pk")).order_by("-number")
    found = When(gpu_model__contains=SEPARATOR, then=Subquery(attempts.values("slowdown")[:1]))
    return Case(found, default=Value(1.0), output_field=FloatField())


def usage_by_node(cluster: Cluster) -> tuple[Mapping[int, NodeUsage], list[Any]]:
    """Return the usage by node id, and rows of the jobs that hold nodes. CPUs and memory count once per node, not per
    GPU."""
    held: dict[int, NodeUsage] = defaultdict(NodeUsage)
    holders = list(Allocation.objects.live().filter(node__cluster=cluster).gpus_by_attempt_and_node())
    live = _live_jobs(cluster)
    jobs = {job.live__pk: job for job in live}
    for attempt_id, node_id, indices, milli in holders:
        gpus = [gpu for gpu in indices if gpu is not None]
        on = held[node_id]
        on.gpus.update(gpus)
        if milli < WHOLE_GPU:
            on.shared.update((gpu, on.shared.get(gpu, 0) + milli) for gpu in gpus)
        if (job := jobs.get(attempt_id)) is None:
            continue  # the attempt ended between the two queries; the next turn sees its GPUs as free
        has_share = milli < WHOLE_GPU or bool(job.mig_profile and gpus)
        on.jobs[job.pk] = 0 if has_share else len(gpus)
        if has_share:
            on.shares[job.pk] = gpus[0]
        on.cpus += job.cpus_per_node
        on.memory_mb += job.memory_per_node_mb
    return held, live


def _live_jobs(cluster: Cluster) -> list[Any]:
    """Return rows of `LIVE_COLUMNS`. There may be ten thousand, so they are read once per snapshot, as plain values."""
    attempt = FilteredRelation("attempts", condition=Q(attempts__ended_at__isnull=True))
    rows = Job.objects.filter(cluster=cluster, state__in=LIVE_STATES).alias(live=attempt).order_by()
    return list(rows.values_list(*LIVE_COLUMNS, named=True))


def unmet_dependencies(cluster: Cluster) -> dict[int, tuple[str, ...]]:
    """Return the public ids of the unfinished dependencies by id of the waiting job."""
    unmet: dict[int, list[str]] = defaultdict(list)
    rows = Dependency.objects.filter(job__cluster=cluster, job__state=State.PENDING).exclude(on__state__in=FINAL_STATES)
    for job_id, name in rows.values_list("job_id", "on__public_id"):
        unmet[job_id].append(name)
    return {job_id: tuple(names) for job_id, names in unmet.items()}


def unsatisfiable_dependencies(cluster: Cluster) -> list[tuple[Job, str]]:
    """Return the waiting jobs whose dependency can no longer be met, each with the reason."""
    rows = (
        Dependency.objects.filter(job__cluster=cluster, job__state=State.PENDING, on__state__in=FINAL_STATES)
        .exclude(after=DependencyCondition.ANY)
        .select_related("job", "on")
    )
    return [
        (row.job, f"The dependency {row.after} cannot be met: {row.on} ended with state {row.on.state}.")
        for row in rows
        if (row.on.state == State.COMPLETED) != (row.after == DependencyCondition.OK)
    ]


def _node_view(node: Node, held: NodeUsage, boot_s: float = 0.0) -> NodeView:
    taken = held.gpus.union(node.foreign_gpus)
    whole = whole_gpus(node.gpus, node.mig_slices)
    shared = tuple((gpu, _free_milli(node, gpu, milli)) for gpu, milli in sorted(held.shared.items()))
    is_odd = any(gpu not in held.shared for gpu in held.shares.values())
    slices = _slices(node, held) if node.mig_slices or is_odd else []
    return NodeView(
        id=node.pk,
        name=node.name,
        gpus=whole,
        free_gpus=tuple(gpu for gpu in range(whole) if gpu not in taken),
        free_cpus=node.cpus - held.cpus,
        free_memory_mb=node.memory_mb - held.memory_mb,
        gpu_model=node.gpu_model,
        nic_type=node.nic_type,
        leaf=node.leaf,
        pod=node.pod,
        shared_gpus=shared + tuple((gpu, free) for gpu, free, _ in slices),
        shards_per_gpu=node.shards_per_gpu,
        share_gres=node.share_gres,
        shares_one_gpu=node.share_gres == MPS,
        mig_profiles=("",) * len(shared) + tuple(profile for _, _, profile in slices) if slices else (),
        boot_s=boot_s,
    )


def _slices(node: Node, held: NodeUsage) -> list[tuple[int, int, str]]:
    """Return index, free thousandths and profile of each MIG slice. One that a job holds although the node no longer
    lists it has no profile. Of slices that others use, only the number is known, so they take the last free ones."""
    devices = node.slice_profiles
    foreign = Counter(devices[gpu] for gpu in node.foreign_gpus if gpu in devices)
    free = [gpu for gpu in devices if gpu not in held.gpus]
    for gpu in reversed(list(free)):
        if foreign[devices[gpu]]:
            foreign[devices[gpu]] -= 1
            free.remove(gpu)
    shown = devices | {gpu: "" for gpu in held.shares.values() if gpu not in devices and gpu not in held.shared}
    return [(gpu, profile_milli(devices[gpu]) if gpu in free else 0, shown[gpu]) for gpu in sorted(shown)]


def _free_milli(node: Node, gpu: int, held_milli: int) -> int:
    """Return 0 if jobs outside Acme use the GPU too or the node has lost it."""
    return 0 if gpu in node.foreign_gpus or gpu >= node.gpus else WHOLE_GPU - held_milli


def _closed_node(node: Node, held: NodeUsage) -> ClosedNode:
    """Return a closed node with the event that makes it usable: the end of a maintenance, a resume by an operator, or
    its return."""
    only_drained = node.state in USABLE_NODE_STATES and node.is_drained
    back = MAINTENANCE if node.maintenance_id else "resumed" if only_drained else "back"
    return ClosedNode(node=_node_view(node, held), back=back, why=node.reason)


def _windows(cluster: Cluster, nodes: Sequence[Node], now: datetime) -> Iterable[NodeWindow]:
    for row in Maintenance.objects.ahead(now).filter(cluster=cluster, cancelled_at=None):
        ids = [node.pk for node in nodes] if row.whole_cluster else row.nodes.values_list("pk", flat=True)
        excluded = set(row.excluded_nodes.values_list("pk", flat=True)) if row.begun_at else set()
        yield NodeWindow(
            name=row.name, start=row.start_at, end=row.end_at, lead=row.lead_time, nodes=frozenset(ids) - excluded
        )


def _with_expected_durations(
    cluster: Cluster, waiting: tuple[WaitingJob, ...], now: datetime
) -> tuple[WaitingJob, ...]:
    """Add the usual duration of similar past jobs to waiting jobs without a time limit."""
    users = {job.user for job in waiting if job.time_limit is None and job.title}
    if not users:
        return waiting
    durations = RunTimeEstimates(past_jobs(cluster, now, user__in=users))
    return tuple(job if job.time_limit else _with_expected_duration(job, durations) for job in waiting)


def _with_expected_duration(job: WaitingJob, durations: RunTimeEstimates) -> WaitingJob:
    usual = durations.usual_run_time_s(job)
    return job if usual is None else replace(job, usual=timedelta(seconds=usual))


# Column of `Job` and attribute of `JobSpec` → attribute of the engine's request
NEED_COLUMNS = {
    "nodes": "nodes",
    "gpus_per_node": "gpus",
    "gpu_milli": "gpu_milli",
    "share_gres": "share_gres",
    "mig_profile": "mig_profile",
    "cpus_per_node": "cpus",
    "memory_per_node_mb": "memory_mb",
    "gpu_model": "gpu_model",
    "nic_type": "nic_type",
    "required_node": "node",
}
NEED_OF = attrgetter(*NEED_COLUMNS)
WAITING_COLUMNS = (
    *NEED_COLUMNS,
    *("pk", "public_id", "name", "user_id", "team_id", "kind"),
    *("priority", "preemptible", "time_limit", "hold", "reason", "why", "power_budgets", "begin_at", "deadline_at"),
    *("array_id", "array_limit", "predicted_s", "trees_predicted_s", "submitted_epoch"),
)
# Django parses times in Python but numbers in C, which matters for ten thousand rows
SUBMITTED_EPOCH = Func(
    "submitted_at", template="EXTRACT(EPOCH FROM %(expressions)s)::float8", output_field=FloatField()
)
KIND_BY_VALUE = {kind.value: kind for kind in JobKind}


def _has_several_models(need: ResourceRequest) -> bool:
    return SEPARATOR in need.gpu_model


def _waiting(
    cluster: Cluster,
    teams: Mapping[int, str],
    predictions: StoredPredictions,
    needs: dict[tuple[Any, ...], ResourceRequest],
) -> Iterable[WaitingJob]:
    """Yield the waiting jobs, add their predicted run times to `predictions` and their requests to `needs`. They are
    read as plain rows: with ten thousand jobs, creating model objects took most of a turn."""
    rows = Job.objects.waiting().filter(cluster=cluster, foreign_id="").order_by()
    rows = rows.annotate(submitted_epoch=SUBMITTED_EPOCH)
    unmet = unmet_dependencies(cluster)
    for row in rows.values_list(*WAITING_COLUMNS, named=True):
        if row.predicted_s is not None:
            predictions.add(row.pk, row.predicted_s, row.trees_predicted_s)
        requested = row[: len(NEED_COLUMNS)]  # takes less time than `NEED_OF`, ten thousand times
        need = needs.get(requested) or needs.setdefault(requested, resource_need(row))
        yield WaitingJob(
            id=row.pk,
            name=row.public_id,
            team=teams[row.team_id],
            kind=KIND_BY_VALUE[row.kind],
            need=need,
            priority=row.priority,
            submitted_at=datetime.fromtimestamp(row.submitted_epoch, UTC),
            preemptible=row.preemptible,
            time_limit=row.time_limit,
            hold=row.hold,
            reason=row.reason,
            why=row.why,
            power_budgets=tuple(row.power_budgets),
            begin_at=row.begin_at,
            deadline_at=row.deadline_at,
            waits_for=unmet.get(row.pk, ()),
            array=row.array_id,
            array_limit=row.array_limit,
            user=str(row.user_id),
            title=row.name,
        )


def resource_need(job: object) -> ResourceRequest:
    """Return the request of a row or a `JobSpec`, which have `NEED_COLUMNS`."""
    return ResourceRequest(**dict(zip(NEED_COLUMNS.values(), NEED_OF(job), strict=True)))


def _preemption_times(cluster: Cluster, now: datetime) -> dict[int, tuple[datetime, ...]]:
    """Return when each live job with a daily maximum was preempted within the last day."""
    times: dict[int, list[datetime]] = defaultdict(list)
    live = Attempt.objects.filter(job__cluster=cluster, job__state__in=LIVE_STATES)
    limited = live.filter(job__preemptions_per_day__isnull=False).preempted().filter(ended_at__gt=now - DAY)
    for job, ended_at in limited.order_by().values_list("job", "ended_at"):
        times[job].append(ended_at)
    return {job: tuple(ends) for job, ends in times.items()}


def _running(
    cluster: Cluster,
    teams: Mapping[int, str],
    held: Mapping[int, NodeUsage],
    live: Sequence[Any],
    now: datetime,
    predictions: StoredPredictions,
) -> Iterable[RunningJob]:
    """Yield the running jobs, and add their predicted run times to `predictions`. A job whose cancellation hangs is not
    marked as stopping: its GPUs may never become free, so no other job may count on them. A job that the cluster does
    not show may have ended, so it is not preempted."""
    commands = ClusterCommand.objects.hanging().filter(cluster=cluster).order_by()
    hanging = set(commands.values_list("attempt", flat=True))
    places, shared_gpus = _places(held)
    # Few jobs have a daily maximum
    preempted_at = _preemption_times(cluster, now) if any(job.preemptions_per_day is not None for job in live) else {}
    for job in live:
        if job.predicted_s is not None:
            predictions.add(job.pk, job.predicted_s, job.trees_predicted_s)
        hangs = job.live__pk in hanging
        standing, asked_at = ANY_TIME, job.live__checkpoint_asked_at
        if job.preemptible or asked_at:  # others need no facts
            facts = PreemptionFacts(
                started_at=job.live__seen_running_at,
                saved_at=job.live__saved_at,
                asked_at=asked_at,
                preempted_at=preempted_at.get(job.pk, ()),
            )
            standing = PreemptionContract.of(job).standing(facts, now) if job.preemptible else standing
            asked_at = asked_at if facts.has_open_request else None
        yield RunningJob(
            id=job.pk,
            name=job.public_id,
            team=teams[job.team_id],
            kind=KIND_BY_VALUE[job.kind],
            gpus=job.nodes * job.gpus_per_node,
            priority=job.priority,
            preemptible=job.preemptible and not hangs and job.live__missing_since is None,
            deadline_at=job.deadline_at,
            started_at=job.started_at,
            time_limit=job.time_limit,
            array=job.array_id,
            places=places.get(job.pk, {}),
            gpu_milli=job.gpu_milli if job.pk in shared_gpus else 0,
            shared_gpu=shared_gpus.get(job.pk, 0),
            cpus=job.cpus_per_node,
            memory_mb=job.memory_per_node_mb,
            saved_at=job.live__saved_at,
            stopping=bool(job.live__stop_state and not hangs),
            standing=standing,
            asked_at=asked_at,
            user=str(job.user_id),
            title=job.name,
            slowdown=job.live__slowdown or 1.0,
        )


def _quotas(cluster: Cluster) -> Iterable[QuotaView]:
    for quota in Quota.objects.filter(cluster=cluster).select_related("team"):
        kind = JobKind(quota.kind) if quota.kind else None
        yield QuotaView(team=quota.team.name, kind=kind, gpus=quota.gpus, gpu_model=quota.gpu_model)
