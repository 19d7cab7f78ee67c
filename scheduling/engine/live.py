"""The engine's door for live clusters: a Picture in, Decisions out, with a sentence for everybody who waits.

The state is made from the Picture, asked once and dropped; a replay keeps it. Who may not start whatever is free (held,
not yet due, dependent) never enters the engine. Everybody else is told what kept him back after the last start of the
turn: his quota, who is ahead, or what he lacks; that is worked out once for all who ask for the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from jobs.notation import count
from scheduling.engine.books import Books, Owner, Refusal
from scheduling.engine.cluster import Decisions, Need, NodeView, Picture, RunningJob, Start, Stop, Wait, WaitingJob
from scheduling.engine.engine import Ask, Engine, Job
from scheduling.engine.room import Room, numbered
from scheduling.engine.rules import Rules

Policy = Callable[[Picture], Decisions]


def policy(rules: Callable[[], Rules]) -> Policy:
    def decide_live(picture: Picture) -> Decisions:
        return decide(picture, rules())

    return decide_live


def decide(picture: Picture, rules: Rules) -> Decisions:
    now = picture.now.timestamp()
    opened = Opened(picture, rules, requeues=False)
    engine, jobs = opened.engine, opened.jobs
    if rules.plans or rules.by_account:
        opened.adopt(picture.running)
    for job, _ in jobs:
        engine.submit(job, now)
    engine.decide(now)
    claims = opened.claims(now)
    telling = _Telling(engine, jobs)
    waits = (claims.waits.get(wait.job_id, wait) for wait in telling.waits())
    return Decisions(starts=tuple(telling.starts()), stops=claims.stops, waits=(*opened.gated, *waits))


class Opened:
    """An engine with the nodes and quotas of a Picture, and its jobs: those who may start, not yet submitted, by order
    of submission, and those who may not, with the reason."""

    def __init__(self, picture: Picture, rules: Rules, *, requeues: bool = True) -> None:
        self._now = picture.now
        self._nodes = picture.nodes
        self._adopted: dict[int, RunningJob] = {}
        books = Books(picture.quotas, picture.running, rules.reserves)
        self.engine = Engine(Room(picture.nodes), rules, books=books, checkpoint_s=None, requeues=requeues)
        self._missing = [node.gpus - len(node.free_gpus) for node in picture.nodes]
        self.gated: list[Wait] = []
        self.jobs: list[tuple[Job, WaitingJob]] = []
        for asked in sorted(picture.waiting, key=lambda job: (job.submitted_at, job.id)):
            if gate := next(_gates(asked, picture.now), None):
                self.gated.append(gate)
            else:
                self.jobs.append((self._job(asked), asked))

    def _job(self, asked: WaitingJob) -> Job:
        limit = _seconds(asked.time_limit)
        ask = self._ask(asked.need, Owner.of(asked))
        return Job(len(self.jobs), ask, asked.submitted_at.timestamp(), limit, limit, band=-asked.priority)

    def _ask(self, need: Need, owner: Owner) -> Ask:
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
            job = Job(number, self._ask(need, owner), began, limit, limit, band=-held.priority)
            job.saved, job.stopping = held.saved_at.timestamp() if held.saved_at else 0.0, held.stopping
            self._adopted[number] = held
            places = tuple((at[node], self._taken(at[node], gpus)) for node, gpus in held.places.items() if node in at)
            self.engine.adopt(job, places, began)
            self.engine.room.held_before(places, need)
            adopted.append(job)
        return adopted

    def claims(self, now: float) -> Claims:
        """Who was given what is not free yet does not start but waits for it, and who must stop for that is told so.

        Whose end was asked for in an earlier turn is given away here again, so the same is decided as long as he takes
        to stop, and nobody else need stop meanwhile.
        """
        started, stopped = self.engine.started, self.engine.stopped
        there = _Free(self._nodes)
        early = [job for job in started if not there.take(job)] if stopped else []
        for job in early:
            started.remove(job)
        stops = tuple(self._stop(job, now) for job in stopped if not job.stopping)
        return Claims(stops=stops, waits={self.jobs[job.number][1].id: self._claim(job, stopped) for job in early})

    def _stop(self, job: Job, now: float) -> Stop:
        assert job.gave_way_to is not None
        claimant = self.jobs[job.gave_way_to.number][1]
        lost = timedelta(seconds=round(self.engine.unsaved_s(job, now)))
        why = f"It gives way to {claimant.name} of team {claimant.team}; the work of the last {lost} is not saved."
        return Stop(job_id=self._adopted[job.number].id, for_job=claimant.id, why=why)

    def _claim(self, job: Job, stopped: list[Job]) -> Wait:
        asked = self.jobs[job.number][1]
        names = [self._adopted[victim.number].name for victim in stopped if victim.gave_way_to is job]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        whom = f"{', '.join(names[:3])}{more}" if names else "others that were asked to stop"
        return Wait(job_id=asked.id, reason="Resources", why=f"It starts as soon as {whom} {_has(names)} given way.")


def _has(names: list[str]) -> str:
    return "has" if len(names) == 1 else "have"


@dataclass(frozen=True, kw_only=True)
class Claims:
    stops: tuple[Stop, ...]
    waits: Mapping[int, Wait]  # by the job that they are for


class _Free:
    """What is really free, whatever else the engine has given away."""

    def __init__(self, nodes: Sequence[NodeView]) -> None:
        self._left = [[len(node.free_gpus), node.free_cpus, node.free_memory_mb] for node in nodes]

    def take(self, job: Job) -> bool:
        need, left, places = job.ask.need, self._left, job.places or ()
        parts = [(left[number], (gpus, need.cpus, need.memory_mb)) for number, gpus in places]
        if any(have < part for there, wanted in parts for have, part in zip(there, wanted, strict=True)):
            return False
        for there, wanted in parts:
            there[:] = [have - part for have, part in zip(there, wanted, strict=True)]
        return True


def _seconds(limit: timedelta | None) -> float:
    return limit.total_seconds() if limit else math.inf


def _gates(job: WaitingJob, now: datetime) -> Iterator[Wait]:
    """What keeps it back whatever is free."""
    if job.hold == "admin":
        yield Wait(job_id=job.id, reason="JobHeldAdmin", why=job.held_why or "An operator holds it.")
    elif job.hold:
        yield Wait(job_id=job.id, reason="JobHeldUser", why=job.held_why or "Its owner holds it.")
    if job.begin_at and job.begin_at > now:
        yield Wait(job_id=job.id, reason="BeginTime", why=f"It may begin at {job.begin_at:%Y-%m-%d %H:%M:%S} UTC.")
    if job.waits_for:
        more = f" and {len(job.waits_for) - 3} more" if len(job.waits_for) > 3 else ""
        names = ", ".join(job.waits_for[:3]) + more
        yield Wait(job_id=job.id, reason="Dependency", why=f"It waits for the end of {names}.")


class _Telling:
    """What each job is told after a turn."""

    def __init__(self, engine: Engine, jobs: list[tuple[Job, WaitingJob]]) -> None:
        self._engine = engine
        self._jobs = jobs
        self._started = {job.number for job in engine.started}
        self._sentences: dict[Ask, tuple[str, str]] = {}
        self._refusals: dict[Ask, Refusal | None] = {}
        waiting = [(job.band, job.key, job.number, asked) for job, asked in jobs if job.number not in self._started]
        self._waiting = sorted(waiting, key=lambda entry: entry[:3])
        self._head = next((entry for entry in self._waiting if not self._refused(jobs[entry[2]][0].ask)), None)

    def starts(self) -> Iterator[Start]:
        free = {number: sorted(node.free_gpus) for number, node in enumerate(self._engine.room.nodes)}
        for job in self._engine.started:
            asked = self._jobs[job.number][1]
            need = asked.need
            number, word = (need.total_gpus, "GPU") if need.gpus else (need.nodes, "node")
            behind = self._head and self._head[:3] < (job.band, job.key, job.number)
            note = f"; {self._head[3].name} is ahead but does not fit." if self._head and behind else "."
            places = numbered(self._engine.room, job.places or (), free)
            yield Start(job_id=asked.id, places=places, why=f"{count(number, word)} {_were(number)} free{note}")

    def waits(self) -> Iterator[Wait]:
        head = self._head[3] if self._head else None
        strict = self._engine.rules.one_line
        for *_, number, asked in self._waiting:
            ask = self._jobs[number][0].ask
            if refused := self._refused(ask):
                yield Wait(job_id=asked.id, reason=refused.reason, why=refused.why)
            elif head and strict and asked is not head:
                yield Wait(job_id=asked.id, reason="Priority", why=f"{head.name} is ahead of it in the queue.")
            else:
                reason, why = self._lacks(ask)
                ahead = f" {head.name} is ahead of it." if head and asked is not head else ""
                yield Wait(job_id=asked.id, reason=reason, why=why + ahead)

    def _refused(self, ask: Ask) -> Refusal | None:
        if ask not in self._refusals:
            self._refusals[ask] = self._engine.refusal(ask)
        return self._refusals[ask]

    def _lacks(self, ask: Ask) -> tuple[str, str]:
        if (known := self._sentences.get(ask)) is None:
            known = self._sentences[ask] = self._no_room(ask)
        return known

    def _no_room(self, ask: Ask) -> tuple[str, str]:
        room, need = self._engine.room, ask.need
        fitting = room.fitting(need, ask.able).bit_count()
        promise = self._engine.promise
        if promise and self._engine.place(room, need, ask.able) is not None:
            at = "its turn" if promise.at == math.inf else f"{datetime.fromtimestamp(promise.at, UTC):%d %b %H:%M} UTC"
            return "Priority", f"It fits now, but could still run at {at}, when the first in the queue is to start."
        if not need.gpus:
            asked = f"{count(need.nodes, 'node')} with {count(need.cpus, 'CPU')}"
            return "Resources", f"It needs {asked}; {_have(fitting)} that free."
        model = f"{need.gpu_model} GPU".strip()
        asked = count(need.gpus, model) if need.nodes == 1 else f"{need.nodes} × {count(need.gpus, model)}"
        free = count(room.free_gpus_among(ask.able), "GPU")
        return "Resources", f"It needs {asked}; {_have(fitting)} {need.gpus} free ({free} free in all)."


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _have(nodes: int) -> str:
    return "no node has" if nodes == 0 else f"{count(nodes, 'node')} {'has' if nodes == 1 else 'have'}"
