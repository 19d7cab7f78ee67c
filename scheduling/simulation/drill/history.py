"""Simulates weeks of a datacenter, from which the demo makes its history: jobs, failures, decisions, repairs. Pure.

Jobs arrive as in Seren or Kalos, the clusters of the Acme study, the engine places them under the policy acme, and
faults occur at the rate of the `dense` scenario. Acme's own diagnosis, recovery and node tests handle what fails. Times
are virtual.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from random import Random

import numpy as np

from failures.incidents.grouping import OpenIncident
from jobs.core.lifecycle import JobKind
from jobs.traces.trace import Trace
from scheduling.engine.cluster import QuotaView, ResourceRequest
from scheduling.engine.gpu_accounts import QuotaOwner
from scheduling.simulation.drill.checkpoint_campaigns import CampaignService, CheckpointCampaign, EvaluationArrivals
from scheduling.simulation.drill.failure_odds import LikelyFailures, table_odds
from scheduling.simulation.drill.fault_effects import FaultInjector
from scheduling.simulation.drill.faults import BUG, FAILURE_SHARE, SCENARIOS, Scenario, draw_faults, draw_flaw
from scheduling.simulation.drill.healing import AcmeRecovery, HandledFailure
from scheduling.simulation.drill.job_logs import HistoryLogs
from scheduling.simulation.drill.jobs import DrillJob
from scheduling.simulation.drill.simulation import DrillSimulation
from scheduling.simulation.drill.values import DRILL_EPOCH, DrillFault, DrillPlan, NodeClosure
from scheduling.simulation.machines.faults import FaultKind
from scheduling.whatif.replay import acme_trace

KUBERNETES_SITES = frozenset({"kalos"})
CHECK_INTERVAL_S = 60.0
START_S = 8.0
# Of the jobs that end at their drawn run time, these shares are cancelled by their users. The study reports that
# pretraining jobs are often cancelled, and few others.
CANCELLED_SHARE = {JobKind.PRETRAIN: 0.35, JobKind.DEBUG: 0.15}
DEFAULT_CANCELLED_SHARE = 0.05
CANCELLED = "cancelled"
PLANNED_FACTOR, PLANNED_PRETRAINING_DAYS = (1.2, 4.0), (1.0, 6.0)  # of jobs that do not complete
PREEMPTIBLE_SHARE = 0.3  # of the evaluation jobs
# The other faults of the scenario need a job that reports each step, which would take minutes to simulate
FAULTS_WITHOUT_STEPS = frozenset({BUG, str(FaultKind.LOSS), str(FaultKind.SLOW)})


@dataclass(frozen=True, kw_only=True)
class HistorySettings:
    site: str = "seren"  # of the study
    days: float
    nodes: int
    gpus_per_node: int
    first_node: int = 1
    began: datetime = DRILL_EPOCH
    seed: int = 1
    load: float = 0.95  # requested GPU time as a share of all GPU time
    most_gpus_share: float = 0.5  # of the cluster, for one job
    teams: Mapping[JobKind, str]
    quotas: Mapping[str, int]

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def most_gpus(self) -> int:
        whole_nodes = int(self.gpus * self.most_gpus_share) // self.gpus_per_node * self.gpus_per_node
        return max(self.gpus_per_node, whole_nodes)


@dataclass(frozen=True, kw_only=True)
class SiteHistory:
    """What happened. Times are seconds since the beginning."""

    plan: DrillPlan
    jobs: Sequence[DrillJob]
    failures: Sequence[HandledFailure]
    incidents: Sequence[OpenIncident]
    closures: Sequence[NodeClosure]
    campaigns: Sequence[CheckpointCampaign]
    faults: Sequence[DrillFault]
    logs: HistoryLogs


def simulate_history(settings: HistorySettings) -> Iterator[float | SiteHistory]:
    """Yield the share of the time that is simulated so far, once per day, and finally the history."""
    plan = DrillPlan(
        hours=settings.days * 24, seed=settings.seed, nodes=settings.nodes, gpus_per_node=settings.gpus_per_node,
        site=settings.site, first_node=settings.first_node, gang_nodes=0, spares=0, start_s=START_S,
    )  # fmt: skip
    quotas = [QuotaView(team=team, kind=None, gpus=gpus) for team, gpus in settings.quotas.items()]
    stage = DrillSimulation(plan, quotas)
    recovery = AcmeRecovery(stage)
    stage.answer = recovery
    logs = HistoryLogs(plan=plan, began_s=settings.began.timestamp(), are_pods=settings.site in KUBERNETES_SITES)
    stage.log_of_failure = logs.failure_log
    faults = FaultInjector(stage)
    drawn_faults = draw_faults(_without_step_faults(SCENARIOS["dense"]), plan)
    for fault in drawn_faults:
        stage.agenda.at(fault.at, faults.apply_fault, fault)
    campaigns = _schedule_arrivals(stage, settings)
    stage.on_first_step = partial(_plan_attempt, stage, faults, campaigns)
    stage.agenda.at(CHECK_INTERVAL_S, stage.check_regularly, CHECK_INTERVAL_S)
    for day in range(1, math.ceil(settings.days) + 1):
        stage.agenda.run_until(min(day * 86_400.0, plan.end_s))
        yield min(1.0, day / settings.days)
    for work in list(stage.running.values()):
        stage.progress(work, plan.end_s)  # its checkpoints since it started
    yield SiteHistory(
        plan=plan,
        jobs=list(stage.works.values()),
        failures=recovery.failures,
        incidents=list(recovery.incidents.values()),
        closures=stage.closures,
        campaigns=campaigns.campaigns,
        faults=drawn_faults,
        logs=logs,
    )


def _without_step_faults(scenario: Scenario) -> Scenario:
    return replace(
        scenario, mix={kind: share for kind, share in scenario.mix.items() if kind not in FAULTS_WITHOUT_STEPS}
    )


def _schedule_arrivals(stage: DrillSimulation, settings: HistorySettings) -> CampaignService:
    """Schedule as many jobs of the site, picked at random, as request the wanted share of the GPU time."""
    site = acme_trace.PUBLISHED_CLUSTERS[settings.site]
    jobs = round(site.jobs / site.days * settings.days)
    trace = acme_trace.draw_trace(site, settings.site, jobs=jobs, seed=settings.seed)
    requested_s = trace.gpus.clip(max=settings.most_gpus) * trace.runtime_s
    wanted_s = settings.load * settings.gpus * stage.plan.end_s
    order = np.random.default_rng(settings.seed).permutation(len(trace))
    count = int(np.searchsorted(np.cumsum(requested_s[order]), wanted_s))
    rows = np.sort(order[:count]).tolist()
    arrivals = EvaluationArrivals(trace, rows)
    submit = partial(_submit, stage, settings, trace, _failure_odds(settings, trace, rows))

    def arrive(row: int, now: float) -> None:
        if not arrivals.is_taken(row):
            submit(row, now)

    for row in rows:
        stage.agenda.at(float(trace.submit_s[row]), arrive, row)
    return CampaignService(stage, arrivals, partial(submit, is_trial=True))


def _failure_odds(settings: HistorySettings, trace: Trace, rows: Sequence[int]) -> Mapping[str, float]:
    jobs = ((*_kind_and_gpus(settings, trace, row), float(trace.runtime_s[row])) for row in rows)
    return table_odds([LikelyFailures(kind, gpus, at, FAILURE_SHARE[kind]) for kind, gpus, at in jobs])


def _kind_and_gpus(settings: HistorySettings, trace: Trace, row: int) -> tuple[JobKind, int]:
    return JobKind(trace.kinds.words[trace.kinds.codes[row]]), min(int(trace.gpus[row]), settings.most_gpus)


def _submit(
    stage: DrillSimulation, settings: HistorySettings, trace: Trace, odds: Mapping[str, float],
    row: int, now: float, *, is_trial: bool = False,
) -> DrillJob:  # fmt: skip
    kind, gpus = _kind_and_gpus(settings, trace, row)
    per_node, name, takes_s = settings.gpus_per_node, f"{kind}-{row}", float(trace.runtime_s[row])
    need = (
        ResourceRequest(gpus=gpus, cpus=0)
        if gpus <= per_node
        else ResourceRequest(nodes=math.ceil(gpus / per_node), gpus=per_node, cpus=0)
    )
    may_give_way = kind is JobKind.EVALUATION and not is_trial
    gives_way = may_give_way and stage.dice("preemptible", name).random() < PREEMPTIBLE_SHARE
    flaw = draw_flaw(kind, gpus, f"{settings.seed}:{name}", takes_s, odds)
    # Fail at the drawn run time, so that the run times keep their published distribution
    flaw = replace(flaw, after_s=takes_s * 0.99) if flaw else None
    owner = QuotaOwner(team=settings.teams[kind], kind=kind, preemptible=gives_way)
    work = DrillJob(
        name=name, team=settings.teams[kind], kind=kind, gpus=need.nodes * need.gpus, submitted=now, need_s=takes_s,
        number=row, group=stage.engine.request_group(need, owner), flaw=flaw,
        planned_s=_planned_s(kind, takes_s, completes=not flaw and not _is_cancelled(stage, kind, name), key=name),
    )  # fmt: skip
    stage.submit(work, now)
    return work


def _plan_attempt(
    stage: DrillSimulation, faults: FaultInjector, campaigns: CampaignService, work: DrillJob, now: float
) -> None:
    campaigns.plan_run(work)
    faults.plan_end(work, now, partial(_finish, stage))


def _planned_s(kind: JobKind, takes_s: float, *, completes: bool, key: str) -> float:
    """The run time that a user planned for a job that takes so long. A pretraining run is planned for days."""
    if completes:
        return takes_s
    dice = Random(f"planned:{key}")
    days = dice.uniform(*PLANNED_PRETRAINING_DAYS) if kind is JobKind.PRETRAIN else 0.0
    return max(takes_s * dice.uniform(*PLANNED_FACTOR), days * 86_400)


def _is_cancelled(stage: DrillSimulation, kind: JobKind, name: str) -> bool:
    share = CANCELLED_SHARE.get(kind, DEFAULT_CANCELLED_SHARE)
    return Random(f"cancelled:{stage.plan.seed}:{name}").random() < share


def _finish(stage: DrillSimulation, work: DrillJob, now: float) -> None:
    if _is_cancelled(stage, work.kind, work.name):
        work.current_attempt.cause = CANCELLED
    stage.finish(work, now)
