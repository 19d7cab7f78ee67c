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

from scheduling.engine.blockers import Blocker, BlockerKind, gated, gates, named
from scheduling.engine.books import Books, Owner
from scheduling.engine.cluster import Decisions, Need, NodeView, Picture, RunningJob, Stop, Wait, WaitingJob
from scheduling.engine.engine import Ask, Engine, Job
from scheduling.engine.explain import Telling
from scheduling.engine.line import in_order
from scheduling.engine.placements import PLACEMENTS, Outlook
from scheduling.engine.room import Places, Room
from scheduling.engine.rules import Rules
from scheduling.engine.windows import Bar, rounded, seconds

Policy = Callable[[Picture], Decisions]
# Whose are the same ask for the same, on one account; asked of ten thousand, so without the hash of a dataclass
SPELLED = attrgetter(*(one.name for one in fields(Need)))
ADMITTED = attrgetter(*(one.name for one in fields(Owner)))
SUBMITTED, ID = attrgetter("submitted_at"), attrgetter("id")
EPOCH: Final = datetime.fromtimestamp(0, UTC)


def policy(rules: Callable[[], Rules]) -> Policy:
    def decide_live(picture: Picture) -> Decisions:
        return decide(picture, rules())

    return decide_live


def decide(picture: Picture, rules: Rules) -> Decisions:
    opened = decided(picture, rules)
    telling = Telling(opened.engine, opened.jobs, opened.order, picture.now)
    given = opened.claims
    waits = telling.waits()
    if given.waits:
        waits = [given.waits.get(wait.job_id, wait) for wait in waits]
    return Decisions(starts=tuple(telling.starts()), stops=given.stops, waits=(*opened.gated, *waits))


def decided(picture: Picture, rules: Rules) -> Opened:
    """The engine after one turn over the Picture."""
    now = picture.now.timestamp()
    opened = Opened(picture, rules, requeues=False)
    if rules.plans or rules.by_account or picture.placement == "cells":
        opened.adopt(picture.running)
    opened.submit(now)
    opened.engine.decide(now)
    opened.claims = opened.claimed(now)
    return opened


class Opened:
    """An engine with the nodes and quotas of a Picture, and its jobs: those who may start, not yet submitted, by order
    of submission, and those who may not, with the reason."""

    def __init__(self, picture: Picture, rules: Rules, *, requeues: bool = True) -> None:
        self._now = picture.now
        self._nodes = (*picture.nodes, *picture.shut)
        self._adopted: dict[int, RunningJob] = {}
        # Virtual clusters are teams with a quota; whose placement guarantees nothing need not tell them apart
        self._guarantees = picture.guarantees if picture.placement == "cells" else {}
        wishes = picture.wishes if picture.placement == "gradient" else {}
        placement = PLACEMENTS[picture.placement](Outlook(wishes=wishes, guarantees=self._guarantees))
        limited = picture.quotas or any(job.array_limit is not None for job in picture.waiting)
        books = Books(picture.quotas, picture.running, rules.reserves) if limited else None
        self.engine = Engine(
            Room(self._nodes), rules, placement=placement, books=books, checkpoint_s=None, requeues=requeues
        )
        if picture.windows:
            numbers = {node.id: number for number, node in enumerate(self._nodes)}
            away = {node.id for node in picture.shut}
            bars = [Bar.of(window, numbers, away, picture.now) for window in picture.windows]
            self.engine.bar(tuple(bars), picture.now.timestamp())
        self._missing = [node.gpus - len(node.free_gpus) for node in self._nodes]
        self.claims = Claims(stops=(), waits={})
        self._numbers: dict[int, int] = {}  # by the identity of a Need
        self._spellings: dict[tuple[object, ...], int] = {}
        self._wishes: list[dict[tuple[object, ...], Ask]] = []  # by number of the Need, by account
        self._timed: dict[tuple[Need, float], Need] = {}
        self._holdings: dict[tuple[object, ...], Ask] = {}
        self.gated: list[Wait] = []
        self.jobs: list[tuple[Job, WaitingJob]] = []
        self.order: list[Job] = []  # all who were submitted, as they stood in line
        for asked in sorted(sorted(picture.waiting, key=ID), key=SUBMITTED):  # two passes compare no tuples
            if (asked.hold or asked.waits_for or asked.begin_at) and gated(asked, picture.now):
                shut = tuple(gates(asked, picture.now))
                self.gated.append(Wait(job_id=asked.id, reason=shut[0].reason, why=shut[0].why, blockers=shut))
            else:
                self.jobs.append((self._job(asked), asked))

    def _job(self, asked: WaitingJob) -> Job:
        limit = _seconds(asked.time_limit)
        need = self.need(asked) if self.engine.bars else asked.need
        accounts, account = self._wishes[self._number(need)], ADMITTED(asked)
        if (ask := accounts.get(account)) is None:
            ask = accounts[account] = self._ask(need, Owner.of(asked))
        return Job(len(self.jobs), ask, _timestamp(asked.submitted_at), limit, limit, band=-asked.priority)

    def _number(self, need: Need) -> int:
        """The same for all that ask for the same; mostly they are one object, and nobody need look at it again."""
        if (number := self._numbers.get(id(need))) is None:
            number = self._numbers[id(need)] = self._spellings.setdefault(SPELLED(need), len(self._wishes))
            if number == len(self._wishes):
                self._wishes.append({})
        return number

    def submit(self, now: float) -> None:
        engine = self.engine
        for job, _ in self.jobs:
            engine.submit(job, now)
        engine.arrived[:] = in_order(engine.arrived)
        self.order = [entry[3] for entry in engine.arrived]

    def need(self, asked: WaitingJob) -> Need:
        """With how long it takes, where a maintenance is ahead."""
        bars = self.engine.bars
        if not bars:
            return asked.need
        runs_s = seconds(asked.time_limit, asked.usual)
        known = asked.need, runs_s
        if (need := self._timed.get(known)) is None:
            timed = rounded(bars, runs_s, self._now.timestamp())
            need = self._timed[known] = replace(asked.need, runs_s=timed)
        return need

    def _held(self, held: RunningJob) -> Ask:
        key = held.team, held.kind, held.preemptible, held.array, held.gpus, held.cpus, held.memory_mb
        if (ask := self._holdings.get(key)) is None:
            owner = Owner(team=held.team, kind=held.kind, preemptible=held.preemptible, array=held.array)
            need = Need(gpus=held.gpus, cpus=held.cpus, memory_mb=held.memory_mb)
            ask = self._holdings[key] = self._ask(need, owner)
        return ask

    def _ask(self, need: Need, owner: Owner) -> Ask:
        if owner.team in self._guarantees and not owner.preemptible:
            need = replace(need, pool=owner.team)
        return self.engine.ask(need, owner, owner.team)

    def _taken(self, number: int, gpus: int) -> int:
        """No more comes back to a node than is missing there, whatever the record says: a node may have lost GPUs."""
        gpus = min(gpus, self._missing[number])
        self._missing[number] -= gpus
        return gpus

    def adopt(self, running: Iterable[RunningJob], first: int | None = None) -> list[Job]:
        """Who runs already, for whoever must know when they end. Nodes that take no work are not in the room. They are
        numbered behind those who wait."""
        first = len(self.jobs) if first is None else first
        at = {node.id: number for number, node in enumerate(self.engine.room.nodes)}
        adopted: list[tuple[Job, Places]] = []
        room = self.engine.room
        # Oldest first: what an account has used is counted forward in time
        oldest = sorted(sorted(running, key=ID), key=lambda job: job.started_at or self._now)
        for number, held in enumerate(oldest, first):
            began = _timestamp(held.started_at or self._now)
            limit = _seconds(held.time_limit)
            job = Job(number, self._held(held), began, limit, limit, band=-held.priority)
            job.saved, job.stopping = _timestamp(held.saved_at) if held.saved_at else 0.0, held.stopping
            self._adopted[number] = held
            places = tuple((at[node], self._taken(at[node], gpus)) for node, gpus in held.places.items() if node in at)
            room.held_before(places, job.ask.need)
            adopted.append((job, places))
        self.engine.adopt(adopted)
        return [job for job, _ in adopted]

    def claimed(self, now: float) -> Claims:
        """Who was given what is not free yet does not start but waits for it, and who must stop for that is told so.

        Whose end was asked for in an earlier turn is given away here again, so the same is decided as long as he takes
        to stop, and nobody else need stop meanwhile.
        """
        started, stopped = self.engine.started, self.engine.stopped
        # Who began in this very turn, and gave way in it to a higher class, has neither started nor stopped
        started[:] = [job for job in started if job.places is not None]
        stopped[:] = [job for job in stopped if job.number in self._adopted]
        there = _Free(self._nodes)
        early = [job for job in started if not there.take(job)] if stopped else []
        if early:
            waits = set(early)
            started[:] = [job for job in started if job not in waits]
        stops = tuple(self._stop(job, now) for job in stopped if not job.stopping)
        victims: dict[Job | None, list[RunningJob]] = defaultdict(list)
        for job in stopped:
            victims[job.gave_way_to].append(self._adopted[job.number])
        told: dict[tuple[str, int, int], Blocker] = {}
        told_so = {self.jobs[job.number][1].id: self._claim(job, victims.get(job, ()), told) for job in early}
        return Claims(stops=stops, waits=told_so)

    def _stop(self, job: Job, now: float) -> Stop:
        assert job.gave_way_to is not None
        claimant = self.jobs[job.gave_way_to.number][1]
        lost = timedelta(seconds=round(self.engine.unsaved_s(job, now)))
        held = self._adopted[job.number]
        whom = named(claimant.name, claimant.team, lambda team: team == held.team)
        why = f"It gives way to {whom}; the work of the last {lost} is not saved."
        return Stop(job_id=held.id, for_job=claimant.id, why=why)

    def _claim(self, job: Job, victims: Sequence[RunningJob], told: dict[tuple[str, int, int], Blocker]) -> Wait:
        """`told`: to others. Most are told the same."""
        asked = self.jobs[job.number][1]
        have = "has" if len(victims) == 1 else "have"
        why = f"It starts as soon as {_those(victims, asked.team)} {have} given way."
        known = why, job.ask.gpus, len(victims)
        if (blocker := told.get(known)) is None:
            blocker = told[known] = Blocker(
                kind=BlockerKind.CAPACITY, reason="Resources", why=why, gpus=job.ask.gpus, jobs=len(victims)
            )
        return Wait(asked.id, "Resources", why, (blocker,))


def _those(victims: Sequence[RunningJob], team: str) -> str:
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
class Claims:
    stops: tuple[Stop, ...]
    waits: dict[int, Wait]  # by the job that they are for


class _Free:
    """What is really free, whatever else the engine has given away."""

    def __init__(self, nodes: Sequence[NodeView]) -> None:
        self._gpus = [len(node.free_gpus) for node in nodes]
        self._cpus = [node.free_cpus for node in nodes]
        self._memory_mb = [node.free_memory_mb for node in nodes]

    def take(self, job: Job) -> bool:
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


def _seconds(limit: timedelta | None) -> float:
    return _whole(limit) if limit else math.inf


def _timestamp(moment: datetime) -> float:
    return _whole(moment - EPOCH)


def _whole(time: timedelta) -> float:
    """`total_seconds`, in half the time: microseconds of 285 years are whole numbers without loss."""
    return ((time.days * 86_400.0 + time.seconds) * 1e6 + time.microseconds) / 1e6
