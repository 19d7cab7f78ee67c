"""Estimate when waiting jobs start, by replaying the snapshot forward with the real engine. Pure and seeded.

Run times are drawn from `RunTimeEstimates`; several draws give a median and a late estimate (P90). No further jobs
arrive in the replay, so estimates are early under policies that let new jobs go first. Under `fifo` and `easy` new jobs
do not affect those before them.

A job that starts on a node that sleeps has the boot added. Four simplifications keep it fast with many waiting jobs:
  * Time has a grid of a few hundred steps until the end of the queue, because turns are the main cost. Run times are
    rounded up or down to steps at random, so the mean stays the same.
  * A quota that no job can reach is ignored, so the jobs of its team need no queues of their own.
  * If no job needs more CPUs or memory per GPU than every node has, these cannot be short and are ignored.
  * If gangs would be placed on very many nodes, all nodes with equal hardware are merged into one. Estimates are then
    early for gangs that wait for whole nodes, for boots, and where racks have power budgets of their own; the measured
    past error shows by how much.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from jobs.core.gpu_shares import WHOLE_GPU
from jobs.core.lifecycle import JobKind
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
from scheduling.engine.engine import PolicyRules
from scheduling.engine.gpu_accounts import QuotaOwner
from scheduling.engine.history import SchedulingHistory
from scheduling.engine.job import EngineJob, RequestGroup
from scheduling.engine.live import SnapshotEngine
from scheduling.engine.run_time_estimates import QUANTILE_COUNT, RunTimeEstimates
from scheduling.whatif.replay.kernel import Arrivals, ReplayCallbacks, replay

GRID_STEPS = 100  # steps to the end of the queue
MAX_REPLAYED_JOBS = 60_000  # in all draws together
MIN_DRAWS, MAX_DRAWS = 4, 20  # even numbers, because draws come in pairs

RunTimeTable = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ExactReplayLimits:
    """Up to these limits the replay is exact."""

    jobs: int = 1000  # with more, time has a grid
    placed_nodes: int = 20_000  # nodes of all waiting and running jobs; with more, nodes are merged


@dataclass(frozen=True, kw_only=True)
class StartEstimate:
    """The median and the late estimate, and how many times as long the job then runs as on its first GPU model."""

    p50: datetime
    p90: datetime
    slowdown: float = 1.0


def start_estimates(
    snapshot: ClusterSnapshot,
    rules: Callable[[], PolicyRules],
    *,
    durations: RunTimeEstimates | None = None,
    draws: int = 0,
    seed: int = 0,
    limits: ExactReplayLimits = ExactReplayLimits(),
) -> dict[int, StartEstimate]:
    """Estimates by job id. Jobs that are held, not yet due, dependent, or can never fit have none."""
    forward = _ForwardReplay(snapshot, rules, durations or RunTimeEstimates(), limits)
    draws = draws or min(MAX_DRAWS, max(MIN_DRAWS, MAX_REPLAYED_JOBS // max(1, forward.jobs) // 2 * 2))
    # Every second draw mirrors the one before: long run times in one are short in the other. A pair lies on both sides
    # of the median, so four draws estimate it and the P90 as well as five independent ones
    times = np.sort(np.array([forward.once(_MirroredRandom(seed, draw)) for draw in range(draws)]), axis=0)
    middle = (times[(draws - 1) // 2] + times[draws // 2]) / 2
    late = times[min(draws - 1, math.ceil(draws * 0.9) - 1)]
    always = np.isfinite(times[-1])  # nan sorts last: such a job did not start in at least one draw
    return {
        job.id: StartEstimate(
            p50=_start_datetime(p50, snapshot.now),
            p90=_start_datetime(p90, snapshot.now),
            slowdown=forward.mean_slowdown(job.id, draws),
        )
        for job, p50, p90, always_starts in zip(forward.waiting, middle.tolist(), late.tolist(), always, strict=True)
        if always_starts
    }


class _MirroredRandom:
    """Random numbers from 0 to 1 for one draw. Odd draws get the mirrored numbers of the draw before."""

    def __init__(self, seed: int, draw: int) -> None:
        self._dice = np.random.default_rng((seed, draw // 2))
        self._mirrored = draw % 2 == 1

    def __call__(self, count: int) -> NDArray[np.float64]:
        drawn = self._dice.random(count)
        return np.nextafter(1.0, 0.0) - drawn if self._mirrored else drawn


class _ForwardReplay:
    """Replays the snapshot. Everything that is equal in all draws is computed once."""

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        rules: Callable[[], PolicyRules],
        durations: RunTimeEstimates,
        limits: ExactReplayLimits,
    ) -> None:
        if snapshot.placement != "cells":  # `cells` assigns nodes to every quota, reachable or not
            snapshot = replace(snapshot, quotas=binding_quotas(snapshot, rules().reserves))
        snapshot_engine = SnapshotEngine(snapshot, rules())
        self._snapshot_engine = snapshot_engine
        self._rules = rules
        self._now = float(math.floor(snapshot.now.timestamp()))
        self.waiting = [waiting_job for _, waiting_job in snapshot_engine.jobs]
        self._running = sorted(snapshot.running, key=lambda job: (job.started_at or snapshot.now, job.id))
        self.jobs = len(self.waiting) + len(self._running)
        self._smaller = _SnapshotReducer(
            counts=_placed_node_count(snapshot) > limits.placed_nodes,
            lean=not snapshot_engine.engine.rules.queues_by_account and only_gpus_are_short(snapshot),
        )
        self._empty = self._smaller.reduced_snapshot(snapshot, self._running)
        # Teams without a quota are equivalent, so their jobs can share a queue
        teams_apart = {quota.team for quota in snapshot.quotas}
        self._apart = (
            teams_apart if not snapshot_engine.engine.rules.queues_by_account else {job.team for job in self.waiting}
        )
        self._group_keys: dict[tuple[ResourceRequest, QuotaOwner], int] = {}
        numbers: dict[RequestGroup, int] = {}  # jobs that share a queue in the snapshot share one in the replay
        for job, waiting_job in snapshot_engine.jobs:
            if job.group not in numbers:
                numbers[job.group] = self._group_number(waiting_job)
        self._group_of = [numbers[job.group] for job, _ in snapshot_engine.jobs]
        self._expected = [job.expected_s for job, _ in snapshot_engine.jobs]
        self._bands = [job.band for job, _ in snapshot_engine.jobs]
        self._predicted_s = [job.predicted_s for job, _ in snapshot_engine.jobs]
        self._deadlines = [job.deadline for job, _ in snapshot_engine.jobs]
        self._attained = [job.attained for job, _ in snapshot_engine.jobs]
        self._worked_s = [job.worked_s for job, _ in snapshot_engine.jobs]
        known = snapshot.history or SchedulingHistory()
        trees = snapshot_engine.engine.rules.uses_trees
        past = [max(0.0, self._now - (job.started_at or snapshot.now).timestamp()) for job in self._running]
        self._runtimes = _table(
            [durations.waiting(job, known.prediction_s(job.id, trees=trees)) for job in self.waiting]
        )
        self._left = _table(
            [
                durations.running(job, ran_s, known.prediction_s(job.id, trees=trees))
                for job, ran_s in zip(self._running, past, strict=True)
            ]
        )
        self._slowdowns: dict[int, float] = {}  # job id -> sum over all draws; only for jobs that choose a GPU model
        self._chooses = snapshot_engine.engine.chooses_models
        self._grid = self._grid_step(sum(node.gpus for node in snapshot.nodes)) if self.jobs > limits.jobs else 0

    def mean_slowdown(self, job_id: int, draws: int) -> float:
        """The mean over all draws of a job that started in each."""
        return self._slowdowns[job_id] / draws if job_id in self._slowdowns else 1.0

    def _group_number(self, waiting_job: WaitingJob) -> int:
        owner = QuotaOwner.of(waiting_job)
        if waiting_job.team not in self._apart and not owner.array_limit:
            owner = QuotaOwner(team="", kind=owner.kind, preemptible=owner.preemptible)
        return self._group_keys.setdefault(
            (self._smaller.need(self._snapshot_engine.need(waiting_job)), owner), len(self._group_keys)
        )

    def _grid_step(self, gpus: int) -> int:
        """The step of the time grid in whole seconds, so that sums are exact and jobs that end together do so
        exactly.
        """
        requested = np.array([job.need.charged_milli / WHOLE_GPU for job in self.waiting])
        held = np.array([job.charged_milli / WHOLE_GPU for job in self._running])
        work = float(requested @ self._runtimes.mean(axis=1)) + float(held @ self._left.mean(axis=1))
        return max(1, round(work / max(1, gpus) / GRID_STEPS))

    def once(self, dice: _MirroredRandom) -> Sequence[float]:
        """Start times of the waiting jobs in one draw; nan for jobs that do not start."""
        rules = self._rules()
        state = SnapshotEngine(self._empty, rules, requeues=not rules.preempts)
        remaining = self._draw_run_times(self._left, dice)
        running = state.adopt(self._empty.running, len(self.waiting))
        for job, more in zip(running, remaining, strict=True):
            job.began, job.remaining_s = self._now, more / job.slowdown
        groups = [state.engine.request_group(need, owner, owner.team) for need, owner in self._group_keys]
        count = len(self.waiting)
        arrivals = Arrivals(
            submit_s=[self._now] * count,
            runtime_s=self._draw_run_times(self._runtimes, dice),
            expected_s=self._expected,
            groups=[groups[number] for number in self._group_of],
            users=[0] * count,
            names=[0] * count,
            similar=[0] * count,
            kinds=[0] * count,
            bands=self._bands,
            predicted_s=self._predicted_s,
            attained=self._attained,
            worked_s=self._worked_s,
            deadlines=self._deadlines,
        )
        boots, delays = dict(state.boots), dict[int, float]()

        def wait_for_boot(job: EngineJob, _: float) -> None:
            """The first job on a node that sleeps waits for its boot; later ones find it awake."""
            delay = max((boots.pop(number, 0.0) for number, _ in job.places or ()), default=0.0)
            if delay and job.runs == 1:
                delays[job.number] = delay
            job.remaining_s += delay / job.slowdown

        def run_on_model(job: EngineJob, now: float) -> None:
            """The limit ends a job that is too slow on its model."""
            if len(job.group.need.slowdowns):
                job.remaining_s = min(job.remaining_s, job.expected_s / job.slowdown)
                job_id = self.waiting[job.number].id
                self._slowdowns[job_id] = self._slowdowns.get(job_id, 0.0) + job.slowdown * (job.runs == 1)
            wait_for_boot(job, now)

        on_start = run_on_model if self._chooses else wait_for_boot if boots else None
        callbacks = ReplayCallbacks(on_start=on_start)
        outcome = replay(
            state.engine, arrivals, running=running, victims_stop_first=rules.preempts, callbacks=callbacks
        )
        for number, delay in delays.items():
            outcome.started[number] += delay
        return outcome.started[:count]

    def _draw_run_times(self, table: RunTimeTable, dice: _MirroredRandom) -> list[float]:
        drawn = table[np.arange(len(table)), (dice(len(table)) * QUANTILE_COUNT).astype(np.int64)]
        if self._grid:
            drawn = np.floor(drawn / self._grid + dice(len(table))) * self._grid
        rounded: list[float] = drawn.tolist()
        return rounded


def binding_quotas(snapshot: ClusterSnapshot, reserves: Container[JobKind]) -> tuple[QuotaView, ...]:
    """The quotas that matter: those that reserve GPUs for their owners, and those that a team could exceed.

    A team can hold at most what it holds and waits for, and at most what the cluster has.
    """
    nodes = {node.id: node.gpus for node in (*snapshot.nodes, *snapshot.nodes_in_maintenance)}
    elsewhere = sum(gpus for job in snapshot.running for node, gpus in job.places.items() if node not in nodes)
    all_gpus = sum(nodes.values()) + elsewhere
    reachable: Counter[tuple[str, JobKind | None]] = Counter()
    requests = [(job.team, job.kind, job.charged_milli) for job in snapshot.running if not job.preemptible]
    requests += [(job.team, job.kind, job.need.charged_milli) for job in snapshot.waiting if not job.preemptible]
    for team, kind, milli in requests:
        reachable[team, kind] += milli
        reachable[team, None] += milli
    return tuple(
        quota
        for quota in snapshot.quotas
        if quota.kind in reserves
        or quota.gpus * WHOLE_GPU < min(reachable[quota.team, quota.kind], all_gpus * WHOLE_GPU)
    )


def _placed_node_count(snapshot: ClusterSnapshot) -> int:
    return sum(job.need.nodes for job in snapshot.waiting) + sum(len(job.places) for job in snapshot.running)


class _SnapshotReducer:
    """Simplifies requests and nodes with little effect on the result: no CPUs and memory, one node per
    hardware type.
    """

    def __init__(self, *, counts: bool, lean: bool) -> None:
        self._counts = counts
        self._lean = lean
        self._needs: dict[ResourceRequest, ResourceRequest] = {}

    def need(self, need: ResourceRequest) -> ResourceRequest:
        if (reduced := self._needs.get(need)) is None:
            reduced = replace(need, cpus=0, memory_mb=0) if self._lean else need
            reduced = self._needs[need] = _merge_request(reduced) if self._counts else reduced
        return reduced

    def reduced_snapshot(self, snapshot: ClusterSnapshot, running: list[RunningJob]) -> ClusterSnapshot:
        """The snapshot without waiting jobs."""
        if not self._counts:
            reduced = [replace(job, cpus=0, memory_mb=0) for job in running] if self._lean else running
            return replace(snapshot, waiting=(), running=tuple(reduced))
        shut = {node.id for node in snapshot.nodes_in_maintenance}
        makes: dict[tuple[object, ...], list[NodeView]] = {}
        for node in (*snapshot.nodes, *snapshot.nodes_in_maintenance):
            within = tuple(
                node.id in window.nodes for window in snapshot.windows
            )  # so that a maintenance covers all of a merged node or nothing
            make = node.gpu_model, node.nic_type, node.shards_per_gpu, node.share_gres, bool(node.mig_profiles)
            makes.setdefault((*make, node.id in shut, within), []).append(node)
        home = {
            node.id: (number, place) for number, nodes in enumerate(makes.values()) for place, node in enumerate(nodes)
        }
        merged = [(_merge_nodes(number, nodes), nodes[0].id in shut) for number, nodes in enumerate(makes.values())]
        return replace(
            snapshot,
            nodes=tuple(node for node, is_shut in merged if not is_shut),
            closed=tuple(ClosedNode(node=node, back=MAINTENANCE) for node, is_shut in merged if is_shut),
            windows=tuple(
                replace(maintenance, nodes=frozenset(home[node][0] for node in maintenance.nodes if node in home))
                for maintenance in snapshot.windows
            ),
            power=tuple(budget for budget in snapshot.power if budget.nodes is None),
            waiting=(),
            running=tuple(_merge_running_job(job, home, lean=self._lean) for job in running),
        )


def _merge_nodes(number: int, nodes: list[NodeView]) -> NodeView:
    first = nodes[0]
    shared = [(_merged_gpu(place, gpu), left) for place, node in enumerate(nodes) for gpu, left in node.shared_gpus]
    return NodeView(
        id=number,
        name=first.gpu_model,
        gpus=sum(node.gpus for node in nodes),
        free_gpus=tuple(range(sum(len(node.free_gpus) for node in nodes))),
        free_cpus=sum(node.free_cpus for node in nodes),
        free_memory_mb=sum(node.free_memory_mb for node in nodes),
        gpu_model=first.gpu_model,
        nic_type=first.nic_type,
        shared_gpus=tuple(shared),
        shards_per_gpu=first.shards_per_gpu,
        share_gres=first.share_gres,
        shares_one_gpu=first.shares_one_gpu and len(nodes) == 1,  # several merged nodes have one each
        mig_profiles=tuple(profile for node in nodes for profile in node.mig_profiles),
    )


def _merged_gpu(place: int, gpu: int) -> int:
    """The index of a shared GPU in the merged node. Only what is left on the GPU matters there."""
    return (place << 16) + gpu


def _merge_request(need: ResourceRequest) -> ResourceRequest:
    node_count = need.nodes + bool(need.rest)
    whole = replace(need, nodes=1, gpus=need.total_gpus, rest=0, node="")
    return replace(whole, cpus=node_count * need.cpus, memory_mb=node_count * need.memory_mb)


def _merge_running_job(job: RunningJob, home: Mapping[int, tuple[int, int]], *, lean: bool) -> RunningJob:
    places: dict[int, int] = {}
    shared_gpu = job.shared_gpu
    for node, gpus in job.places.items():
        if node in home:
            merged, place = home[node]
            places[merged] = places.get(merged, 0) + gpus
            shared_gpu = _merged_gpu(place, job.shared_gpu)
    node_count = 0 if lean else len(job.places)
    return replace(
        job,
        places=places,
        shared_gpu=shared_gpu,
        cpus=node_count * job.cpus,
        memory_mb=node_count * job.memory_mb,
    )


def only_gpus_are_short(snapshot: ClusterSnapshot) -> bool:
    """Whether no job needs more CPUs or memory per GPU than every node has per GPU."""
    requests = [(job.need.gpus, job.need.cpus, job.need.memory_mb) for job in snapshot.waiting]
    requests += [(_min_node_gpus(job), job.cpus, job.memory_mb) for job in snapshot.running]
    if any(not gpus and (cpus or memory) for gpus, cpus, memory in requests) or any(
        job.need.rest for job in snapshot.waiting
    ):
        return False
    cpus = max((cpus / gpus for gpus, cpus, _ in requests if gpus), default=0.0)
    memory_mb = max((memory / gpus for gpus, _, memory in requests if gpus), default=0.0)
    held_cpus: dict[int, int] = {}
    held_mb: dict[int, int] = {}
    for job in snapshot.running:
        for node in job.places:
            held_cpus[node] = held_cpus.get(node, 0) + job.cpus
            held_mb[node] = held_mb.get(node, 0) + job.memory_mb
    return all(
        node.free_cpus + held_cpus.get(node.id, 0) >= cpus * node.gpus
        and node.free_memory_mb + held_mb.get(node.id, 0) >= memory_mb * node.gpus
        for node in snapshot.nodes
    )


def _min_node_gpus(job: RunningJob) -> int:
    return min(job.places.values(), default=0)


def _table(rows: list[RunTimeTable]) -> RunTimeTable:
    return np.array(rows) if rows else np.zeros((0, QUANTILE_COUNT))


def _start_datetime(at: float, now: datetime) -> datetime:
    return max(now, datetime.fromtimestamp(at, UTC))
