"""Power budgets in the snapshot of a cluster, and what running jobs are predicted to draw of each. Reads only.

Without a budget this costs one query of an empty index. With one, a turn reads the peaks of running jobs and what is
learned about each distinct user, name and kind of its jobs: two queries by index.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from jobs.core.gpu_models import accepts_model
from jobs.core.lifecycle import NodeFlag
from jobs.models import Cluster, Node
from scheduling.engine.cluster import ClusterSnapshot, NodeView, ResourceRequest, RunningJob, WaitingJob
from scheduling.engine.cluster import PowerBudget as EngineBudget
from scheduling.models import AttemptPeak, BudgetScope, LearnedPeaks, PowerBudget
from scheduling.power.rules.predictions import PeakHistory, PowerForecast, idle_node_w, peak_scopes

PLACE_SCOPES = [scope for scope in BudgetScope.values if scope != BudgetScope.CLUSTER]
Similar = tuple[str, str, str]  # user id, name, kind


def with_power(cluster: Cluster, picture: ClusterSnapshot, nodes: Sequence[Node]) -> ClusterSnapshot:
    """Return the snapshot with the budgets of the cluster, the idle power of nodes that sleep, and the power that its
    jobs need. The same snapshot if there are no budgets."""
    budgets = list(PowerBudget.objects.filter(cluster=cluster))
    if not budgets:
        return picture
    powered = _Powered(cluster, picture, nodes)
    return replace(
        picture,
        nodes=tuple(powered.node(view) for view in picture.nodes),
        closed=tuple(replace(one, node=powered.node(one.node)) for one in picture.closed),
        waiting=tuple(powered.waiting(job) for job in picture.waiting),
        running=tuple(powered.running(job) for job in picture.running),
        power=tuple(powered.budget(row) for row in budgets),
    )


class _Powered:
    """Adds power to the parts of one snapshot."""

    def __init__(self, cluster: Cluster, picture: ClusterSnapshot, nodes: Sequence[Node]) -> None:
        self._cluster = cluster
        self._places = nodes_by_place(nodes)
        self._models = {node.pk: node.gpu_model for node in nodes if node.gpus}
        self._all_models = set(self._models.values())
        busy = {node for job in picture.running for node in job.places}
        self._idle_w = {node.pk: idle_node_w(node.physical_gpus, node.gpu_model) for node in nodes}
        self._asleep = {node.pk for node in nodes if NodeFlag.POWERED_DOWN in node.flags and node.pk not in busy}
        jobs: tuple[WaitingJob | RunningJob, ...] = (*picture.waiting, *picture.running)
        self._forecast = _forecast(cluster, {_similar(job) for job in jobs})
        self._peaks = _running_peaks(cluster)
        self._needs: dict[tuple[int, Similar], ResourceRequest] = {}
        self._equal: dict[ResourceRequest, ResourceRequest] = {}

    def node(self, view: NodeView) -> NodeView:
        return replace(view, wake_w=self._idle_w[view.id]) if view.id in self._asleep else view

    def budget(self, row: PowerBudget) -> EngineBudget:
        """The budget without the idle power of its nodes that are awake."""
        inside = self._places[row.scope, row.place]
        idle_w = sum(self._idle_w[node.pk] for node in inside if node.pk not in self._asleep)
        ids = None if row.scope == BudgetScope.CLUSTER else frozenset(node.pk for node in inside)
        watts, name = max(0, row.limit_w - idle_w), budget_name(row, self._cluster)
        return EngineBudget(name=name, watts=watts, nodes=ids, idle_w=idle_w)

    def waiting(self, job: WaitingJob) -> WaitingJob:
        """Jobs with equal requests and predictions share one request, which saves the engine comparisons."""
        similar = _similar(job)
        if (need := self._needs.get((id(job.need), similar))) is None:
            powered = _with_watts(job.need, self._forecast, similar, self._all_models)
            need = self._needs[id(job.need), similar] = self._equal.setdefault(powered, powered)
        return replace(job, need=need)

    def running(self, job: RunningJob) -> RunningJob:
        watts = self._forecast.job_w(
            peak_scopes(*_similar(job)),
            gpus=job.gpus,
            gpu_milli=job.gpu_milli,
            models={self._models[node] for node in job.places if node in self._models},
            measured_w=self._peaks.get(job.id, 0.0),
        )
        return replace(job, watts=watts)


def add_job_power(cluster: Cluster, picture: ClusterSnapshot, job: WaitingJob) -> WaitingJob:
    """Return a job that is not in the snapshot with the power that it needs, if the cluster has a budget."""
    if not picture.power:
        return job
    views = (*picture.nodes, *(one.node for one in picture.closed))
    models, similar = {view.gpu_model for view in views if view.gpus}, _similar(job)
    return replace(job, need=_with_watts(job.need, _forecast(cluster, {similar}), similar, models))


def budget_name(row: PowerBudget, cluster: Cluster) -> str:
    """How wait reasons name the budget."""
    return cluster.name if row.scope == BudgetScope.CLUSTER else f"{row.scope} {row.place}"


def nodes_by_place(nodes: Iterable[Node]) -> Mapping[tuple[str, str], list[Node]]:
    """The nodes by scope and place of a budget."""
    places: dict[tuple[str, str], list[Node]] = defaultdict(list)
    for node in nodes:
        places[str(BudgetScope.CLUSTER), ""].append(node)
        for scope in PLACE_SCOPES:
            places[scope, getattr(node, scope)].append(node)
    return places


def _similar(job: WaitingJob | RunningJob) -> Similar:
    return job.user, job.title, str(job.kind)


def _with_watts(need: ResourceRequest, forecast: PowerForecast, similar: Similar, models: set[str]) -> ResourceRequest:
    may_get = {model for model in models if accepts_model(need.gpu_model, model)}
    scopes = peak_scopes(*similar)
    watts = forecast.job_w(scopes, gpus=need.total_gpus, gpu_milli=need.gpu_milli, models=may_get)
    return replace(need, watts=watts)


def _forecast(cluster: Cluster, jobs: Iterable[Similar]) -> PowerForecast:
    scopes = {scope for similar in jobs for scope in peak_scopes(*similar)}
    return PowerForecast(PeakHistory(LearnedPeaks.objects.counts(cluster, scopes)))


def _running_peaks(cluster: Cluster) -> Mapping[int, float]:
    """Return the highest power per GPU so far by id of the running job."""
    live = AttemptPeak.objects.filter(is_learned=False, attempt__ended_at=None, attempt__job__cluster=cluster)
    return dict(live.values_list("attempt__job", "gpu_w"))
