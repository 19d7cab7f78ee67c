"""The engine's door for live clusters: a Picture in, Decisions out, with a sentence for everybody who waits.

The state is made from the Picture, asked once and dropped; a replay keeps it. Who may not start whatever is free (held,
not yet due, dependent) never enters the engine. Everybody else is told what kept him back after the last start of the
turn (`explain`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Final

from scheduling.engine.blockers import Blocker, BlockerKind, gate_blockers, has_gate, job_label
from scheduling.engine.cluster import (
    ClusterSnapshot,
    NodeView,
    ResourceRequest,
    RunningJob,
    StopDecision,
    TurnDecisions,
    WaitDecision,
    WaitingJob,
)
from scheduling.engine.engine import Engine, EngineJob, RequestGroup
from scheduling.engine.explain import WaitExplainer
from scheduling.engine.gpu_accounts import QuotaOwner, QuotaUsage
from scheduling.engine.line import sort_entries
from scheduling.engine.placements import PLACEMENTS, PlacementContext
from scheduling.engine.room import GpuPlacement, NodeResources
from scheduling.engine.rules import PolicyRules
from scheduling.engine.windows import MaintenanceBar, round_up_run_time, run_time_seconds

LivePolicy = Callable[[ClusterSnapshot], TurnDecisions]
# Whose are the same ask for the same, on one account; asked of ten thousand, so without the hash of a dataclass
REQUEST_FIELDS = attrgetter(*(one.name for one in fields(ResourceRequest)))
OWNER_FIELDS = attrgetter(*(one.name for one in fields(QuotaOwner)))
BY_SUBMITTED_AT, BY_ID = attrgetter("submitted_at"), attrgetter("id")
EPOCH: Final = datetime.fromtimestamp(0, UTC)


def live_policy(rules: Callable[[], PolicyRules]) -> LivePolicy:
    def decide_snapshot(picture: ClusterSnapshot) -> TurnDecisions:
        return turn_decisions(picture, rules())

    return decide_snapshot


def turn_decisions(picture: ClusterSnapshot, rules: PolicyRules) -> TurnDecisions:
    opened = engine_after_turn(picture, rules)
    telling = WaitExplainer(opened.engine, opened.jobs, opened.order, picture.now)
    given = opened.claims
    waits = telling.waits()
    if given.waits:
        waits = [given.waits.get(wait.job_id, wait) for wait in waits]
    return TurnDecisions(starts=tuple(telling.starts()), stops=given.stops, waits=(*opened.gated, *waits))


def engine_after_turn(picture: ClusterSnapshot, rules: PolicyRules) -> SnapshotEngine:
    """The engine after one turn over the Picture."""
    now = picture.now.timestamp()
    opened = SnapshotEngine(picture, rules, requeues=False)
    if rules.plans or rules.queues_by_account or picture.placement == "cells":
        opened.adopt(picture.running)
    opened.submit(now)
    opened.engine.decide(now)
    opened.claims = opened.settle_claims(now)
    return opened


class SnapshotEngine:
    """An engine with the nodes and quotas of a Picture, and its jobs: those who may start, not yet submitted, by order
    of submission, and those who may not, with the reason."""

    def __init__(self, picture: ClusterSnapshot, rules: PolicyRules, *, requeues: bool = True) -> None:
        self._now = picture.now
        self._nodes = (*picture.nodes, *picture.nodes_in_maintenance)
        self._adopted: dict[int, RunningJob] = {}
        # Virtual clusters are teams with a quota; whose placement guarantees nothing need not tell them apart
        self._guarantees = picture.guaranteed_nodes if picture.placement == "cells" else {}
        wishes = picture.typical_requests if picture.placement == "gradient" else {}
        placement = PLACEMENTS[picture.placement](PlacementContext(wishes=wishes, guarantees=self._guarantees))
        limited = picture.quotas or any(job.array_limit is not None for job in picture.waiting)
        books = QuotaUsage(picture.quotas, picture.running, rules.reserves) if limited else None
        self.engine = Engine(
            NodeResources(self._nodes), rules, placement=placement, books=books, checkpoint_s=None, requeues=requeues
        )
        if picture.windows:
            numbers = {node.id: number for number, node in enumerate(self._nodes)}
            away = {node.id for node in picture.nodes_in_maintenance}
            bars = [MaintenanceBar.of(window, numbers, away, picture.now) for window in picture.windows]
            self.engine.bar(tuple(bars), picture.now.timestamp())
        self._missing = [node.gpus - len(node.free_gpus) for node in self._nodes]
        self.claims = ClaimDecisions(stops=(), waits={})
        self._numbers: dict[int, int] = {}  # by the identity of a Need
        self._spellings: dict[tuple[object, ...], int] = {}
        self._wishes: list[dict[tuple[object, ...], RequestGroup]] = []  # by number of the Need, by account
        self._timed: dict[tuple[ResourceRequest, float], ResourceRequest] = {}
        self._holdings: dict[tuple[object, ...], RequestGroup] = {}
        self.gated: list[WaitDecision] = []
        self.jobs: list[tuple[EngineJob, WaitingJob]] = []
        self.order: list[EngineJob] = []  # all who were submitted, as they stood in line
        for asked in sorted(sorted(picture.waiting, key=BY_ID), key=BY_SUBMITTED_AT):  # two passes compare no tuples
            if (asked.hold or asked.waits_for or asked.begin_at) and has_gate(asked, picture.now):
                shut = tuple(gate_blockers(asked, picture.now))
                self.gated.append(WaitDecision(job_id=asked.id, reason=shut[0].reason, why=shut[0].why, blockers=shut))
            else:
                self.jobs.append((self._engine_job(asked), asked))

    def _engine_job(self, asked: WaitingJob) -> EngineJob:
        limit = _limit_seconds(asked.time_limit)
        need = self.need(asked) if self.engine.bars else asked.need
        accounts, account = self._wishes[self._request_number(need)], OWNER_FIELDS(asked)
        if (ask := accounts.get(account)) is None:
            ask = accounts[account] = self._request_group(need, QuotaOwner.of(asked))
        return EngineJob(len(self.jobs), ask, _timestamp(asked.submitted_at), limit, limit, band=-asked.priority)

    def _request_number(self, need: ResourceRequest) -> int:
        """The same for all that ask for the same; mostly they are one object, and nobody need look at it again."""
        if (number := self._numbers.get(id(need))) is None:
            number = self._numbers[id(need)] = self._spellings.setdefault(REQUEST_FIELDS(need), len(self._wishes))
            if number == len(self._wishes):
                self._wishes.append({})
        return number

    def submit(self, now: float) -> None:
        engine = self.engine
        for job, _ in self.jobs:
            engine.submit(job, now)
        engine.arrived[:] = sort_entries(engine.arrived)
        self.order = [entry[3] for entry in engine.arrived]

    def need(self, asked: WaitingJob) -> ResourceRequest:
        """With how long it takes, where a maintenance is ahead."""
        bars = self.engine.bars
        if not bars:
            return asked.need
        runs_s = run_time_seconds(asked.time_limit, asked.usual)
        known = asked.need, runs_s
        if (need := self._timed.get(known)) is None:
            timed = round_up_run_time(bars, runs_s, self._now.timestamp())
            need = self._timed[known] = replace(asked.need, runs_s=timed)
        return need

    def _running_group(self, held: RunningJob) -> RequestGroup:
        key = held.team, held.kind, held.preemptible, held.array, held.gpus, held.cpus, held.memory_mb
        if (ask := self._holdings.get(key)) is None:
            owner = QuotaOwner(team=held.team, kind=held.kind, preemptible=held.preemptible, array=held.array)
            need = ResourceRequest(gpus=held.gpus, cpus=held.cpus, memory_mb=held.memory_mb)
            ask = self._holdings[key] = self._request_group(need, owner)
        return ask

    def _request_group(self, need: ResourceRequest, owner: QuotaOwner) -> RequestGroup:
        if owner.team in self._guarantees and not owner.preemptible:
            need = replace(need, pool=owner.team)
        return self.engine.ask(need, owner, owner.team)

    def _limit_to_missing(self, number: int, gpus: int) -> int:
        """No more comes back to a node than is missing there, whatever the record says: a node may have lost GPUs."""
        gpus = min(gpus, self._missing[number])
        self._missing[number] -= gpus
        return gpus

    def adopt(self, running: Iterable[RunningJob], first: int | None = None) -> list[EngineJob]:
        """Who runs already, for whoever must know when they end. Nodes that take no work are not in the room. They are
        numbered behind those who wait."""
        first = len(self.jobs) if first is None else first
        at = {node.id: number for number, node in enumerate(self.engine.room.nodes)}
        adopted: list[tuple[EngineJob, GpuPlacement]] = []
        room = self.engine.room
        # Oldest first: what an account has used is counted forward in time
        oldest = sorted(sorted(running, key=BY_ID), key=lambda job: job.started_at or self._now)
        for number, held in enumerate(oldest, first):
            began = _timestamp(held.started_at or self._now)
            limit = _limit_seconds(held.time_limit)
            job = EngineJob(number, self._running_group(held), began, limit, limit, band=-held.priority)
            job.saved, job.stopping = _timestamp(held.saved_at) if held.saved_at else 0.0, held.stopping
            self._adopted[number] = held
            places = tuple(
                (at[node], self._limit_to_missing(at[node], gpus)) for node, gpus in held.places.items() if node in at
            )
            room.add_existing_job(places, job.ask.need)
            adopted.append((job, places))
        self.engine.adopt(adopted)
        return [job for job, _ in adopted]

    def settle_claims(self, now: float) -> ClaimDecisions:
        """Who was given what is not free yet does not start but waits for it, and who must stop for that is told so.

        Whose end was asked for in an earlier turn is given away here again, so the same is decided as long as he takes
        to stop, and nobody else need stop meanwhile.
        """
        started, stopped = self.engine.started, self.engine.stopped
        # Who began in this very turn, and gave way in it to a higher class, has neither started nor stopped
        started[:] = [job for job in started if job.places is not None]
        stopped[:] = [job for job in stopped if job.number in self._adopted]
        there = _UnclaimedResources(self._nodes)
        early = [job for job in started if not there.take(job)] if stopped else []
        if early:
            waits = set(early)
            started[:] = [job for job in started if job not in waits]
        stops = tuple(self._stop_decision(job, now) for job in stopped if not job.stopping)
        victims: dict[EngineJob | None, list[RunningJob]] = defaultdict(list)
        for job in stopped:
            victims[job.gave_way_to].append(self._adopted[job.number])
        told: dict[tuple[str, int, int], Blocker] = {}
        told_so = {self.jobs[job.number][1].id: self._claim_wait(job, victims.get(job, ()), told) for job in early}
        return ClaimDecisions(stops=stops, waits=told_so)

    def _stop_decision(self, job: EngineJob, now: float) -> StopDecision:
        assert job.gave_way_to is not None
        claimant = self.jobs[job.gave_way_to.number][1]
        lost = timedelta(seconds=round(self.engine.unsaved_work_s(job, now)))
        held = self._adopted[job.number]
        whom = job_label(claimant.name, claimant.team, lambda team: team == held.team)
        why = f"It gives way to {whom}; the work of the last {lost} is not saved."
        return StopDecision(job_id=held.id, for_job=claimant.id, why=why)

    def _claim_wait(
        self, job: EngineJob, victims: Sequence[RunningJob], told: dict[tuple[str, int, int], Blocker]
    ) -> WaitDecision:
        """`told`: to others. Most are told the same."""
        asked = self.jobs[job.number][1]
        have = "has" if len(victims) == 1 else "have"
        why = f"It starts as soon as {_victim_names(victims, asked.team)} {have} given way."
        known = why, job.ask.gpus, len(victims)
        if (blocker := told.get(known)) is None:
            blocker = told[known] = Blocker(
                kind=BlockerKind.CAPACITY, reason="Resources", why=why, gpus=job.ask.gpus, jobs=len(victims)
            )
        return WaitDecision(asked.id, "Resources", why, (blocker,))


def _victim_names(victims: Sequence[RunningJob], team: str) -> str:
    """As the team may read it. None of them: they were asked in an earlier turn."""
    if not victims:
        return "those who were asked to stop"
    mine = [victim.name for victim in victims if victim.team == team]
    others = len(victims) - len(mine)
    names = [*mine[:3], *([f"{len(mine) - 3} more"] if len(mine) > 3 else [])]
    if others:
        names.append("a job of another team" if others == 1 else f"{others} jobs of other teams")
    return " and ".join(names)


@dataclass(frozen=True, kw_only=True)
class ClaimDecisions:
    stops: tuple[StopDecision, ...]
    waits: dict[int, WaitDecision]  # by the job that they are for


class _UnclaimedResources:
    """What is really free, whatever else the engine has given away."""

    def __init__(self, nodes: Sequence[NodeView]) -> None:
        self._gpus = [len(node.free_gpus) for node in nodes]
        self._cpus = [node.free_cpus for node in nodes]
        self._memory_mb = [node.free_memory_mb for node in nodes]

    def take(self, job: EngineJob) -> bool:
        need, places = job.ask.need, job.places
        assert places is not None
        cpus, memory_mb = need.cpus, need.memory_mb
        for number, gpus in places:
            if self._gpus[number] < gpus or self._cpus[number] < cpus or self._memory_mb[number] < memory_mb:
                return False
        for number, gpus in places:
            self._gpus[number] -= gpus
            self._cpus[number] -= cpus
            self._memory_mb[number] -= memory_mb
        return True


def _limit_seconds(limit: timedelta | None) -> float:
    return _exact_seconds(limit) if limit else math.inf


def _timestamp(moment: datetime) -> float:
    return _exact_seconds(moment - EPOCH)


def _exact_seconds(time: timedelta) -> float:
    """`total_seconds`, in half the time: microseconds of 285 years are whole numbers without loss."""
    return ((time.days * 86_400.0 + time.seconds) * 1e6 + time.microseconds) / 1e6
