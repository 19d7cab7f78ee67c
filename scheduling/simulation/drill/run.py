"""Runs one drill: a scenario, a plan and a strategy give a DrillResult. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from jobs.core.checkpoint_interval import optimal_interval_s
from jobs.core.lifecycle import JobKind
from scheduling.engine.cluster import NodeView, QuotaView, ResourceRequest
from scheduling.engine.engine import Engine
from scheduling.engine.gpu_accounts import QuotaOwner, QuotaUsage
from scheduling.engine.policies.acme import AcmeRules
from scheduling.engine.resources import NodeResources
from scheduling.simulation.drill.agenda import EventQueue
from scheduling.simulation.drill.answers import ManualRecovery, RequeueAlways
from scheduling.simulation.drill.counts import DrillCounts
from scheduling.simulation.drill.fault_effects import FaultInjector
from scheduling.simulation.drill.faults import Scenario, draw_faults, draw_flaw
from scheduling.simulation.drill.gang import GangTraining
from scheduling.simulation.drill.healing import AcmeRecovery
from scheduling.simulation.drill.jobs import GANG_JOB, DrillJob
from scheduling.simulation.drill.simulation import DrillSimulation, RecoveryStrategy
from scheduling.simulation.drill.values import DrillFault, DrillPlan
from scheduling.whatif.replay import acme_trace

TICK_S = 5.0
STRATEGIES: Mapping[str, Callable[[DrillSimulation], RecoveryStrategy]] = {
    "acme": AcmeRecovery,
    "requeue": RequeueAlways,
    "off": ManualRecovery,
}
MAX_MIX_JOB_GPUS = 64  # GPUs; larger jobs do not fit next to the gang


@dataclass(frozen=True, kw_only=True)
class DrillResult:
    plan: DrillPlan
    scenario: Scenario
    answer: str
    injected: int
    save_every_s: float
    tally: DrillCounts
    works: Mapping[str, DrillJob]


def run_drill(
    scenario: Scenario, plan: DrillPlan, answer: str, faults: Sequence[DrillFault] | None = None
) -> DrillResult:
    """Simulate the scenario under a strategy. `faults` replaces the faults that the scenario draws."""
    faults = draw_faults(scenario, plan) if faults is None else faults
    agenda, tally = EventQueue(), DrillCounts()
    stage = DrillSimulation(plan, _build_engine(plan), agenda, tally)
    stage.answer = STRATEGIES[answer](stage)
    save_s = optimal_interval_s(mttf_s=scenario.hours_between(plan.gang_nodes) * 3600, stall_s=plan.stall_s)
    save_every = max(1, round(save_s / plan.step_s))
    gang, fault_injector = GangTraining(stage, save_every), FaultInjector(stage)
    stage.on_first_step = lambda work, now: _handle_first_step(stage, gang, fault_injector, work, now)
    stage.submit(_gang_job(stage), 0.0)
    _schedule_arrivals(stage, plan)
    for fault in faults:
        agenda.at(fault.at, partial(fault_injector.apply_fault, fault))
    agenda.every(TICK_S, stage.answer.run_checks)
    agenda.run(plan.end_s + plan.cooldown_h * 3600)
    tally.jobs = len(stage.works)
    return DrillResult(
        plan=plan, scenario=scenario, answer=answer, injected=len(faults), save_every_s=save_every * plan.step_s,
        tally=tally, works=stage.works,
    )  # fmt: skip


def _handle_first_step(
    stage: DrillSimulation, gang: GangTraining, fault_injector: FaultInjector, work: DrillJob, now: float
) -> None:
    if work.is_gang:
        gang.begin(work, now)
        return
    stage.tally.record_first_step(work.name, now)
    remaining_s = max(1.0, work.need_s - work.step * 10.0)
    if work.flaw and work.flaw.after_s < remaining_s:
        stage.agenda.at(now + work.flaw.after_s, stage.if_same_attempt(work, fault_injector.fail_by_own_flaw))
    stage.agenda.at(now + remaining_s, stage.if_same_attempt(work, stage.finish))


def _build_engine(plan: DrillPlan) -> Engine:
    beside = (plan.nodes - plan.gang_nodes - plan.spares) * plan.gpus_per_node
    quotas = (
        QuotaView(team="pretrain", kind=JobKind.PRETRAIN, gpus=plan.gang_nodes * plan.gpus_per_node),
        QuotaView(team="mix", kind=None, gpus=max(plan.gpus_per_node, beside)),
    )
    rules = AcmeRules()
    nodes = [
        NodeView(
            id=number, name=name, gpus=plan.gpus_per_node, free_gpus=tuple(range(plan.gpus_per_node)), free_cpus=0,
            free_memory_mb=0, leaf=f"l{number // 8:03}",
        )
        for number, name in enumerate(plan.node_names)
    ]  # fmt: skip
    return Engine(NodeResources(nodes), rules, quota_usage=QuotaUsage(quotas, reserves=rules.reserves))


def _gang_job(stage: DrillSimulation) -> DrillJob:
    plan = stage.plan
    need = ResourceRequest(nodes=plan.gang_nodes, gpus=plan.gpus_per_node, cpus=0)
    group = stage.engine.request_group(need, QuotaOwner(team="pretrain", kind=JobKind.PRETRAIN))
    return DrillJob(
        name=GANG_JOB, team="pretrain", kind=JobKind.PRETRAIN, gpus=plan.gang_nodes * plan.gpus_per_node, submitted=0.0,
        need_s=math.inf, group=group, number=1,
    )  # fmt: skip


def _schedule_arrivals(stage: DrillSimulation, plan: DrillPlan) -> None:
    """Schedule the mix of Kalos next to the gang: as many jobs as Kalos had in that time, without the largest ones."""
    site = acme_trace.PUBLISHED_CLUSTERS["kalos"]
    count = max(1, round(site.jobs / site.days * plan.hours / 24))
    trace = acme_trace.draw_trace(site, "kalos", jobs=count, seed=plan.seed)
    last = float(trace.submit_s[-1]) or 1.0
    for row in range(len(trace)):
        gpus, kind = int(trace.gpus[row]), JobKind(trace.kinds.words[trace.kinds.codes[row]])
        if gpus <= MAX_MIX_JOB_GPUS:
            at = float(trace.submit_s[row]) / last * plan.end_s * 0.98
            stage.agenda.at(at, _arrival_action(stage, row, kind, gpus, float(trace.runtime_s[row])))


def _arrival_action(
    stage: DrillSimulation, row: int, kind: JobKind, gpus: int, takes_s: float
) -> Callable[[float], None]:
    def submit_arrival(now: float) -> None:
        per_node = stage.plan.gpus_per_node
        whole, rest = divmod(gpus, per_node)
        need = (
            ResourceRequest(gpus=gpus, cpus=0)
            if gpus <= per_node
            else ResourceRequest(nodes=whole, gpus=per_node, rest=rest, cpus=0)
        )
        owner = QuotaOwner(team="mix", kind=kind, preemptible=kind is JobKind.EVALUATION)
        name = f"{kind}-{row}"
        stage.submit(
            DrillJob(
                name=name, team="mix", kind=kind, gpus=gpus, submitted=now, need_s=takes_s, number=1000 + row,
                group=stage.engine.request_group(need, owner), flaw=draw_flaw(kind, gpus, f"{stage.plan.seed}:{name}"),
            ),
            now,
        )  # fmt: skip

    return submit_arrival
