"""The engine's interface for live clusters: a `ClusterSnapshot` in, `TurnDecisions` out, with a sentence per waiting
job.

The engine state is built from the snapshot, used for one turn and dropped; a replay keeps it. Jobs that may not start
regardless of free resources (held, not yet due, dependent) never enter the engine. Every other job gets the blockers
that remain after the last start of the turn (`explain`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Final

from jobs.core.gpu_models import SEPARATOR
from jobs.core.gpu_shares import WHOLE_GPU
from jobs.core.preemption_contract import Preemptability
from jobs.core.slurm_notation import format_count
from scheduling.engine.blockers import Blocker, BlockerKind, job_label
from scheduling.engine.cluster import (
    ClusterSnapshot,
    NodeView,
    PowerBudget,
    ResourceRequest,
    RunningJob,
    StartDecision,
    StopDecision,
    TurnDecisions,
    WaitDecision,
    WaitingJob,
)
from scheduling.engine.engine import Engine, EngineSetting, PolicyRules, whole_second
from scheduling.engine.explain import WaitExplainer
from scheduling.engine.gpu_accounts import QuotaOwner, QuotaUsage
from scheduling.engine.gpu_speeds import SpeedScope
from scheduling.engine.history import SchedulingHistory
from scheduling.engine.job import EngineJob, RequestGroup
from scheduling.engine.job_queue import sort_entries
from scheduling.engine.placement import awake_first, within_power
from scheduling.engine.placements import PLACEMENTS, PlacementContext
from scheduling.engine.resources import GpuPlacement, NodeResources, NodeSet, PowerAreas, shared_position
from scheduling.engine.turns.settling import settle_turn
from scheduling.engine.windows import MaintenancePeriod, round_up_run_time, run_time_seconds

LivePolicy = Callable[[ClusterSnapshot], TurnDecisions]
# Keys of equal requests and accounts. Computed for ten thousand jobs per turn, where hashing a dataclass is too slow
REQUEST_FIELDS = attrgetter(*(one.name for one in fields(ResourceRequest)))
OWNER_FIELDS = attrgetter(*(one.name for one in fields(QuotaOwner)))
BY_SUBMITTED_AT, BY_ID = attrgetter("submitted_at"), attrgetter("id")
EPOCH: Final = datetime.fromtimestamp(0, UTC)


def live_policy(rules: Callable[[], PolicyRules]) -> LivePolicy:
    """The policy as a function from snapshots to decisions. Each call gets new rules."""

    def decide_snapshot(snapshot: ClusterSnapshot) -> TurnDecisions:
        return turn_decisions(snapshot, rules())

    return decide_snapshot


def turn_decisions(snapshot: ClusterSnapshot, rules: PolicyRules) -> TurnDecisions:
    """Run one turn on the snapshot and explain all decisions."""
    state = engine_after_turn(snapshot, rules)
    explainer = WaitExplainer(state.engine, state.jobs, state.order, snapshot.now)
    claims = state.claims
    waits = explainer.waits()
    if claims.waits:
        waits = [claims.waits.get(wait.job_id, wait) for wait in waits]
    return TurnDecisions(
        starts=tuple(state.with_boot_text(start) for start in explainer.starts()),
        stops=claims.stops,
        asks=claims.asks,
        waits=(*state.gated, *waits),
    )


def engine_after_turn(snapshot: ClusterSnapshot, rules: PolicyRules) -> SnapshotEngine:
    """The engine after one turn on the snapshot."""
    now = snapshot.now.timestamp()
    state = SnapshotEngine(snapshot, rules, requeues=False)
    needs_running = rules.plans or rules.preempts or rules.queues_by_account or snapshot.placement == "cells"
    if needs_running or state.engine.chooses_models:
        state.adopt(snapshot.running)
    state.submit(now)
    state.engine.decide(now)
    state.claims = state.settle_claims(now)
    return state


class SnapshotEngine:
    """An engine built from a snapshot, with its waiting jobs in order of submission.

    `jobs` holds those that may start, not yet submitted; `gated` the wait decisions of the others.
    """

    def __init__(self, snapshot: ClusterSnapshot, rules: PolicyRules, *, requeues: bool = True) -> None:
        self._now = snapshot.now
        self._nodes = (*snapshot.nodes, *snapshot.nodes_in_maintenance)
        self._adopted: dict[int, RunningJob] = {}
        self._history = snapshot.history
        self._uses_trees = rules.uses_trees
        self._attained: Mapping[int, float] = {}
        if snapshot.history:
            self._attained = snapshot.history.attained_by_speed if rules.weighs_service else snapshot.history.attained
            rules.load_history(snapshot.history, snapshot.now.timestamp())
        # Virtual clusters are teams with a quota. Only the placement `cells` needs to distinguish them
        self._guarantees = snapshot.guaranteed_nodes if snapshot.placement == "cells" else {}
        self.boots = {number: node.boot_s for number, node in enumerate(self._nodes) if node.boot_s}
        typical = snapshot.typical_requests if snapshot.placement == "gradient" else {}
        placement = PLACEMENTS[snapshot.placement](
            PlacementContext(typical_requests=typical, guarantees=self._guarantees)
        )
        if snapshot.power:
            placement = within_power(placement)
        if self.boots:
            placement = awake_first(placement, sum(1 << number for number in self.boots))
        limited = snapshot.quotas or any(job.array_limit is not None for job in snapshot.waiting)
        quota_usage = (
            QuotaUsage(snapshot.quotas, snapshot.running, rules.reserves, snapshot.gpu_model) if limited else None
        )
        self.engine = Engine(
            _resources(snapshot, self._nodes),
            rules,
            EngineSetting(checkpoint_s=None, requeues=requeues, claims_by_rank=True),
            placement=placement,
            quota_usage=quota_usage,
        )
        self._free_before = self.engine.resources.copy()
        if snapshot.windows:
            numbers = {node.id: number for number, node in enumerate(self._nodes)}
            away = {node.id for node in snapshot.nodes_in_maintenance}
            maintenances = [MaintenancePeriod.of(window, numbers, away, snapshot.now) for window in snapshot.windows]
            self.engine.set_maintenances(tuple(maintenances), snapshot.now.timestamp())
        self._missing = [node.gpus - len(node.free_gpus) for node in self._nodes]
        self.claims = ClaimDecisions(stops=(), waits={})
        self._numbers: dict[int, int] = {}  # by id() of a ResourceRequest
        self._spellings: dict[tuple[object, ...], int] = {}
        self._groups_by_owner: list[dict[tuple[object, ...], RequestGroup]] = []  # by request number, then account
        self._timed: dict[tuple[ResourceRequest, float], ResourceRequest] = {}
        self._speeds = snapshot.speeds
        self._slowed: dict[tuple[int, str, str], ResourceRequest] = {}  # by id() of a request, user and job name
        self._completes_requests = bool(self._speeds or self.engine.maintenance.periods)
        self._holdings: dict[tuple[object, ...], RequestGroup] = {}
        self.gated: list[WaitDecision] = []
        self.jobs: list[tuple[EngineJob, WaitingJob]] = []
        self.order: list[EngineJob] = []  # all submitted jobs, in queue order
        for waiting in sorted(
            sorted(snapshot.waiting, key=BY_ID), key=BY_SUBMITTED_AT
        ):  # two stable sorts avoid comparing tuples
            if (waiting.hold or waiting.waits_for or waiting.begin_at) and waiting.has_gate(snapshot.now):
                gates = tuple(waiting.gate_blockers(snapshot.now))
                self.gated.append(
                    WaitDecision(job_id=waiting.id, reason=gates[0].reason, why=gates[0].why, blockers=gates)
                )
            else:
                self.jobs.append((self._engine_job(waiting), waiting))

    def _engine_job(self, waiting: WaitingJob) -> EngineJob:
        limit = _limit_seconds(waiting.time_limit)
        need = self.need(waiting) if self._completes_requests else waiting.need
        accounts, account = self._groups_by_owner[self._request_number(need)], OWNER_FIELDS(waiting)
        if (group := accounts.get(account)) is None:
            group = accounts[account] = self._request_group(need, QuotaOwner.of(waiting))
        job = EngineJob(len(self.jobs), group, _timestamp(waiting.submitted_at), limit, limit, band=-waiting.priority)
        if waiting.deadline_at:
            job.deadline = _timestamp(waiting.deadline_at)
        if history := self._history:
            job.attained = self._attained.get(waiting.id, 0.0)
            job.worked_s = _worked_s(history, waiting.id, waiting.need.charged_milli)
            job.predicted_s = min(history.prediction_s(waiting.id, trees=self._uses_trees), limit)
            self.engine.rules.restore(job)
        return job

    def _request_number(self, need: ResourceRequest) -> int:
        """A number that equal requests share. Most equal requests are the same object, so `id` is looked up first."""
        if (number := self._numbers.get(id(need))) is None:
            number = self._numbers[id(need)] = self._spellings.setdefault(
                REQUEST_FIELDS(need), len(self._groups_by_owner)
            )
            if number == len(self._groups_by_owner):
                self._groups_by_owner.append({})
        return number

    def submit(self, now: float) -> None:
        """Submit all jobs in queue order."""
        engine = self.engine
        for job, _ in self.jobs:
            engine.submit(job, now)
        engine.arrivals[:] = sort_entries(engine.arrivals)
        self.order = [entry[3] for entry in engine.arrivals]

    def need(self, waiting: WaitingJob) -> ResourceRequest:
        """The job's request, with its speeds if it has several GPU models, and its expected run time if a maintenance
        is ahead."""
        need = waiting.need
        if self._speeds and SEPARATOR in need.gpu_model:
            need = self._with_slowdowns(need, waiting)
        maintenances = self.engine.maintenance.periods
        return self._with_run_time(need, waiting) if maintenances else need

    def _with_slowdowns(self, need: ResourceRequest, waiting: WaitingJob) -> ResourceRequest:
        assert self._speeds is not None
        key = id(need), waiting.user, waiting.title
        if (found := self._slowed.get(key)) is None:
            scope = SpeedScope(waiting.user, waiting.title, need.total_gpus)
            slowdowns = self._speeds.slowdowns(scope, need.gpu_model)
            found = self._slowed[key] = replace(need, slowdowns=slowdowns) if slowdowns else need
        return found

    def _with_run_time(self, need: ResourceRequest, waiting: WaitingJob) -> ResourceRequest:
        maintenances = self.engine.maintenance.periods
        runs_s = run_time_seconds(waiting.time_limit, waiting.usual)
        key = need, runs_s
        if (found := self._timed.get(key)) is None:
            timed = round_up_run_time(maintenances, runs_s, self._now.timestamp())
            found = self._timed[key] = replace(need, runs_s=timed)
        return found

    def _running_group(self, held: RunningJob) -> RequestGroup:
        """The request group of a running job."""
        nodes = max(1, len(held.places))
        gpus = held.gpus, held.gpu_milli
        key = held.team, held.kind, held.preemptible, held.array, *gpus, held.cpus, held.memory_mb, nodes, held.watts
        if (group := self._holdings.get(key)) is None:
            owner = QuotaOwner(team=held.team, kind=held.kind, preemptible=held.preemptible, array=held.array)
            if held.gpus % nodes:  # a job of another scheduler may hold different numbers of GPUs on its nodes
                nodes = 1
            need = ResourceRequest(
                nodes=nodes,
                gpus=held.gpus // nodes,
                gpu_milli=held.gpu_milli,
                cpus=held.cpus,
                memory_mb=held.memory_mb,
                watts=held.watts,
            )
            group = self._holdings[key] = self._request_group(need, owner)
        return group

    def _request_group(self, need: ResourceRequest, owner: QuotaOwner) -> RequestGroup:
        if owner.team in self._guarantees and not owner.preemptible:
            need = replace(need, pool=owner.team)
        return self.engine.request_group(need, owner, owner.team)

    def _gpus_to_give_back(self, held: RunningJob, number: int, gpus: int) -> int:
        """GPUs to give back to a node: at most those missing there, because the node may have lost some since. For a
        share: the position of its GPU.
        """
        if held.gpu_milli:
            return shared_position(self._nodes[number], held.shared_gpu)
        gpus = min(gpus, self._missing[number])
        self._missing[number] -= gpus
        return gpus

    def adopt(self, running: Iterable[RunningJob], first: int | None = None) -> list[EngineJob]:
        """Add the running jobs, for policies that need their ends or usage. Return them in order of their start.

        Nodes that accept no jobs are not part of the engine. Running jobs are numbered after the waiting ones.
        """
        first = len(self.jobs) if first is None else first
        at = {node.id: number for number, node in enumerate(self.engine.resources.nodes)}
        adopted: list[tuple[EngineJob, GpuPlacement]] = []
        resources = self.engine.resources
        # Oldest first, because usage of accounts is accumulated forward in time
        oldest = sorted(sorted(running, key=BY_ID), key=lambda job: job.started_at or self._now)
        for number, held in enumerate(oldest, first):
            began = _timestamp(held.started_at or self._now)
            limit = _limit_seconds(held.time_limit)
            job = EngineJob(number, self._running_group(held), began, limit, limit, band=-held.priority)
            job.slowdown = held.slowdown
            if held.deadline_at:
                job.deadline = _timestamp(held.deadline_at)
            if self._history:
                job.attained = self._attained.get(held.id, 0.0)
                job.worked_s = _worked_s(self._history, held.id, held.charged_milli)
                job.predicted_s = min(self._history.prediction_s(held.id, trees=self._uses_trees), limit)
                self.engine.rules.restore(job)
            job.saved, job.stopping = _timestamp(held.saved_at) if held.saved_at else 0.0, held.stopping
            _set_contract(job, held)
            self._adopted[number] = held
            places = tuple(
                (at[node], self._gpus_to_give_back(held, at[node], gpus))
                for node, gpus in held.places.items()
                if node in at
            )
            resources.add_existing_job(places, job.group.need)
            adopted.append((job, places))
        now = self._now.timestamp()
        self.engine.adopt(adopted, now, counted_until=now if self._history else None)
        return [job for job, _ in adopted]

    def with_boot_text(self, start: StartDecision) -> StartDecision:
        """The start, with a sentence about nodes that sleep."""
        boots = [boot_s for number, boot_s in self.boots.items() if self._nodes[number].id in start.places]
        if not boots:
            return start
        nodes = format_count(len(boots), "node")
        minutes = math.ceil(max(boots) / 60)
        return replace(start, why=f"{start.why} {nodes} must wake up first, which takes about {minutes} min.")

    def settle_claims(self, now: float) -> ClaimDecisions:
        """Separate starts that need a preemption first: the job waits for its GPUs, and the victims are stopped.

        Victims whose stop was requested in an earlier turn are claimed again here. So the decision stays the same until
        they have stopped, and no other job is stopped in the meantime.
        """
        engine = self.engine
        turn = settle_turn(engine, self._free_before)
        engine.started_jobs[:], engine.stopped_jobs[:] = turn.starts, turn.stops
        stopped, delayed = turn.stops, [*turn.delayed, *(job for job, _ in engine.claims)]
        new = [job for job in stopped if not job.stopping]
        stops = tuple(self._stop_decision(job, now) for job in new if not job.saves_first)
        asks = tuple(self._ask_decision(job) for job in new if job.saves_first and job.asked == math.inf)
        victims: dict[EngineJob | None, list[RunningJob]] = defaultdict(list)
        for job in stopped:
            victims[job.preempted_by].append(self._adopted[job.number])
        cache: dict[tuple[str, int, int], Blocker] = {}
        decisions = {self.jobs[job.number][1].id: self._claim_wait(job, victims.get(job, ()), cache) for job in delayed}
        return ClaimDecisions(stops=stops, asks=asks, waits=decisions)

    def _stop_decision(self, job: EngineJob, now: float) -> StopDecision:
        """Stop a borrower, with a sentence that names the claiming job only to its own team."""
        assert job.preempted_by is not None
        lost = timedelta(seconds=round(self.engine.preemption_costs.unsaved_work_s(job, now)))
        held, claimant = self._adopted[job.number], self.jobs[job.preempted_by.number][1]
        why = f"It is preempted by {_claimant_label(claimant, held)}; the last {lost} of its work are not saved."
        return StopDecision(job_id=held.id, for_job=claimant.id, why=why)

    def _ask_decision(self, job: EngineJob) -> StopDecision:
        """Ask a borrower for a checkpoint, after which it is preempted if it still has to be."""
        assert job.preempted_by is not None
        held, claimant = self._adopted[job.number], self.jobs[job.preempted_by.number][1]
        why = f"After its next checkpoint, it is preempted by {_claimant_label(claimant, held)}."
        return StopDecision(job_id=held.id, for_job=claimant.id, why=why)

    def _claim_wait(
        self, job: EngineJob, victims: Sequence[RunningJob], cache: dict[tuple[str, int, int], Blocker]
    ) -> WaitDecision:
        """The wait decision of a job whose GPUs victims still hold. `cache` shares equal blockers between jobs."""
        waiting = self.jobs[job.number][1]
        have = "has" if len(victims) == 1 else "have"
        saves = any(victim.standing.may == Preemptability.AFTER_CHECKPOINT for victim in victims)
        saved = " saved a checkpoint and" if saves else ""
        why = f"Starts when {_victim_names(victims, waiting.team)} {have}{saved} been preempted."
        key = why, job.group.gpus, len(victims)
        if (blocker := cache.get(key)) is None:
            blocker = cache[key] = Blocker(
                kind=BlockerKind.CAPACITY, reason="Resources", why=why, gpus=job.group.gpus, jobs=len(victims)
            )
        return WaitDecision(waiting.id, "Resources", why, (blocker,))


def _resources(snapshot: ClusterSnapshot, nodes: Sequence[NodeView]) -> NodeResources:
    """What is free on these nodes, and what running jobs leave of the power budgets."""
    if not snapshot.power:
        return NodeResources(nodes)
    whole = next((budget for budget in snapshot.power if budget.nodes is None), None)
    wake_w = {number: node.wake_w for number, node in enumerate(nodes) if node.wake_w}
    budgets = [budget for budget in snapshot.power if wake_w or budget.nodes is not None]
    numbers = {node.id: number for number, node in enumerate(nodes)}
    offered = [
        (budget, _node_set(numbers, budget), budget.watts - held)
        for budget, held in zip(budgets, held_watts(snapshot, budgets), strict=True)
    ]
    areas = PowerAreas(offered, wake_w) if offered else None
    return NodeResources(nodes, whole, held_watts(snapshot, [whole])[0] if whole else 0, areas)


def _node_set(numbers: Mapping[int, int], budget: PowerBudget) -> NodeSet:
    inside = numbers if budget.nodes is None else budget.nodes
    return sum(1 << numbers[node] for node in inside if node in numbers)


def held_watts(snapshot: ClusterSnapshot, budgets: Sequence[PowerBudget]) -> list[int]:
    """What running jobs are predicted to draw of each budget, each job evenly on its nodes."""
    by_node: dict[int, int] = {}
    for job in snapshot.running:
        if job.watts and job.places:
            part = -(-job.watts // len(job.places))
            for node in job.places:
                by_node[node] = by_node.get(node, 0) + part
    everything = sum(job.watts for job in snapshot.running)
    return [
        everything if budget.nodes is None else sum(by_node.get(node, 0) for node in budget.nodes) for budget in budgets
    ]


def next_rank_change(snapshot: ClusterSnapshot, rules: PolicyRules) -> float | None:
    """When the rank of a running job changes next by itself, in whole seconds; None if none does."""
    state = SnapshotEngine(snapshot, rules)
    running = state.adopt(snapshot.running)
    changes = [at for job in running if (at := rules.next_rank_change(job, job.since)) is not None]
    return whole_second(min(changes)) if changes else None


def _set_contract(job: EngineJob, held: RunningJob) -> None:
    """Copy what the job's contract permits now."""
    standing = held.standing
    if standing.may == Preemptability.PROTECTED:
        job.protected_until = _timestamp(standing.until) if standing.until else math.inf
    job.saves_first = standing.may == Preemptability.AFTER_CHECKPOINT
    job.asked = _timestamp(held.asked_at) if held.asked_at and job.saves_first else math.inf


def _claimant_label(claimant: WaitingJob, victim: RunningJob) -> str:
    """The claiming job, named only to its own team."""
    return job_label(claimant.name, claimant.team, lambda team: team == victim.team)


def _victim_names(victims: Sequence[RunningJob], team: str) -> str:
    """The victims as the team may read them. Empty `victims`: they were stopped in an earlier turn."""
    if not victims:
        return "jobs that are already stopping"
    own = [victim.name for victim in victims if victim.team == team]
    others = len(victims) - len(own)
    names = [*own[:3], *([f"{len(own) - 3} more"] if len(own) > 3 else [])]
    if others:
        names.append("a job of another team" if others == 1 else f"{others} jobs of other teams")
    return " and ".join(names)


@dataclass(frozen=True, kw_only=True)
class ClaimDecisions:
    """The victims to stop or to ask for a checkpoint, and the wait decisions of the jobs that claim their GPUs."""

    stops: tuple[StopDecision, ...]
    asks: tuple[StopDecision, ...] = ()
    waits: dict[int, WaitDecision]  # by id of the waiting job


def _worked_s(history: SchedulingHistory, job_id: int, charged_milli: int) -> float:
    """The run time of earlier attempts, as on the first GPU model that the job requests."""
    return history.attained_by_speed.get(job_id, 0.0) * WHOLE_GPU / charged_milli if charged_milli else 0.0


def _limit_seconds(limit: timedelta | None) -> float:
    return _exact_seconds(limit) if limit else math.inf


def _timestamp(moment: datetime) -> float:
    return _exact_seconds(moment - EPOCH)


def _exact_seconds(time: timedelta) -> float:
    """`total_seconds` in half the time. Exact, because microseconds of 285 years fit into a float without loss."""
    return ((time.days * 86_400.0 + time.seconds) * 1e6 + time.microseconds) / 1e6
