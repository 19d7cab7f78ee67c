"""One replay: a trace, a pool of nodes and a policy in; what became of every job out. Pure.

Jobs that a replay cannot mean anything by are counted, not hidden: wider than their pool, or without GPUs where CPUs
are not counted. Virtual clusters share nothing, so each is replayed by itself and the outcomes are put together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jobs.core.lifecycle import JobKind
from jobs.traces.trace import Floats, Ints, Trace
from scheduling.engine.cluster import NodeView, QuotaView, ResourceRequest
from scheduling.engine.engine import Engine, EngineJob, RequestGroup
from scheduling.engine.gpu_accounts import QuotaOwner, QuotaUsage
from scheduling.engine.placements import PLACEMENTS, PlacementContext
from scheduling.engine.placements.gradient import Fragmentation
from scheduling.engine.policies import rules_factory
from scheduling.engine.room import NodeResources
from scheduling.replay.kernel import Arrivals, Outage, replay
from scheduling.replay.outages import CHECKPOINTING_KINDS, FaultRates, RandomOutages
from scheduling.replay.run_time_errors import expected_run_times
from scheduling.replay.usage_over_time import UsageSampler, UsageSeries

PREEMPTION_COSTS = ("none", "helios")
Ints64 = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
ProgressCallback = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class ReplaySetting:
    """What is replayed with; the same for all policies of a comparison."""

    nodes: int
    gpus_per_node: int = 8
    placement: str = "consolidate"
    preemption_cost: str = "none"
    cpus_per_node: int = 0  # 0: CPUs are not counted
    # Where borrowers exist these kinds of work borrow, as evaluation does in the Acme datacenter
    best_effort: tuple[str, ...] = (JobKind.EVALUATION.value,)
    quotas: tuple[QuotaView, ...] = ()  # a team is what the trace calls virtual cluster, partition or team
    policy_settings: Mapping[str, object] = field(default_factory=dict)
    # Between two checkpoints, for faults as for stops: who must leave his GPUs loses the work since the last one.
    # 0: who is asked to stop saves first and loses nothing; a fault asks nobody, and takes the interval of its rates
    checkpoint_s: float = 0.0
    memory_per_node_mb: int = 0  # 0: memory is not counted
    nodes_per_leaf: int = 0  # 0: all nodes are on one switch
    pools: Mapping[str, int] = field(default_factory=dict)  # virtual cluster -> its nodes; empty: one pool
    faults: FaultRates | None = None
    noise: str = "none"  # of expected run times
    seed: int = 0  # of faults and noise

    @property
    def gpus(self) -> int:
        return self.all_nodes * self.gpus_per_node

    @property
    def all_nodes(self) -> int:
        return (
            max(self.nodes, sum(self.pools.values()))
            if self.shares_one_pool
            else sum(self.pools.values()) or self.nodes
        )

    @property
    def shares_one_pool(self) -> bool:
        """Virtual clusters are guaranteed nodes of one pool, instead of having each their own."""
        return self.placement == "cells"


@dataclass(frozen=True, kw_only=True)
class PolicyRun:
    """What became of the jobs that were replayed: columns beside `trace`, which holds just these."""

    policy: str
    setting: ReplaySetting
    trace: Trace
    started_s: Floats
    ended_s: Floats
    held_s: Floats
    lost_s: Floats  # done, and done again after a fault
    stall_s: Floats  # what the checkpoints of a whole run take
    stops: Ints  # how often it had to leave its GPUs, whatever for
    faults: Ints  # how often because a node broke
    outages: tuple[Outage, ...]
    course: UsageSeries
    events: int
    too_wide: int = 0  # jobs larger than their pool
    no_gpus: int = 0  # jobs without GPUs, where CPUs are not counted
    homeless: int = 0  # jobs of a virtual cluster that the table does not name
    prediction_error_s: float | None = None


JOB_COLUMNS = ("started_s", "ended_s", "held_s", "lost_s", "stall_s", "stops", "faults")


def run_policy(trace: Trace, policy: str, setting: ReplaySetting, watch: ProgressCallback | None = None) -> PolicyRun:
    if not setting.pools or setting.shares_one_pool:
        return _replay_pool(trace, policy, setting, setting.all_nodes, watch)
    runs: list[PolicyRun] = []
    for number, (pool, nodes) in enumerate(setting.pools.items()):
        inside = np.flatnonzero(trace.pools.codes == _pool_code(trace, pool))
        seeded = replace(setting, seed=setting.seed * 1000 + number)
        runs.append(_replay_pool(trace.rows(inside), policy, seeded, nodes, watch))
    known = [_pool_code(trace, pool) for pool in setting.pools]
    homeless = int(np.sum(~np.isin(trace.pools.codes, known)))
    return replace(_combine_runs(runs), setting=setting, homeless=homeless)


def _pool_code(trace: Trace, pool: str) -> int:
    return trace.pools.words.index(pool) if pool in trace.pools.words else -1


def _combine_runs(runs: list[PolicyRun]) -> PolicyRun:
    order = np.argsort(np.concatenate([one.trace.submit_s for one in runs]), kind="stable")
    pieces: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in runs])[order] for name in JOB_COLUMNS}
    sums: dict[str, Any] = {name: sum(getattr(one, name) for one in runs) for name in ("events", "too_wide", "no_gpus")}
    return replace(
        runs[0],
        trace=_join_traces([one.trace for one in runs]).rows(order),
        outages=tuple(outage for one in runs for outage in one.outages),
        course=UsageSeries.sum_of_pools([one.course for one in runs]),
        **pieces,
        **sums,
    )


def _join_traces(traces: list[Trace]) -> Trace:
    """They are parts of one trace, so their words have the same codes."""
    numbers = ("submit_s", "runtime_s", "queue_s", "limit_s", "gpus", "nodes", "cpus", "memory_mb")
    columns: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in traces]) for name in numbers}
    for name in ("users", "pools", "kinds", "names", "states"):
        codes = np.concatenate([getattr(one, name).codes for one in traces])
        columns[name] = replace(getattr(traces[0], name), codes=codes)
    return replace(traces[0], ids=[job for one in traces for job in one.ids], **columns)


def _replay_pool(
    trace: Trace, policy: str, setting: ReplaySetting, nodes: int, watch: ProgressCallback | None
) -> PolicyRun:
    counted = setting.cpus_per_node > 0
    wide = _too_wide(trace, setting, nodes)
    bare = (trace.gpus == 0) & (not counted)
    trace_kept = trace if not (wide | bare).any() else trace.rows(np.flatnonzero(~(wide | bare)))
    stalls, storms = _outage_model(trace_kept, setting)
    ahead = placement_context(trace_kept, setting)
    engine = replay_engine(policy, setting, nodes, ahead)
    watcher = _usage_sampler(engine, trace_kept, ahead)
    if setting.checkpoint_s:
        engine.saves = jobs_with_checkpoints(trace_kept)
    coming = arrivals(trace_kept, engine, setting, stalls)
    outcome = replay(engine, coming, weather=storms, sample=watcher, watch=watch)
    return PolicyRun(
        policy=policy,
        setting=setting,
        trace=trace_kept,
        started_s=np.array(outcome.started),
        ended_s=np.array(outcome.ended),
        held_s=np.array(outcome.held_s),
        lost_s=np.array(storms.lost_s if storms else np.zeros(len(trace_kept))),
        stall_s=stalls,
        stops=np.array(outcome.stops, dtype=np.int32),
        faults=np.array(outcome.faults, dtype=np.int32),
        outages=tuple(outcome.outages),
        course=watcher.course(),
        events=outcome.events,
        too_wide=int(wide.sum()),
        no_gpus=int(bare.sum()),
        prediction_error_s=engine.rules.mean_error_s(),
    )


def replay_engine(policy: str, setting: ReplaySetting, nodes: int, ahead: PlacementContext | None = None) -> Engine:
    cost = helios_cost_s if setting.preemption_cost == "helios" else None
    name = "consolidate" if setting.placement == "count" else setting.placement
    placement = PLACEMENTS[name](ahead or PlacementContext(guarantees=setting.pools, elastic=True))
    rules = rules_factory(policy, setting.policy_settings)()
    stall_s = setting.faults.stall_s if setting.faults and setting.checkpoint_s else 0.0
    return Engine(
        NodeResources(replay_nodes(setting, nodes)),
        rules,
        placement=placement,
        books=QuotaUsage(setting.quotas, reserves=rules.reserves) if setting.quotas else None,
        preemption_cost_s=cost,
        checkpoint_s=setting.checkpoint_s + stall_s,
    )


def placement_context(trace: Trace, setting: ReplaySetting) -> PlacementContext:
    """What is usually asked for: the sizes of this very trace, as the authors of FGD take them."""
    shares = _gpus_on_each_node(trace.gpus, setting)
    if _counts_cpu_memory(setting):
        beside = (column.tolist() for column in _cpu_memory_per_node(trace, setting))
        counted = Counter(zip(shares, *beside, strict=True))
        wishes = {
            ResourceRequest(gpus=gpus, cpus=cpus, memory_mb=mb): times for (gpus, cpus, mb), times in counted.items()
        }
    else:
        wishes = {ResourceRequest(gpus=gpus, cpus=0): times for gpus, times in Counter(shares).items()}
    return PlacementContext(wishes=wishes, guarantees=setting.pools, elastic=True)


def _gpus_on_each_node(gpus: Ints, setting: ReplaySetting) -> list[int]:
    most: list[int] = (gpus if setting.placement == "count" else np.minimum(gpus, setting.gpus_per_node)).tolist()
    return most


def _counts_cpu_memory(setting: ReplaySetting) -> bool:
    """Whether anything but GPUs is counted."""
    return bool(setting.cpus_per_node or setting.memory_per_node_mb)


def _cpu_memory_per_node(trace: Trace, setting: ReplaySetting) -> tuple[Ints64, Ints64]:
    """CPUs and memory on each node of a job, as far as they are counted."""
    nobody: Ints64 = np.zeros(len(trace), dtype=np.int64)
    nodes = np.maximum(1, -(-trace.gpus // setting.gpus_per_node))
    cpus = np.rint(np.nan_to_num(trace.cpus) / nodes).astype(np.int64) if setting.cpus_per_node else nobody
    memory_mb = np.rint(np.nan_to_num(trace.memory_mb)).astype(np.int64) if setting.memory_per_node_mb else nobody
    return cpus, memory_mb


def _too_wide(trace: Trace, setting: ReplaySetting, nodes: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Larger than the pool, or asking more of a node than any has: behind one of these `fifo` waits for ever."""
    wide = trace.gpus > nodes * setting.gpus_per_node
    if _counts_cpu_memory(setting) and setting.placement != "tune":
        times = nodes if setting.placement == "count" else 1  # there one node has all
        cpus, memory_mb = _cpu_memory_per_node(trace, setting)
        wide |= cpus > (times * setting.cpus_per_node or 1 << 60)
        wide |= memory_mb > (times * setting.memory_per_node_mb or 1 << 60)
    return wide


def _outage_model(trace: Trace, setting: ReplaySetting) -> tuple[Floats, RandomOutages | None]:
    """What checkpoints cost each job, and what breaks."""
    if setting.faults is None:
        return np.zeros(len(trace)), None
    saves = jobs_with_checkpoints(trace)
    stalls = [
        setting.faults.stalls_s(runtime) if writes else 0.0
        for runtime, writes in zip(trace.runtime_s.tolist(), saves, strict=True)
    ]
    return np.array(stalls, dtype=np.float64), RandomOutages(setting.faults, saves, setting.seed)


def jobs_with_checkpoints(trace: Trace) -> list[bool]:
    saves = [word in CHECKPOINTING_KINDS for word in trace.kinds.words]
    return [saves[code] for code in trace.kinds.codes.tolist()]


def _usage_sampler(engine: Engine, trace: Trace, ahead: PlacementContext) -> UsageSampler:
    first, last = (float(trace.submit_s[0]), float(trace.submit_s[-1])) if len(trace) else (0.0, 0.0)
    return UsageSampler(engine, Fragmentation(ahead.wishes), first, last - first)


def replay_nodes(setting: ReplaySetting, nodes: int) -> list[NodeView]:
    """Equal nodes; `count` asks for no placement, so there all GPUs are in one."""
    count, times = (1, nodes) if setting.placement == "count" else (nodes, 1)
    gpus = setting.gpus_per_node * times
    return [
        NodeView(
            id=number,
            name=f"n{number}",
            gpus=gpus,
            free_gpus=tuple(range(gpus)),
            free_cpus=setting.cpus_per_node * times,
            free_memory_mb=setting.memory_per_node_mb * times,
            leaf=f"l{number // setting.nodes_per_leaf:05}" if setting.nodes_per_leaf else "",
        )
        for number in range(count)
    ]


def helios_cost_s(job: EngineJob) -> float:
    """What stopping and coming back costs, by width: HeliosArtifact's 7, 30 and 60 seconds."""
    return 7.0 if job.ask.gpus == 1 else 30.0 if job.ask.gpus <= 8 else 60.0


def arrivals(trace: Trace, engine: Engine, setting: ReplaySetting, stalls: Floats | None = None) -> Arrivals:
    takes = trace.runtime_s if stalls is None else trace.runtime_s + stalls
    return Arrivals(
        submit_s=trace.submit_s.tolist(),
        runtime_s=takes.tolist(),
        expected_s=expected_run_times(takes, setting.noise, setting.seed).tolist(),
        asks=_job_request_groups(trace, engine, setting),
        users=trace.users.codes.tolist(),
        names=trace.names.codes.tolist(),
    )


def _job_request_groups(trace: Trace, engine: Engine, setting: ReplaySetting) -> list[RequestGroup]:
    """Each job's, found once for all who ask alike."""
    rules = engine.rules
    owned = rules.claims or engine.books is not None
    cpus, memory_mb = _cpu_memory_per_node(trace, setting)
    columns: list[Ints | Ints64] = [trace.gpus, cpus, memory_mb]
    columns += [trace.users.codes] * rules.queues_by_account
    columns += [trace.kinds.codes] * owned
    columns += [trace.pools.codes] * bool(setting.shares_one_pool or setting.quotas)
    guaranteed = {_pool_code(trace, name): name for name in setting.pools} if setting.shares_one_pool else {}
    known: dict[int, RequestGroup] = {}
    asks = []
    for row, number in enumerate(_row_numbers(columns).tolist()):
        if (ask := known.get(number)) is None:
            of_pool = guaranteed.get(int(trace.pools.codes[row]), "")
            ask = known[number] = engine.ask(
                gang_request(int(trace.gpus[row]), setting, int(cpus[row]), int(memory_mb[row]), of_pool),
                _owner(trace, row, setting, borrow=rules.claims) if owned else None,
                account=int(trace.users.codes[row]) if rules.queues_by_account else 0,
            )
        asks.append(ask)
    return asks


def _row_numbers(columns: list[Ints | Ints64]) -> Ints64:
    """A number for each row; the same for rows that are equal in all columns, none of which is below 0."""
    numbers, different = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        width = int(column.max(initial=0)) + 1
        if different * width > 1 << 62:
            _, numbers = np.unique(numbers, return_inverse=True)
            different = len(numbers)
        numbers = numbers * width + column
        different *= width
    return numbers


def _owner(trace: Trace, row: int, setting: ReplaySetting, *, borrow: bool) -> QuotaOwner | None:
    """Whoever no quota tells from others needs no account of his own."""
    word = trace.kinds[row]
    if borrow and word in setting.best_effort:
        return QuotaOwner(team="", kind=JobKind.OTHER, preemptible=True)
    return QuotaOwner(team=trace.pools[row], kind=_kind_or_other(word)) if setting.quotas else None


def _kind_or_other(word: str) -> JobKind:
    return JobKind(word) if word in list(JobKind) else JobKind.OTHER


def gang_request(
    gpus: int, setting: ReplaySetting, cpus: int = 0, memory_mb: int = 0, of_pool: str = ""
) -> ResourceRequest:
    """A number of GPUs as a gang: whole nodes, and a rest on one more. CPUs and memory are on each node."""
    per_node = setting.gpus_per_node
    if setting.placement == "count" or gpus <= per_node:
        return ResourceRequest(gpus=gpus, cpus=cpus, memory_mb=memory_mb, pool=of_pool)
    whole, rest = divmod(gpus, per_node)
    return ResourceRequest(nodes=whole, gpus=per_node, rest=rest, cpus=cpus, memory_mb=memory_mb, pool=of_pool)
