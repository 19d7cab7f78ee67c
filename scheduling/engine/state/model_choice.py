"""Which jobs wait for a GPU model that they prefer, although another one that they accept is free.

A job takes its second model only if its predicted end there is earlier than after a wait for the first, or only a
little later. If it is predicted to reach its time limit on a model, it has no end there, because it would be stopped
before. This is decided before a turn, for the first jobs of the queue: a job that had better wait requests only the
models worth taking during this turn. Jobs ahead in the queue take their GPUs first, also those that come free later. So
if ten jobs wait for one H100, the later ones see that its turn comes late.

Only jobs with known speeds that have a prediction or a time limit choose. Others take the first of their models that is
free.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any, Final, NamedTuple, Protocol

from jobs.core.gpu_models import SEPARATOR, gpu_models
from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.job import EngineJob, QueueEntry, RequestGroup
from scheduling.engine.resources import GpuPlacement, NodeResources, NodeSet, members
from scheduling.engine.run_time_estimates import expected_remaining_s
from scheduling.engine.state.running_jobs import RunningJobs

MIN_GAIN_S: Final = 300.0  # a job waits for no less,
MIN_GAIN: Final = 0.1  # and for no smaller part of its run time
MAX_JOBS: Final = 200  # the first of the queue; jobs behind them take any model, as without speeds


class ModelChooser(Protocol):
    """What a choice needs of the `Engine`."""

    arrivals: list[QueueEntry]
    has_time_limits: bool
    resources: NodeResources
    running: RunningJobs

    def is_over_quota(self, group: RequestGroup) -> bool: ...

    def nodes_of_model(self, model: str) -> NodeSet: ...

    def request_group(self, need: ResourceRequest, owner: Any = None, account: object = None) -> RequestGroup: ...


class ModelWait(NamedTuple):
    """Why a job waits: it ends `sooner_s` earlier on `model`, although it waits for it, than on `other`. Infinite if it
    would reach its time limit on `other`."""

    model: str
    other: str
    sooner_s: float


class ModelOption(NamedTuple):
    """What a job may expect of one model, or of any if it names none."""

    model: str
    start: float
    end: float
    nodes: list[int]


def slowdown_at(need: ResourceRequest, places: GpuPlacement, resources: NodeResources) -> float:
    """How many times as long the job runs at these places as on its first model."""
    return need.slowdowns[gpu_models(need.gpu_model).index(resources.nodes[places[0][0]].gpu_model)]


def choose_models(engine: ModelChooser, now: float) -> dict[EngineJob, ModelWait]:
    """Let the arrivals request only the models worth taking now. Return the jobs that wait because of that."""
    for entry in engine.arrivals:
        job = entry[3]
        if job.wider_group:
            job.group, job.wider_group = job.wider_group, None
    first = engine.arrivals[:MAX_JOBS]
    if not any(len(entry[3].group.need.slowdowns) > 1 for entry in first):
        return {}
    expected = _ExpectedGpus(engine, now)
    waits: dict[EngineJob, ModelWait] = {}
    for entry in first:
        job = entry[3]
        need = job.group.need
        if not need.gpus or need.rest or engine.is_over_quota(job.group):
            continue
        options = _options(engine, expected, job)
        best = min(options, key=lambda option: option.end)
        if len(options) > 1:
            kept = _worth_taking(options, now)
            if len(kept) < len(options):
                job.wider_group = job.group
                job.group = _narrow_group(engine, job.group, [option.model for option in kept])
                if wait := _wait(options, kept, now):
                    waits[job] = wait
        if best.end < inf:
            expected.take(best, need.gpus)
    return waits


def _options(engine: ModelChooser, expected: _ExpectedGpus, job: EngineJob) -> list[ModelOption]:
    """What the job may expect of each model that it accepts, in its order of preference."""
    need = job.group.need
    worked_s = job.worked_s
    remaining_s = expected_remaining_s(job.predicted_s, worked_s, worked_s + job.expected_s)
    models = gpu_models(need.gpu_model) if len(need.slowdowns) > 1 and _is_run_time_known(job) else ("",)
    options = []
    for number, model in enumerate(models):
        start, found = expected.start(need, job.group.eligible_nodes & expected.nodes_of(model))
        run_s = remaining_s * need.slowdowns[number] if need.slowdowns else remaining_s
        times_out = engine.has_time_limits and job.predicted_s >= 0.0 and job.expected_s < run_s > remaining_s
        end = inf if times_out or start == inf else float(round(start + min(run_s, job.expected_s)))
        options.append(ModelOption(model, start, end, found))
    return _with_first_possible(options, job.expected_s)


def _is_run_time_known(job: EngineJob) -> bool:
    return job.predicted_s >= 0.0 or job.expected_s < inf


def _with_first_possible(options: list[ModelOption], limit_s: float) -> list[ModelOption]:
    """The options. If the job is predicted to reach its limit on each, it takes the first that it may ever get."""
    possible = [number for number, option in enumerate(options) if option.start < inf]
    if possible and min(option.end for option in options) == inf:
        first = options[possible[0]]
        options[possible[0]] = first._replace(end=float(round(first.start + limit_s)))
    return options


def _worth_taking(options: Sequence[ModelOption], now: float) -> list[ModelOption]:
    """The models on which the job ends earlier than on all that it prefers to them; also those on which it could start
    now and end hardly later, because predictions are not that exact."""
    kept: list[ModelOption] = []
    earliest = inf
    for option in options:
        if earliest == inf or option.end < earliest + _least_gain_s(option, now):
            kept.append(option)
            earliest = min(earliest, option.end)
    return kept


def _least_gain_s(option: ModelOption, now: float) -> float:
    """How much earlier a job must end elsewhere not to start on this model now."""
    return max(MIN_GAIN_S, MIN_GAIN * (option.end - option.start)) if option.start <= now and option.end < inf else 0.0


def _wait(options: Sequence[ModelOption], kept: Sequence[ModelOption], now: float) -> ModelWait | None:
    """The explanation, if the job could start at once on a model that it does not take."""
    best = min(kept, key=lambda option: option.end)
    left = [option for option in options if option.start <= now and option not in kept]
    if best.start <= now or not left:
        return None
    return ModelWait(best.model, left[0].model, left[0].end - best.end)


def _narrow_group(engine: ModelChooser, group: RequestGroup, models: Sequence[str]) -> RequestGroup:
    """The group of the same request for these models only."""
    need = group.need
    slowdowns = dict(zip(gpu_models(need.gpu_model), need.slowdowns, strict=True))
    narrow = replace(need, gpu_model=SEPARATOR.join(models), slowdowns=tuple(slowdowns[model] for model in models))
    return engine.request_group(narrow, group.owner, group.account)


class _ExpectedGpus:
    """When GPUs of each node are predicted to come free, as far as jobs ahead in the queue have not taken them."""

    def __init__(self, engine: ModelChooser, now: float) -> None:
        self._engine = engine
        self._resources = engine.resources
        self._now = now
        self._free = list(engine.resources.free)
        self._ends: dict[int, list[tuple[float, int]]] = {}  # node -> (time, GPUs), the first one first
        for job in engine.running.values():
            self._add_end(job)

    def _add_end(self, job: EngineJob) -> None:
        if job.group.need.gpus and job.places:
            end = _expected_end(job, self._now)
            for node, gpus in job.places:
                insort(self._ends.setdefault(node, []), (end, gpus))

    def nodes_of(self, model: str) -> NodeSet:
        """The usable nodes of the model; of all models if it is empty."""
        usable = self._resources.usable
        return self._engine.nodes_of_model(model) & usable if model else usable

    def start(self, need: ResourceRequest, nodes: NodeSet) -> tuple[float, list[int]]:
        """When the request fits on these nodes, and on which of them; infinite if it never does."""
        fitting = self._resources.fitting_nodes(need, nodes)
        times = [(self._node_time(node, need.gpus, bool(fitting >> node & 1)), node) for node in members(nodes)]
        times = sorted(entry for entry in times if entry[0] < inf)[: need.nodes]
        if len(times) < need.nodes:
            return inf, []
        return times[-1][0], [node for _, node in times]

    def _node_time(self, node: int, gpus: int, fits_now: bool) -> float:
        """When the node has this many GPUs free. One that has them and does not fit lacks CPUs, memory or power until
        a job ends there."""
        free, ends = self._free[node], self._ends.get(node, [])
        if fits_now and free >= gpus:
            return self._now
        for end, more in ends:
            free += more
            if free >= gpus:
                return end
        return inf

    def take(self, option: ModelOption, gpus: int) -> None:
        """Take the GPUs until the predicted end of the job that gets them."""
        for node in option.nodes:
            missing = gpus - self._free[node]
            self._free[node] = max(0, -missing)
            ends = self._ends.setdefault(node, [])
            while missing > 0 and ends:
                end, more = ends.pop(0)
                if more > missing:
                    ends.insert(0, (end, more - missing))
                missing -= more
            insort(ends, (option.end, gpus))


def _expected_end(job: EngineJob, now: float) -> float:
    """When a running job is predicted to end, in whole seconds. A prediction is for all its attempts on the first model
    that it requested, the limit for this attempt in real time."""
    run_s = now - job.began
    worked_s = job.worked_s + run_s / job.slowdown
    limit_s = worked_s + (job.expected_s - run_s) / job.slowdown
    return float(round(now + job.slowdown * expected_remaining_s(job.predicted_s, worked_s, limit_s)))
