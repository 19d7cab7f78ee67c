"""One replay: a trace, a pool of nodes and a policy in; what became of every job out. Pure.

Jobs that a replay cannot mean anything by are counted, not hidden: wider than their pool, or without GPUs where CPUs
are not counted. Virtual clusters share nothing, so each is replayed by itself and the outcomes are put together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jobs.lifecycle import Kind
from jobs.traces.trace import Floats, Ints, Trace
from scheduling.engine.books import Owner
from scheduling.engine.cluster import Need, NodeView
from scheduling.engine.engine import Ask, Engine, Job
from scheduling.engine.placement import PLACEMENTS
from scheduling.engine.policies import rules_of
from scheduling.engine.room import Room
from scheduling.simulator.kernel import Arrivals, replay

COSTS = ("none", "helios")
Watch = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is replayed with; the same for all policies of a comparison."""

    nodes: int
    gpus_per_node: int = 8
    placement: str = "consolidate"
    preemption_cost: str = "none"
    cpus_per_node: int = 0  # 0: CPUs are not counted
    # Where borrowers exist these kinds of work borrow, as evaluation does in the Acme datacenter
    best_effort: tuple[str, ...] = (Kind.EVALUATION.value,)
    policy_settings: Mapping[str, object] = field(default_factory=dict)
    checkpoint_s: float = 0.0  # who is stopped loses the work since then; 0: nothing
    pools: Mapping[str, int] = field(default_factory=dict)  # virtual cluster -> its nodes; empty: one pool

    @property
    def gpus(self) -> int:
        return (sum(self.pools.values()) or self.nodes) * self.gpus_per_node


@dataclass(frozen=True, kw_only=True)
class Run:
    """What became of the jobs that were replayed: columns beside `trace`, which holds just these."""

    policy: str
    setting: Setting
    trace: Trace
    started_s: Floats
    ended_s: Floats
    held_s: Floats
    stops: Ints
    events: int
    too_wide: int = 0  # jobs larger than their pool
    no_gpus: int = 0  # jobs without GPUs, where CPUs are not counted
    homeless: int = 0  # jobs of a virtual cluster that the table does not name
    prediction_error_s: float | None = None


def run(trace: Trace, policy: str, setting: Setting, watch: Watch | None = None) -> Run:
    if not setting.pools:
        return _one_pool(trace, policy, setting, setting.nodes, watch)
    runs = []
    for pool, nodes in setting.pools.items():
        inside = np.flatnonzero(trace.pools.codes == _code(trace, pool))
        runs.append(_one_pool(trace.rows(inside), policy, setting, nodes, watch))
    known = [_code(trace, pool) for pool in setting.pools]
    return replace(_together(runs), homeless=int(np.sum(~np.isin(trace.pools.codes, known))))


def _code(trace: Trace, pool: str) -> int:
    return trace.pools.words.index(pool) if pool in trace.pools.words else -1


def _together(runs: list[Run]) -> Run:
    order = np.argsort(np.concatenate([one.trace.submit_s for one in runs]), kind="stable")
    pieces: dict[str, Any] = {
        name: np.concatenate([getattr(one, name) for one in runs])[order]
        for name in ("started_s", "ended_s", "held_s", "stops")
    }
    sums: dict[str, Any] = {name: sum(getattr(one, name) for one in runs) for name in ("events", "too_wide", "no_gpus")}
    return replace(runs[0], trace=_joined([one.trace for one in runs]).rows(order), **pieces, **sums)


def _joined(traces: list[Trace]) -> Trace:
    """They are parts of one trace, so their words have the same codes."""
    numbers = ("submit_s", "runtime_s", "queue_s", "limit_s", "gpus", "nodes", "cpus", "memory_mb")
    columns: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in traces]) for name in numbers}
    for name in ("users", "pools", "kinds", "names", "states"):
        codes = np.concatenate([getattr(one, name).codes for one in traces])
        columns[name] = replace(getattr(traces[0], name), codes=codes)
    return replace(traces[0], ids=[job for one in traces for job in one.ids], **columns)


def _one_pool(trace: Trace, policy: str, setting: Setting, nodes: int, watch: Watch | None) -> Run:
    counted = setting.cpus_per_node > 0
    wide = trace.gpus > nodes * setting.gpus_per_node
    bare = (trace.gpus == 0) & (not counted)
    trace_kept = trace if not (wide | bare).any() else trace.rows(np.flatnonzero(~(wide | bare)))
    engine = engine_for(policy, setting, nodes)
    outcome = replay(engine, arrivals(trace_kept, engine, setting), watch=watch)
    return Run(
        policy=policy,
        setting=setting,
        trace=trace_kept,
        started_s=np.array(outcome.started),
        ended_s=np.array(outcome.ended),
        held_s=np.array(outcome.held_s),
        stops=np.array(outcome.stops, dtype=np.int32),
        events=outcome.events,
        too_wide=int(wide.sum()),
        no_gpus=int(bare.sum()),
        prediction_error_s=engine.rules.mean_error_s(),
    )


def engine_for(policy: str, setting: Setting, nodes: int) -> Engine:
    cost = helios_cost_s if setting.preemption_cost == "helios" else None
    placement = PLACEMENTS["consolidate" if setting.placement == "count" else setting.placement]
    return Engine(
        Room(pool(setting, nodes)),
        rules_of(policy, setting.policy_settings)(),
        placement=placement,
        preemption_cost_s=cost,
        checkpoint_s=setting.checkpoint_s,
    )


def pool(setting: Setting, nodes: int) -> list[NodeView]:
    """Equal nodes; `count` asks for no placement, so there all GPUs are in one."""
    count, times = (1, nodes) if setting.placement == "count" else (nodes, 1)
    gpus, cpus = setting.gpus_per_node * times, setting.cpus_per_node * times
    return [
        NodeView(
            id=number, name=f"n{number}", gpus=gpus, free_gpus=tuple(range(gpus)), free_cpus=cpus, free_memory_mb=0
        )
        for number in range(count)
    ]


def helios_cost_s(job: Job) -> float:
    """What stopping and coming back costs, by width: HeliosArtifact's 7, 30 and 60 seconds."""
    return 7.0 if job.ask.gpus == 1 else 30.0 if job.ask.gpus <= 8 else 60.0


def arrivals(trace: Trace, engine: Engine, setting: Setting) -> Arrivals:
    return Arrivals(
        submit_s=trace.submit_s.tolist(),
        runtime_s=trace.runtime_s.tolist(),
        expected_s=trace.runtime_s.tolist(),
        asks=_asks(trace, engine, setting),
        users=trace.users.codes.tolist(),
        names=trace.names.codes.tolist(),
    )


def _asks(trace: Trace, engine: Engine, setting: Setting) -> list[Ask]:
    gpus = trace.gpus.tolist()
    cpus = np.nan_to_num(trace.cpus).tolist() if setting.cpus_per_node else [0.0] * len(gpus)
    users = trace.users.codes.tolist() if engine.rules.by_account else [0] * len(gpus)
    owners = _owners(trace, setting) if engine.rules.claims else [None] * len(gpus)
    wishes = list(zip(gpus, cpus, users, owners, strict=True))
    known = {
        wish: engine.ask(shape(wish[0], setting, wish[1]), wish[3], account=wish[2]) for wish in dict.fromkeys(wishes)
    }
    return [known[wish] for wish in wishes]


def _owners(trace: Trace, setting: Setting) -> list[Owner | None]:
    borrower = Owner(team="", kind=Kind.OTHER, preemptible=True)
    by_word = [borrower if word in setting.best_effort else None for word in trace.kinds.words]
    return [by_word[code] for code in trace.kinds.codes.tolist()]


def shape(gpus: int, setting: Setting, cpus: float = 0.0) -> Need:
    """A number of GPUs as a gang: whole nodes, and a rest on one more."""
    per_node = setting.gpus_per_node
    if setting.placement == "count" or gpus <= per_node:
        return Need(gpus=gpus, cpus=round(cpus))
    whole, rest = divmod(gpus, per_node)
    return Need(nodes=whole, gpus=per_node, rest=rest, cpus=round(cpus / (whole + bool(rest))))
