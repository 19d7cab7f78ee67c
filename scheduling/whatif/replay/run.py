"""One replay: a trace, a pool of nodes and a policy in; the outcome of every job out. Pure.

Jobs that a replay cannot handle are counted, not hidden: jobs wider than their pool, or without GPUs if CPUs are not
counted. Virtual clusters share nothing, so each is replayed separately and the outcomes are merged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jobs.core.lifecycle import JobKind
from jobs.traces.trace import NUMBER_COLUMNS, WORD_COLUMNS, EncodedColumn, Floats, Ints, Trace
from scheduling.engine.blending import MIN_TRAINING_JOBS, BlendedPredictor
from scheduling.engine.cluster import NodeView, PowerBudget, QuotaView, ResourceRequest
from scheduling.engine.engine import ChangedSpeeds, Engine, EngineSetting, PolicyRules
from scheduling.engine.gpu_accounts import QuotaOwner, QuotaUsage
from scheduling.engine.job import EngineJob, RequestGroup
from scheduling.engine.placements import PLACEMENTS, PlacementContext
from scheduling.engine.placements.gradient import Fragmentation
from scheduling.engine.predicting import BoundedPredictor, RollingPredictor, name_without_numbers
from scheduling.engine.resources import NodeResources
from scheduling.power.rules.gpu_clocks import PowerFleet
from scheduling.whatif.replay.as_live import StartRecord, start_record, teams, time_limits
from scheduling.whatif.replay.gpu_types import ReplayGpuTypes
from scheduling.whatif.replay.job_profiles import PackedTime, ProfileTable
from scheduling.whatif.replay.kernel import Arrivals, Outage, ReplayCallbacks, replay
from scheduling.whatif.replay.outages import CHECKPOINTING_KINDS, FaultRates, RandomOutages
from scheduling.whatif.replay.policies import policy_rules
from scheduling.whatif.replay.power.setting import JobPower, PowerSetting, Watts, job_power
from scheduling.whatif.replay.run_time_errors import expected_run_times
from scheduling.whatif.replay.usage_over_time import UsageSampler, UsageSeries

PREEMPTION_COSTS = ("none", "helios")
Ints64 = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
JobMask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
ProgressCallback = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class ReplaySetting:
    """The settings of a replay, shared by all policies that are compared."""

    nodes: int
    gpus_per_node: int = 8
    placement: str = "consolidate"
    preemption_cost: str = "none"
    cpus_per_node: int = 0  # 0: CPUs are not counted
    # Kinds of jobs that borrow, if the policy has borrowers; evaluations do so in the Acme datacenter
    best_effort: tuple[str, ...] = (JobKind.EVALUATION.value,)
    quotas: tuple[QuotaView, ...] = ()  # a team is a virtual cluster, partition or team in the trace
    policy_settings: Mapping[str, object] = field(default_factory=dict)
    # Between two checkpoints: a job that is stopped or interrupted by a fault loses the work since the last one.
    # 0: jobs save before they are stopped and lose nothing; faults then use the interval of their rates
    checkpoint_s: float = 0.0
    memory_per_node_mb: int = 0  # 0: memory is not counted
    nodes_per_leaf: int = 0  # 0: all nodes are on one switch
    pools: Mapping[str, int] = field(default_factory=dict)  # virtual cluster -> its nodes; empty: one pool
    faults: FaultRates | None = None
    noise: str = "none"  # error of expected run times
    seed: int = 0  # seed of faults and noise
    load: int = 100  # percent: 200 submits the same jobs in half the time
    as_live: bool = False  # with the knowledge of a live cluster, see `as_live`
    min_training_jobs: int = MIN_TRAINING_JOBS  # ended jobs needed before trees are trained
    power: PowerSetting | None = None
    profiles: ProfileTable | None = None  # for policies that pack
    gpu_types: ReplayGpuTypes | None = None  # None: all GPUs are equal

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
    def power_budget(self) -> PowerBudget | None:
        return self.power.budget(self.power_fleet) if self.power else None

    @property
    def power_fleet(self) -> PowerFleet:
        return PowerFleet(nodes=self.all_nodes, gpus_per_node=self.gpus_per_node)

    @property
    def shares_one_pool(self) -> bool:
        """Whether virtual clusters are guaranteed nodes of one pool instead of having separate pools."""
        return self.placement == "cells"


@dataclass(frozen=True, kw_only=True)
class PolicyRun:
    """The outcomes of the replayed jobs as columns next to `trace`, which contains exactly these jobs."""

    policy: str
    setting: ReplaySetting
    trace: Trace
    started_s: Floats
    ended_s: Floats
    held_s: Floats
    lost_s: Floats  # work repeated after faults
    stall_s: Floats  # time spent on checkpoints in a complete run
    stops: Ints  # how often it was stopped, for any reason
    faults: Ints  # how often because of a node failure
    outages: tuple[Outage, ...]
    course: UsageSeries
    events: int
    too_wide: int = 0  # jobs larger than their pool, or than its power budget
    no_gpus: int = 0  # jobs without GPUs, where CPUs are not counted
    homeless: int = 0  # jobs of a virtual cluster that the table does not name
    prediction_error_s: float | None = None
    starts: tuple[StartRecord, ...] = ()  # only with `as_live`
    power: JobPower | None = None  # only with `ReplaySetting.power`
    active_nodes: Floats = field(default_factory=lambda: np.empty((0, 2)))  # time, nodes with jobs; only for sleep
    packed: PackedTime | None = None  # only for policies that pack


JOB_COLUMNS = ("started_s", "ended_s", "held_s", "lost_s", "stall_s", "stops", "faults")


def run_policy(
    trace: Trace, policy: str, setting: ReplaySetting, on_progress: ProgressCallback | None = None
) -> PolicyRun:
    """Replay the trace under one policy, separately for each virtual cluster unless they share one pool."""
    trace = with_load(trace, setting.load)
    if not setting.pools or setting.shares_one_pool:
        return _replay_pool(trace, policy, setting, setting.all_nodes, on_progress)
    runs: list[PolicyRun] = []
    for number, (pool, nodes) in enumerate(setting.pools.items()):
        inside = np.flatnonzero(trace.pools.codes == _pool_code(trace, pool))
        seeded = replace(setting, seed=setting.seed * 1000 + number)
        runs.append(_replay_pool(trace.rows(inside), policy, seeded, nodes, on_progress))
    pool_codes = [_pool_code(trace, pool) for pool in setting.pools]
    homeless = int(np.sum(~np.isin(trace.pools.codes, pool_codes)))
    return replace(_combine_runs(runs), setting=setting, homeless=homeless)


def with_load(trace: Trace, load: int) -> Trace:
    """The same jobs, submitted at `load` percent of the rate of the trace."""
    if load == 100 or not len(trace):
        return trace
    first = float(trace.submit_s[0])
    moved = first + (trace.submit_s - first) * (100 / load)
    return replace(trace, submit_s=moved, deadline_s=trace.deadline_s + moved - trace.submit_s)


def _pool_code(trace: Trace, pool: str) -> int:
    return trace.pools.words.index(pool) if pool in trace.pools.words else -1


def _combine_runs(runs: list[PolicyRun]) -> PolicyRun:
    order = np.argsort(np.concatenate([run.trace.submit_s for run in runs]), kind="stable")
    pieces: dict[str, Any] = {name: np.concatenate([getattr(run, name) for run in runs])[order] for name in JOB_COLUMNS}
    sums: dict[str, Any] = {name: sum(getattr(run, name) for run in runs) for name in ("events", "too_wide", "no_gpus")}
    return replace(
        runs[0],
        trace=_join_traces([run.trace for run in runs]).rows(order),
        outages=tuple(outage for run in runs for outage in run.outages),
        course=UsageSeries.sum_of_pools([run.course for run in runs]),
        packed=_join_packed([run.packed for run in runs if run.packed], order),
        **pieces,
        **sums,
    )


def _join_packed(times: list[PackedTime], order: Ints64) -> PackedTime | None:
    """The times of all pools, in this order of their rows; None if the policy does not pack."""
    if not times:
        return None
    columns = ([one.uncharged_s for one in times], [one.slowed_s for one in times])
    uncharged_s, slowed_s = (np.concatenate(column)[order] for column in columns)
    return PackedTime(uncharged_s=uncharged_s, slowed_s=slowed_s)


def _join_traces(traces: list[Trace]) -> Trace:
    """Concatenate parts of one trace, whose columns share their encodings."""
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(trace, name) for trace in traces]) for name in NUMBER_COLUMNS
    }
    for name in WORD_COLUMNS:
        codes = np.concatenate([getattr(trace, name).codes for trace in traces])
        columns[name] = replace(getattr(traces[0], name), codes=codes)
    return replace(traces[0], ids=[job for trace in traces for job in trace.ids], **columns)


def _replay_pool(
    trace: Trace, policy: str, setting: ReplaySetting, nodes: int, on_progress: ProgressCallback | None
) -> PolicyRun:
    counted = setting.cpus_per_node > 0
    power = _power_of_jobs(trace, setting)
    bare = _without_gpus(trace) & (not counted)
    wide = _too_wide(trace, setting, nodes) | (_above_power_budget(trace, setting, power) & ~bare)
    kept = np.flatnonzero(~(wide | bare))
    trace_kept = trace if len(kept) == len(trace) else trace.rows(kept)
    power = power.rows(kept) if power else None
    stalls, random_outages = _outage_model(trace_kept, setting)
    ahead = placement_context(trace_kept, setting)
    engine = replay_engine(policy, setting, nodes, ahead, trace_kept)
    starts: list[StartRecord] = []
    active = _ActiveNodes(engine) if setting.power and setting.power.has_sleep else None
    sampler = _usage_sampler(engine, trace_kept, ahead)
    if setting.checkpoint_s:
        engine.preemption_costs.writes_checkpoints = jobs_with_checkpoints(trace_kept)
    outcome = replay(
        engine,
        arrivals(trace_kept, engine, setting, stalls, power.watts if power else None),
        outage_model=random_outages,
        callbacks=ReplayCallbacks(
            sample=sampler,
            on_progress=on_progress,
            on_decision=active,
            on_start=(lambda job, now: starts.append(start_record(job, now))) if setting.as_live else None,
        ),
        victims_stop_first=setting.as_live,
    )
    return PolicyRun(
        policy=policy,
        setting=setting,
        trace=trace_kept,
        started_s=np.array(outcome.started),
        ended_s=np.array(outcome.ended),
        held_s=np.array(outcome.held_s),
        lost_s=np.array(random_outages.lost_s if random_outages else np.zeros(len(trace_kept))),
        stall_s=stalls,
        stops=np.array(outcome.stops, dtype=np.int32),
        faults=np.array(outcome.faults, dtype=np.int32),
        outages=tuple(outcome.outages),
        course=sampler.course(),
        events=outcome.events,
        too_wide=int(wide.sum()),
        no_gpus=int(bare.sum()),
        prediction_error_s=engine.rules.mean_error_s(),
        starts=tuple(starts),
        power=power,
        active_nodes=np.array(active.rows if active else []).reshape(-1, 2),
        packed=_packed_time(engine.changed_speeds, len(trace_kept)) if engine.changed_speeds else None,
    )


def _packed_time(speeds: ChangedSpeeds, jobs: int) -> PackedTime:
    uncharged_s, slowed_s = (
        np.array([times.get(number, 0.0) for number in range(jobs)]) for times in (speeds.uncharged_s, speeds.slowed_s)
    )
    return PackedTime(uncharged_s=uncharged_s, slowed_s=slowed_s)


class _ActiveNodes:
    """Records the number of nodes with jobs whenever it changes."""

    def __init__(self, engine: Engine) -> None:
        self._resources = engine.resources
        self.rows: list[tuple[float, int]] = []

    def __call__(self, now: float) -> None:
        resources = self._resources
        active = len(resources.nodes) - resources.by_free[resources.most].bit_count()
        if not self.rows or self.rows[-1][1] != active:
            self.rows.append((now, active))


def replay_engine(
    policy: str, setting: ReplaySetting, nodes: int, ahead: PlacementContext | None = None, trace: Trace | None = None
) -> Engine:
    """An engine with empty nodes for these settings. `trace` has the jobs, for policies that pack."""
    cost = helios_cost_s if setting.preemption_cost == "helios" else None
    name = "consolidate" if setting.placement == "count" else setting.placement
    placement = PLACEMENTS[name](ahead or PlacementContext(guarantees=setting.pools, elastic=True))
    rules = policy_rules(policy).of(setting.policy_settings)
    if rules.packs and setting.profiles and trace is not None:
        rules.load_profiles(setting.profiles.of_trace(trace, setting.seed))
    stall_s = setting.faults.stall_s if setting.faults and setting.checkpoint_s else 0.0
    return rules.engine_class(
        NodeResources(replay_nodes(setting, nodes), setting.power_budget),
        rules,
        EngineSetting(
            preemption_cost_s=cost,
            checkpoint_s=None if setting.as_live else setting.checkpoint_s + stall_s,
            requeues=not setting.as_live,
            claims_by_rank=setting.as_live,
            keeps_memory=not setting.as_live,
            has_time_limits=setting.as_live,
        ),
        placement=placement,
        quota_usage=QuotaUsage(setting.quotas, reserves=rules.reserves) if setting.quotas else None,
        predictor=_live_predictor(rules, setting) if setting.as_live else None,
    )


def _live_predictor(rules: PolicyRules, setting: ReplaySetting) -> BoundedPredictor:
    if rules.uses_trees:
        return BoundedPredictor(BlendedPredictor(daily=True, min_jobs=setting.min_training_jobs))
    return BoundedPredictor(RollingPredictor())


def placement_context(trace: Trace, setting: ReplaySetting) -> PlacementContext:
    """Typical requests: the sizes in this trace, as the authors of FGD use them."""
    gpus, milli = _gpus_on_each_node(trace.gpus, setting), trace.gpu_milli.tolist()
    cpus, memory_mb = (column.tolist() for column in _cpu_memory_per_node(trace, setting))
    counted = Counter(zip(gpus, milli, cpus, memory_mb, strict=True))
    requests = {
        ResourceRequest(gpus=gpus, gpu_milli=milli, cpus=cpus, memory_mb=mb): times
        for (gpus, milli, cpus, mb), times in counted.items()
    }
    return PlacementContext(typical_requests=requests, guarantees=setting.pools, elastic=True)


def _gpus_on_each_node(gpus: Ints, setting: ReplaySetting) -> list[int]:
    most: list[int] = (gpus if setting.placement == "count" else np.minimum(gpus, setting.gpus_per_node)).tolist()
    return most


def _counts_cpu_memory(setting: ReplaySetting) -> bool:
    """Whether CPUs or memory are counted."""
    return bool(setting.cpus_per_node or setting.memory_per_node_mb)


def _cpu_memory_per_node(trace: Trace, setting: ReplaySetting) -> tuple[Ints64, Ints64]:
    """CPUs and memory on each node of a job, as far as they are counted."""
    zeros: Ints64 = np.zeros(len(trace), dtype=np.int64)
    nodes = np.maximum(1, -(-trace.gpus // setting.gpus_per_node))
    cpus = np.rint(np.nan_to_num(trace.cpus) / nodes).astype(np.int64) if setting.cpus_per_node else zeros
    memory_mb = np.rint(np.nan_to_num(trace.memory_mb)).astype(np.int64) if setting.memory_per_node_mb else zeros
    return cpus, memory_mb


def job_resources(trace: Trace, row: int, setting: ReplaySetting) -> ResourceRequest:
    """The request of a job whose gang has whole nodes."""
    one = trace.rows(np.array([row]))
    (cpus,), (memory_mb,) = _cpu_memory_per_node(one, setting)
    return _request(trace, row, setting, int(cpus), int(memory_mb))


def replayable_rows(trace: Trace, setting: ReplaySetting) -> Trace:
    """The jobs that one pool can run. What jobs draw follows from the trace that is left, so it is looked at again."""
    excluded = _too_wide(trace, setting, setting.nodes) | (_without_gpus(trace) & (not setting.cpus_per_node))
    excluded |= _above_power_budget(trace, setting, _power_of_jobs(trace, setting))
    return replayable_rows(trace.rows(np.flatnonzero(~excluded)), setting) if excluded.any() else trace


def _power_of_jobs(trace: Trace, setting: ReplaySetting) -> JobPower | None:
    if setting.power is None:
        return None
    has_budget = setting.power.budget_kw is not None
    return job_power(trace, setting.power_fleet, setting.seed, has_budget=has_budget, knows_peaks=setting.as_live)


def _above_power_budget(trace: Trace, setting: ReplaySetting, power: JobPower | None) -> JobMask:
    """Jobs that are predicted to need more than the whole power budget."""
    if (budget := setting.power_budget) is None or power is None or power.watts is None:
        return np.zeros(len(trace), dtype=np.bool_)
    above: JobMask = power.watts > budget.watts
    return above


def _without_gpus(trace: Trace) -> JobMask:
    nothing: JobMask = (trace.gpus == 0) & (trace.gpu_milli == 0)
    return nothing


def _too_wide(trace: Trace, setting: ReplaySetting, nodes: int) -> JobMask:
    """Jobs larger than the pool or the largest node. Under `fifo` all jobs behind one of these would wait forever."""
    most_nodes = setting.gpu_types.widest if setting.gpu_types else nodes
    wide = trace.gpus > most_nodes * setting.gpus_per_node
    if _counts_cpu_memory(setting) and setting.placement != "tune":
        times = nodes if setting.placement == "count" else 1  # with `count`, one node has everything
        cpus, memory_mb = _cpu_memory_per_node(trace, setting)
        wide |= cpus > (times * setting.cpus_per_node or 1 << 60)
        wide |= memory_mb > (times * setting.memory_per_node_mb or 1 << 60)
    return wide


def _outage_model(trace: Trace, setting: ReplaySetting) -> tuple[Floats, RandomOutages | None]:
    """The time each job spends on checkpoints, and the random outages."""
    if setting.faults is None:
        return np.zeros(len(trace)), None
    saves = jobs_with_checkpoints(trace)
    stalls = [
        setting.faults.stalls_s(runtime) if writes else 0.0
        for runtime, writes in zip(trace.runtime_s.tolist(), saves, strict=True)
    ]
    return np.array(stalls, dtype=np.float64), RandomOutages(setting.faults, saves, setting.seed)


def jobs_with_checkpoints(trace: Trace) -> list[bool]:
    """For each job, whether its kind writes checkpoints."""
    saves = [word in CHECKPOINTING_KINDS for word in trace.kinds.words]
    return [saves[code] for code in trace.kinds.codes.tolist()]


def _usage_sampler(engine: Engine, trace: Trace, ahead: PlacementContext) -> UsageSampler:
    first, last = (float(trace.submit_s[0]), float(trace.submit_s[-1])) if len(trace) else (0.0, 0.0)
    return UsageSampler(engine, Fragmentation(ahead.typical_requests), first, last - first)


def replay_nodes(setting: ReplaySetting, nodes: int) -> list[NodeView]:
    """Equal nodes. `count` does not place jobs, so it has all GPUs on one node."""
    count, times = (1, nodes) if setting.placement == "count" else (nodes, 1)
    gpus = setting.gpus_per_node * times
    models = setting.gpu_types.node_models if setting.gpu_types else [""] * count
    return [
        NodeView(
            id=number,
            name=f"n{number}",
            gpus=gpus,
            free_gpus=tuple(range(gpus)),
            free_cpus=setting.cpus_per_node * times,
            free_memory_mb=setting.memory_per_node_mb * times,
            gpu_model=models[number],
            leaf=f"l{number // setting.nodes_per_leaf:05}" if setting.nodes_per_leaf else "",
        )
        for number in range(count)
    ]


def helios_cost_s(job: EngineJob) -> float:
    """The cost of a stop and restart by number of GPUs: HeliosArtifact's 7, 30 and 60 seconds."""
    return 7.0 if job.group.gpus == 1 else 30.0 if job.group.gpus <= 8 else 60.0


def arrivals(
    trace: Trace, engine: Engine, setting: ReplaySetting, stalls: Floats | None = None, watts: Watts | None = None
) -> Arrivals:
    """The jobs of the trace as columns for `replay`. `watts` are needed under a power budget."""
    takes = trace.runtime_s if stalls is None else trace.runtime_s + stalls
    expected_s = time_limits(trace) if setting.as_live else expected_run_times(takes, setting.noise, setting.seed)
    if setting.gpu_types and not setting.as_live:  # reservations must hold on any model
        longest = np.array(setting.gpu_types.longest(trace.names.words))
        expected_s = expected_s * longest[trace.names.codes]
    return Arrivals(
        submit_s=trace.submit_s.tolist(),
        runtime_s=takes.tolist(),
        expected_s=expected_s.tolist(),
        groups=_job_request_groups(trace, engine, setting, watts),
        users=trace.users.codes.tolist(),
        names=trace.names.codes.tolist(),
        similar=_same_text_codes(trace.names, name_without_numbers),
        kinds=_same_text_codes(trace.kinds, _kind_or_other),
        deadlines=np.nan_to_num(trace.deadline_s, nan=np.inf, posinf=np.inf).tolist(),
    )


def _same_text_codes(column: EncodedColumn, text: Callable[[str], str]) -> list[int]:
    """A number per row, equal for rows of which `text` makes the same."""
    numbers: dict[str, int] = {}
    by_code = np.array([numbers.setdefault(text(word), len(numbers)) for word in column.words], dtype=np.int64)
    codes: list[int] = by_code[column.codes].tolist()
    return codes


def _job_request_groups(
    trace: Trace, engine: Engine, setting: ReplaySetting, watts: Watts | None
) -> list[RequestGroup]:
    """The request group of each job; looked up once per distinct request."""
    rules = engine.rules
    all_agree = setting.as_live and rules.preempts  # a live cluster preempts by rank only jobs that agreed to it
    borrow = rules.claims or rules.has_opportunistic
    has_owners = borrow or all_agree or engine.quota_usage is not None
    cpus, memory_mb = _cpu_memory_per_node(trace, setting)
    columns: list[Ints | Ints64] = [trace.gpus, trace.gpu_milli, cpus, memory_mb]
    accounts = teams(trace, by_pool=bool(setting.quotas)) if setting.as_live else trace.users
    columns += [accounts.codes] * rules.queues_by_account
    columns += [trace.kinds.codes] * has_owners
    columns += [trace.pools.codes] * bool(setting.shares_one_pool or setting.quotas)
    columns += [watts] if watts is not None else []
    if setting.gpu_types:
        columns += [np.array(setting.gpu_types.codes(trace.names), dtype=np.int64)[trace.names.codes]]
    guaranteed = {_pool_code(trace, name): name for name in setting.pools} if setting.shares_one_pool else {}
    groups: dict[int, RequestGroup] = {}
    by_job = []
    for row, number in enumerate(_row_numbers(columns).tolist()):
        if (group := groups.get(number)) is None:
            of_pool = guaranteed.get(int(trace.pools.codes[row]), "")
            need = _request(trace, row, setting, int(cpus[row]), int(memory_mb[row]), of_pool)
            group = groups[number] = engine.request_group(
                need if watts is None else replace(need, watts=int(watts[row])),
                _owner(trace, row, setting, borrow=borrow, all_agree=all_agree) if has_owners else None,
                account=int(accounts.codes[row]) if rules.queues_by_account else 0,
            )
        by_job.append(group)
    return by_job


def _row_numbers(columns: list[Ints | Ints64]) -> Ints64:
    """A number per row, equal for rows that are equal in all columns. Values must not be negative."""
    numbers, different = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        width = int(column.max(initial=0)) + 1
        if different * width > 1 << 62:
            _, numbers = np.unique(numbers, return_inverse=True)
            different = len(numbers)
        numbers = numbers * width + column
        different *= width
    return numbers


def _owner(trace: Trace, row: int, setting: ReplaySetting, *, borrow: bool, all_agree: bool) -> QuotaOwner | None:
    """The quota owner of a job; None if no quota distinguishes it from others. A trace does not say which jobs agreed
    to be preempted, so with `all_agree` all did."""
    word = trace.kinds[row]
    if all_agree or (borrow and word in setting.best_effort):
        return QuotaOwner(team="", kind=JobKind.OTHER, preemptible=True)
    return QuotaOwner(team=trace.pools[row], kind=_kind_or_other(word)) if setting.quotas else None


def _kind_or_other(word: str) -> JobKind:
    return JobKind(word) if word in list(JobKind) else JobKind.OTHER


def _request(
    trace: Trace, row: int, setting: ReplaySetting, cpus: int, memory_mb: int, of_pool: str = ""
) -> ResourceRequest:
    if milli := int(trace.gpu_milli[row]):
        return ResourceRequest(gpu_milli=milli, cpus=cpus, memory_mb=memory_mb, pool=of_pool)
    need = gang_request(int(trace.gpus[row]), setting, cpus, memory_mb, of_pool)
    return setting.gpu_types.completed(need, trace.names[row]) if setting.gpu_types else need


def gang_request(
    gpus: int, setting: ReplaySetting, cpus: int = 0, memory_mb: int = 0, of_pool: str = ""
) -> ResourceRequest:
    """A request for this many GPUs: whole nodes and a remainder on one more. CPUs and memory are per node."""
    per_node = setting.gpus_per_node
    if setting.placement == "count" or gpus <= per_node:
        return ResourceRequest(gpus=gpus, cpus=cpus, memory_mb=memory_mb, pool=of_pool)
    whole, rest = divmod(gpus, per_node)
    return ResourceRequest(nodes=whole, gpus=per_node, rest=rest, cpus=cpus, memory_mb=memory_mb, pool=of_pool)
