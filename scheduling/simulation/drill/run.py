"""Runs one drill: a scenario, a plan and a strategy give a DrillResult. Pure.

Acts as Acme, or as one of the strategies that it is compared with: no automation, and a requeue after every failure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from jobs.core.checkpoint_interval import optimal_interval_s
from jobs.core.lifecycle import JobKind
from jobs.traces.trace import Trace
from scheduling.engine.cluster import QuotaView, ResourceRequest
from scheduling.engine.gpu_accounts import QuotaOwner
from scheduling.simulation.drill.counts import DrillCounts
from scheduling.simulation.drill.fault_effects import FaultInjector
from scheduling.simulation.drill.faults import Scenario, draw_faults, draw_flaw
from scheduling.simulation.drill.gang import GangTraining
from scheduling.simulation.drill.healing import AcmeRecovery
from scheduling.simulation.drill.jobs import GANG_JOB, DrillJob
from scheduling.simulation.drill.simulation import DrillSimulation, RecoveryStrategy
from scheduling.simulation.drill.values import DrillFault, DrillPlan, FailedAttempt, StepReport
from scheduling.whatif.replay import acme_trace

TICK_S = 5.0
MAX_MIX_JOB_GPUS = 64  # GPUs; larger jobs do not fit next to the gang
PLATFORM_REQUEUE_STATES = frozenset({"NODE_FAIL"})  # requeued by the cluster itself


class ManualRecovery:
    """No recovery: an operator must handle everything that the cluster does not requeue itself."""

    name = "off"

    def __init__(self, stage: DrillSimulation) -> None:
        self.stage = stage

    def on_step(self, job: str, report: StepReport) -> None:
        """An operator notices a wrong loss when looking at the curve."""
        if self.stage.works[job].loss_defect:
            self._call_operator(job, report.at)

    def on_section(self, job: str, name: str, begin: float, end: float) -> None:
        return

    def on_start(self, job: str, now: float) -> None:
        return

    def on_end(self, attempt: FailedAttempt, now: float) -> None:
        if attempt.state in PLATFORM_REQUEUE_STATES:
            self._requeue(attempt, now)
        else:
            self._call_operator(attempt.job, now)

    def run_checks(self, now: float) -> None:
        return

    def _requeue(self, attempt: FailedAttempt, now: float) -> None:
        newest = self.stage.works[attempt.job].newest(None)
        self.stage.restart(attempt.job, newest.step if newest else None, at=now)

    def _call_operator(self, job: str, now: float) -> None:
        self.stage.call_operator(job, now)


class RequeueAlways(ManualRecovery):
    """Restart after every failure, from the newest complete checkpoint, without diagnosis and without node tests.

    An operator is called when a job has ended three times without a new step.
    """

    name = "requeue"

    def __init__(self, stage: DrillSimulation) -> None:
        super().__init__(stage)
        self._furthest: dict[str, tuple[int, int]] = {}

    def on_end(self, attempt: FailedAttempt, now: float) -> None:
        step, again = self._furthest.get(attempt.job, (-1, 0))
        further = attempt.step is not None and attempt.step > step
        self._furthest[attempt.job] = (max(step, attempt.step or 0), 1 if further else again + 1)
        if self._furthest[attempt.job][1] >= 3:
            self._call_operator(attempt.job, now)
        if self._furthest[attempt.job][1] <= 20:
            self._requeue(attempt, now)


STRATEGIES: Mapping[str, Callable[[DrillSimulation], RecoveryStrategy]] = {
    "acme": AcmeRecovery,
    "requeue": RequeueAlways,
    "off": ManualRecovery,
}


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
    stage = DrillSimulation(plan, _quotas(plan))
    stage.answer = STRATEGIES[answer](stage)
    save_s = optimal_interval_s(mttf_s=scenario.hours_between(plan.gang_nodes) * 3600, stall_s=plan.stall_s)
    save_every = max(1, round(save_s / plan.step_s))
    gang, fault_injector = GangTraining(stage, save_every), FaultInjector(stage)
    stage.on_first_step = lambda work, now: (
        gang.begin(work, now) if work.is_gang else fault_injector.plan_end(work, now, stage.finish)
    )
    stage.submit(_gang_job(stage), 0.0)
    _schedule_arrivals(stage)
    for fault in faults:
        stage.agenda.at(fault.at, fault_injector.apply_fault, fault)
    stage.agenda.at(TICK_S, stage.check_regularly, TICK_S)
    stage.agenda.run_until(plan.end_s + plan.cooldown_h * 3600)
    stage.tally.jobs = len(stage.works)
    return DrillResult(
        plan=plan, scenario=scenario, answer=answer, injected=len(faults), save_every_s=save_every * plan.step_s,
        tally=stage.tally, works=stage.works,
    )  # fmt: skip


def _quotas(plan: DrillPlan) -> tuple[QuotaView, ...]:
    beside = (plan.nodes - plan.gang_nodes - plan.spares) * plan.gpus_per_node
    return (
        QuotaView(team="pretrain", kind=JobKind.PRETRAIN, gpus=plan.gang_nodes * plan.gpus_per_node),
        QuotaView(team="mix", kind=None, gpus=max(plan.gpus_per_node, beside)),
    )


def _gang_job(stage: DrillSimulation) -> DrillJob:
    plan = stage.plan
    need = ResourceRequest(nodes=plan.gang_nodes, gpus=plan.gpus_per_node, cpus=0)
    group = stage.engine.request_group(need, QuotaOwner(team="pretrain", kind=JobKind.PRETRAIN))
    return DrillJob(
        name=GANG_JOB, team="pretrain", kind=JobKind.PRETRAIN, gpus=plan.gang_nodes * plan.gpus_per_node, submitted=0.0,
        need_s=math.inf, group=group, number=1,
    )  # fmt: skip


def _schedule_arrivals(stage: DrillSimulation) -> None:
    """Schedule the mix of Kalos next to the gang: as many jobs as Kalos had in that time, without the largest ones."""
    site, plan = acme_trace.PUBLISHED_CLUSTERS["kalos"], stage.plan
    count = max(1, round(site.jobs / site.days * plan.hours / 24))
    trace = acme_trace.draw_trace(site, "kalos", jobs=count, seed=plan.seed)
    last = float(trace.submit_s[-1]) or 1.0
    for row in range(len(trace)):
        if trace.gpus[row] <= MAX_MIX_JOB_GPUS:
            at = float(trace.submit_s[row]) / last * plan.end_s * 0.98
            stage.agenda.at(at, partial(_submit, stage, trace), row)


def _submit(stage: DrillSimulation, trace: Trace, row: int, now: float) -> None:
    gpus, kind = int(trace.gpus[row]), JobKind(trace.kinds.words[trace.kinds.codes[row]])
    per_node = stage.plan.gpus_per_node
    whole, rest = divmod(gpus, per_node)
    need = (
        ResourceRequest(gpus=gpus, cpus=0)
        if gpus <= per_node
        else ResourceRequest(nodes=whole, gpus=per_node, rest=rest, cpus=0)
    )
    owner = QuotaOwner(team="mix", kind=kind, preemptible=kind is JobKind.EVALUATION)
    name, takes_s = f"{kind}-{row}", float(trace.runtime_s[row])
    work = DrillJob(
        name=name, team="mix", kind=kind, gpus=gpus, submitted=now, need_s=takes_s, number=1000 + row,
        group=stage.engine.request_group(need, owner), flaw=draw_flaw(kind, gpus, f"{stage.plan.seed}:{name}"),
    )  # fmt: skip
    stage.submit(work, now)
