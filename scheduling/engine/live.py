"""The engine's door for live clusters: a Picture in, Decisions out, with a sentence for everybody who waits.

The state is made from the Picture, asked once and dropped; a replay keeps it. Who may not start whatever is free (held,
not yet due, dependent) never enters the engine. Everybody else is told what kept him back after the last start of the
turn (`explain`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta

from scheduling.engine.blockers import gates
from scheduling.engine.books import Books, Owner
from scheduling.engine.cluster import Decisions, Need, Picture, RunningJob, Stop, Wait, WaitingJob
from scheduling.engine.engine import Ask, Engine, Job
from scheduling.engine.explain import Telling
from scheduling.engine.placements import PLACEMENTS, Outlook
from scheduling.engine.room import Room
from scheduling.engine.rules import Rules

Policy = Callable[[Picture], Decisions]


def policy(rules: type[Rules]) -> Policy:
    def decide_live(picture: Picture) -> Decisions:
        return decide(picture, rules())

    return decide_live


def decide(picture: Picture, rules: Rules) -> Decisions:
    opened = decided(picture, rules)
    engine, jobs = opened.engine, opened.jobs
    telling = Telling(engine, jobs)
    return Decisions(
        starts=tuple(telling.starts()),
        stops=tuple(Stop(job_id=jobs[job.number][1].id, why="It gives way.") for job in engine.stopped),
        waits=(*opened.gated, *telling.waits()),
    )


def decided(picture: Picture, rules: Rules) -> Opened:
    """The engine after one turn over the Picture."""
    now = picture.now.timestamp()
    opened = Opened(picture, rules)
    if rules.plans or rules.by_account or picture.placement == "cells":
        opened.adopt(picture.running)
    for job, _ in opened.jobs:
        opened.engine.submit(job, now)
    opened.engine.decide(now)
    return opened


class Opened:
    """An engine with the nodes and quotas of a Picture, and its jobs: those who may start, not yet submitted, by order
    of submission, and those who may not, with the reason."""

    def __init__(self, picture: Picture, rules: Rules) -> None:
        self._now = picture.now
        # Virtual clusters are teams with a quota; whose placement guarantees nothing need not tell them apart
        self._guarantees = picture.guarantees if picture.placement == "cells" else {}
        wishes = picture.wishes if picture.placement == "gradient" else {}
        placement = PLACEMENTS[picture.placement](Outlook(wishes=wishes, guarantees=self._guarantees))
        books = Books(picture.quotas, picture.running)
        self.engine = Engine(Room(picture.nodes), rules, placement=placement, books=books)
        self._missing = [node.gpus - len(node.free_gpus) for node in picture.nodes]
        self.gated: list[Wait] = []
        self.jobs: list[tuple[Job, WaitingJob]] = []
        for asked in sorted(picture.waiting, key=lambda job: (job.submitted_at, job.id)):
            if shut := tuple(gates(asked, picture.now)):
                self.gated.append(Wait(job_id=asked.id, reason=shut[0].reason, why=shut[0].why, blockers=shut))
            else:
                self.jobs.append((self._job(asked), asked))

    def _job(self, asked: WaitingJob) -> Job:
        limit = _seconds(asked.time_limit)
        ask = self._ask(asked.need, Owner.of(asked))
        return Job(len(self.jobs), ask, asked.submitted_at.timestamp(), limit, limit, band=-asked.priority)

    def _ask(self, need: Need, owner: Owner) -> Ask:
        if owner.team in self._guarantees and not owner.preemptible:
            need = replace(need, pool=owner.team)
        return self.engine.ask(need, owner, owner.team)

    def _taken(self, number: int, gpus: int) -> int:
        """No more comes back to a node than is missing there, whatever the record says: a node may have lost GPUs."""
        gpus = min(gpus, self._missing[number])
        self._missing[number] -= gpus
        return gpus

    def adopt(self, running: Iterable[RunningJob]) -> list[Job]:
        """Who runs already, for whoever must know when they end. Nodes that take no work are not in the room."""
        at = {node.id: number for number, node in enumerate(self.engine.room.nodes)}
        adopted = []
        # Oldest first: what an account has used is counted forward in time
        oldest = sorted(running, key=lambda job: (job.started_at or self._now, job.id))
        for number, held in enumerate(oldest, len(self.jobs)):
            owner = Owner(team=held.team, kind=held.kind, preemptible=held.preemptible, array=held.array)
            need = Need(gpus=held.gpus, cpus=held.cpus, memory_mb=held.memory_mb)
            began = (held.started_at or self._now).timestamp()
            limit = _seconds(held.time_limit)
            job = Job(number, self._ask(need, owner), began, limit, limit)
            places = tuple((at[node], self._taken(at[node], gpus)) for node, gpus in held.places.items() if node in at)
            self.engine.adopt(job, places, began)
            self.engine.room.held_before(places, job.ask.need)
            adopted.append(job)
        return adopted


def _seconds(limit: timedelta | None) -> float:
    return limit.total_seconds() if limit else math.inf
