"""What each job is told after a turn: what it was given, or what keeps it back, the weightiest first.

It is worked out once for all who ask for the same on one account; a job of its own costs the looking up. The sentences
are for the team of the job: who is ahead is named only if he belongs to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from jobs.notation import count, format_duration
from scheduling.engine.blockers import Blocker, BlockerKind, capital, named
from scheduling.engine.books import Refusal
from scheduling.engine.cluster import Need, Start, Wait, WaitingJob
from scheduling.engine.engine import Ask, Engine, Job
from scheduling.engine.room import Room, numbered
from scheduling.engine.windows import UNKNOWN_S, Window

Told = tuple[Blocker, ...]
Said = tuple[str, str, Told]  # as in a `Wait`, of the first of them
QUOTA_KINDS = {"JobArrayTaskLimit": BlockerKind.ARRAY, "ReqNodeNotAvail": BlockerKind.RESERVATION}


class Telling:
    def __init__(self, engine: Engine, jobs: list[tuple[Job, WaitingJob]], order: Sequence[Job], now: datetime) -> None:
        """`order`: of all who were submitted."""
        self._engine = engine
        self._now = now.timestamp()
        self._unbarred: Room | None = None
        self._jobs = jobs
        self._behind: dict[Ask, Said] = {}
        self._refusals: dict[Ask, Refusal | None] = {}
        self._lacking: dict[int, Blocker | None] = {}  # by shape
        started = set(engine.started)
        self.waiting = [job for job in order if job not in started]
        self.head = next((job for job in self.waiting if not self._refused(job.ask)), None)

    def starts(self) -> Iterator[Start]:
        taken = {number for job in self._engine.started for number, _ in job.places or ()}
        free = {number: sorted(self._engine.room.nodes[number].free_gpus) for number in taken}
        for job in self._engine.started:
            asked = self._jobs[job.number][1]
            need = asked.need
            number, word = (need.total_gpus, "GPU") if need.gpus else (need.nodes, "node")
            behind = self.head and _place(self.head) < _place(job)
            note = f"; {self._name_head(job.ask)} is ahead but does not fit." if behind else "."
            places = numbered(self._engine.room, job.places or (), free)
            yield Start(job_id=asked.id, places=places, why=f"{count(number, word)} {_were(number)} free{note}")

    def waits(self) -> list[Wait]:
        jobs, new = self._jobs, tuple.__new__  # the way around Wait's own takes half as long
        waits = []
        for job in self.waiting:
            reason, why, told = self._said(job)
            waits.append(new(Wait, (jobs[job.number][1].id, reason, why, told)))
        return waits

    def told(self, job: Job) -> Told:
        """Its blockers, ranked; the same object for all who are told the same."""
        return self._said(job)[2]

    def _said(self, job: Job) -> Said:
        ask = job.ask
        if job is self.head:
            return _said(self._tell(ask, is_head=True))
        if (said := self._behind.get(ask)) is None:
            said = self._behind[ask] = _said(self._tell(ask, is_head=False))
        return said

    def _tell(self, ask: Ask, *, is_head: bool) -> Iterator[Blocker]:
        ahead = self._ahead(ask) if self.head and not is_head else None
        lacks = self._lacks(ask)
        awaits = self._awaits(ask) if lacks and self._engine.bars else None
        lacks = awaits or lacks
        if refused := self._refused(ask):
            yield Blocker(
                kind=QUOTA_KINDS.get(refused.reason, BlockerKind.QUOTA), reason=refused.reason, why=refused.why
            )
            if lacks:
                yield lacks
            return
        if ahead and self._engine.rules.one_line:
            yield ahead
            if lacks:
                yield lacks
            return
        lacks = lacks or self._no_turn(ask)
        if not ahead or awaits:
            yield lacks
            if ahead:
                yield ahead
            return
        first = f"{lacks.why} {capital(self._name_head(ask))} is ahead of it."
        yield Blocker(kind=lacks.kind, reason=lacks.reason, why=first, gpus=lacks.gpus, nodes=lacks.nodes)
        yield ahead

    def _ahead(self, ask: Ask) -> Blocker:
        why = f"{capital(self._name_head(ask))} is ahead of it in the queue."
        return Blocker(kind=BlockerKind.PRIORITY, reason="Priority", why=why)

    def _name_head(self, ask: Ask) -> str:
        """As the team of this job may read it."""
        assert self.head is not None
        head = self._jobs[self.head.number][1]
        return named(head.name, head.team, lambda team: team == ask.owner.team)

    def _refused(self, ask: Ask) -> Refusal | None:
        if ask not in self._refusals:
            self._refusals[ask] = self._engine.refusal(ask)
        return self._refusals[ask]

    def _lacks(self, ask: Ask) -> Blocker | None:
        """What of the room is missing; None if it would fit. The same on every account."""
        if ask.shape not in self._lacking:
            engine = self._engine
            fits = engine.place(engine.room, ask.need, ask.able) is not None
            self._lacking[ask.shape] = None if fits else lacking(engine.room, ask)
        return self._lacking[ask.shape]

    def _awaits(self, ask: Ask) -> Blocker | None:
        """If nothing but a maintenance keeps it from starting."""
        engine = self._engine
        if self._unbarred is None:
            self._unbarred = engine.room.copy()
            engine.reopen(self._unbarred, math.inf)
        runs_s = ask.need.runs_s
        bars = [bar for bar in engine.bars if bar.stops(runs_s, self._now)]
        if not bars:
            return None
        left = (ask.able & engine.room.usable).bit_count()
        too_few = left < ask.need.nodes + bool(ask.need.rest)  # whoever holds the others, they are not to be had
        if not too_few and engine.place(self._unbarred, ask.need, ask.made) is None:
            return None
        why = barred_by([bar.window for bar in bars], self._now, runs_s)
        return Blocker(kind=BlockerKind.MAINTENANCE, reason="ReqNodeNotAvail", why=why, nodes=ask.need.nodes)

    def _no_turn(self, ask: Ask) -> Blocker:
        """It fits, and the policy keeps the place free for somebody."""
        promise = self._engine.promise
        if promise is None:
            why = "It fits now, but the policy lets others go first."
            return Blocker(kind=BlockerKind.PRIORITY, reason="Priority", why=why)
        at = "its turn" if promise.at == math.inf else f"{datetime.fromtimestamp(promise.at, UTC):%d %b %H:%M} UTC"
        why = f"It fits now, but could still run at {at}, when the first in the queue is to start."
        return Blocker(kind=BlockerKind.RESERVATION, reason="Priority", why=why, gpus=promise.job.ask.gpus)


def barred_by(windows: Sequence[Window], now: float, runs_s: float) -> str:
    """For a job that would fit, and be there when they begin."""
    each = [f"{one.name} from {one.start:%d %b %H:%M} until {one.end:%d %b %H:%M} UTC" for one in windows[:2]]
    more = f" and {len(windows) - 2} more" if len(windows) > 2 else ""
    why = f"The nodes it would fit on are reserved for maintenance {' and '.join(each)}{more}"
    if all(one.start.timestamp() <= now for one in windows):
        return f"{why}."
    if runs_s != UNKNOWN_S:
        return f"{why}, and might still run then."
    lead = max(one.lead for one in windows)
    return f"{why}; as it has no time limit, it does not start there in the {format_duration(lead)} before."


def _place(job: Job) -> tuple[int, float, int]:
    return job.band, job.key, job.number


def _said(told: Iterator[Blocker]) -> Said:
    blockers = tuple(told)
    return blockers[0].reason, blockers[0].why, blockers


def lacking(room: Room, ask: Ask) -> Blocker:
    """Too few GPUs at all, or enough of them but not in this shape."""
    need = ask.need
    with_gpus = room.fitting(Need(gpus=need.gpus), ask.able).bit_count()
    fitting = room.fitting(need, ask.able).bit_count()
    if not need.gpus:
        asked = f"{need.node or count(need.nodes, 'node')} with {count(need.cpus, 'CPU')}"
        why = f"It needs {asked}; {_have(fitting)} that free."
        return Blocker(
            kind=BlockerKind.CAPACITY, reason="Resources", why=why, nodes=max(0, need.nodes + bool(need.rest) - fitting)
        )
    free = room.free_gpus_among(ask.able)
    model = f"{need.gpu_model} GPU".strip()
    asked = count(need.gpus, model) if need.nodes == 1 else f"{need.nodes} × {count(need.gpus, model)}"
    asked += f" on {need.node}" if need.node else ""
    beside = _beside(room, need) if with_gpus > fitting else ""
    why = f"It needs {asked}; {_have(fitting)} {need.gpus} free{beside} ({count(free, 'GPU')} free in all)."
    scattered = free >= need.total_gpus
    return Blocker(
        kind=BlockerKind.TOPOLOGY if scattered else BlockerKind.CAPACITY,
        reason="Resources",
        why=why,
        gpus=max(0, need.total_gpus - free),
        nodes=max(0, need.nodes - fitting),
    )


def _beside(room: Room, need: Need) -> str:
    """Where CPUs or memory are what is short."""
    wanted = [count(need.cpus, "CPU")] if need.cpus else []
    if need.memory_mb:
        wanted.append(f"{need.memory_mb} MiB")
    return f" with {' and '.join(wanted)} beside them"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _have(nodes: int) -> str:
    return "no node has" if nodes == 0 else f"{count(nodes, 'node')} {'has' if nodes == 1 else 'have'}"
