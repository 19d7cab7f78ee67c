"""The plan of the future behind `conservative`: who has been promised which nodes, from when until when.

It is a row of rooms, one from each expected end or planned start to the next. A job gets the first stretch in which
enough nodes have what it asks all the time; there its share is taken from the rooms, and so on in order. Where CPUs and
memory cannot be what is short, a room is a few sets of nodes (`Outlines`), so that a gang costs no more than one node;
elsewhere it is a `Room` (`Stretches`); see `ahead`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import itemgetter

from scheduling.engine.cluster import Need
from scheduling.engine.engine import Ask, Engine, Entry, Job
from scheduling.engine.placement import BY_SHARE
from scheduling.engine.room import Nodes, Places, Room
from scheduling.engine.turns.ahead import Future, Outlines, Share, Stretches

MOST_ROOMS = 256  # more ends than this are taken together, each at the latest of its group
FEW_GPUS = 16  # on a node, up to which there is a set for each number
SHORTEST_S = 1e-3  # even who is expected to take no time needs a place
LATE_S = 60.0  # whoever has passed his expected end is expected to take so much more

Group = tuple[float, list[Job]]  # when, and who ends then
Known = tuple[list[float], list[float]]  # how long some take and when they start, both rising
NOTHING_KNOWN: Known = [], []


class Plan:
    def __init__(self, engine: Engine, now: float) -> None:
        self._place = engine.place
        self._engine = engine
        self.starts: dict[Job, tuple[float, Share]] = {}
        self._order: list[tuple[float, int, Job]] = []  # these by time, and then as they were promised
        self._promised = 0
        self._until: dict[Job, float] = {}  # when each is to give back what he holds
        self.last: Entry | None = None  # who stands furthest back of those with a promise
        self.later: Iterator[Entry] = iter(())  # who is still to be looked at, of those who waited when it was made
        self.made = 0  # promises to those
        self._wishes: list[Need] = []
        self._numbers: dict[Need, int] = {}
        self._never_before: dict[int, Known] = {}  # by wish
        groups = list(_with_reopenings(engine, _groups(engine, now)))
        for at, ended in groups:
            for job in ended:
                self._until[job] = at
        self.times = [now, *(at for at, _ in groups)]
        outlines = self._outlines(groups)
        self._outlined = outlines is not None
        self.rooms: Future = outlines or self._stretches(groups)
        self._known: dict[int, tuple[Need, int]] = {}

    def _stretches(self, groups: list[Group]) -> Stretches:
        rooms = [self._engine.firm.copy()]
        for at, ended in groups:
            room = rooms[-1].copy()
            if not ended:
                self._engine.reopen(room, at)
            for job in ended:
                room.give(job.places or (), job.ask.need)
            rooms.append(room)
        return Stretches(rooms, self._wishes)

    def _outlines(self, groups: list[Group]) -> Outlines | None:
        """None where more than GPUs may be short, or somebody must look closer."""
        engine, room = self._engine, self._engine.firm.copy()
        a_gpu = _most_beside_a_gpu(engine)
        if engine.place not in BY_SHARE or engine.bars or room.most > FEW_GPUS or a_gpu is None:
            return None
        if not _has_beside(room, a_gpu, range(len(room.nodes))):
            return None
        rooms = [room.at_least()]
        for _, ended in groups:
            for job in ended:
                places = job.places or ()
                room.give(places, job.ask.need)
                if not _has_beside(room, a_gpu, [node for node, _ in places]):
                    return None
            rooms.append(room.at_least())
        return Outlines(engine.firm, self._wishes, rooms)

    @property
    def job(self) -> Job:
        """The first who has a promise; there must be one."""
        return next(iter(self.starts))

    @property
    def at(self) -> float:
        return self.starts[self.job][0]

    def forward(self, now: float) -> None:
        """What is past is forgotten; the first room begins now."""
        past = bisect_right(self.times, now) - 1
        if past > 0:
            del self.times[:past]
            self.rooms.forget(past)
        self.times[0] = now

    def fits_now(self, ask: Ask) -> bool:
        """Whether the first room has what is asked for; how long it will have it is another matter."""
        need, wish = self._wish(ask)
        return (self.rooms.fitting(0, wish) & ask.able).bit_count() >= need.nodes

    def promise(self, job: Job) -> float | None:
        """The earliest start that delays nobody who has one; None if it never fits."""
        need, wish = self._wish(job.ask)
        rest = replace(need, nodes=1, gpus=need.rest, rest=0) if need.rest else None
        beside_wish = self._number(rest) if rest else 0
        times, rooms, wide = self.times, self.rooms, need.nodes
        first, count = bisect_left(times, self._not_before(job)), len(times)
        while first < count:
            begins = times[first]
            until = begins + max(job.expected_s, SHORTEST_S)
            last = bisect_left(times, until, first + 1)
            able = self._engine.able(job.ask, begins) & rooms.usable(first)
            among, narrow = rooms.narrowed(first, last, wish, wide, able)
            if narrow < last:
                first = rooms.after(first, narrow, wish, wide, able)
            else:
                beside = rooms.narrowed(first, last, beside_wish, 0, able)[0] if rest else 0
                if places := self._places(rooms.whole(first), need, rest, among, beside):
                    share = Share(places, need)
                    self._take(first, last, until, share)
                    self.starts[job] = begins, share
                    self._until[job] = until
                    self._promised += 1
                    insort(self._order, (begins, self._promised, job))
                    self._note(job, begins)
                    return begins
                first += 1
        self._note(job, math.inf)
        return None

    def _wish(self, ask: Ask) -> tuple[Need, int]:
        """What is asked for, as far as it matters here, and its number."""
        if (known := self._known.get(ask.shape)) is None:
            need = replace(ask.need, cpus=0, memory_mb=0) if self._outlined else ask.need
            known = self._known[ask.shape] = need, self._number(need)
        return known

    def _number(self, wish: Need) -> int:
        if (known := self._numbers.get(wish)) is None:
            known = self._numbers[wish] = len(self._wishes)
            self._wishes.append(wish)
        return known

    def _places(self, room: Room, need: Need, rest: Need | None, among: Nodes, beside: Nodes) -> Places | None:
        whole = self._place(room, replace(need, rest=0) if rest else need, among)
        if whole is None or rest is None:
            return whole
        last = self._place(room, rest, beside & ~sum(1 << node for node, _ in whole))
        return (*whole, *last) if last is not None else None

    def _take(self, first: int, last: int, until: float, share: Share) -> None:
        """From what begins before `until`; `last` is the first that does not."""
        if until < math.inf and (last == len(self.times) or self.times[last] != until):
            self.times.insert(last, until)
            self.rooms.split(last)
        self.rooms.take(first, last, share)

    def _note(self, job: Job, begins: float) -> None:
        """Kept: for each time that one may take, the latest start of those who take no longer."""
        takes, starts = self._never_before.setdefault(self._wish(job.ask)[1], ([], []))
        at = ends = bisect_left(takes, job.expected_s)
        while ends < len(takes) and starts[ends] <= begins:
            ends += 1
        takes[at:ends] = [job.expected_s]
        starts[at:ends] = [begins]

    def _not_before(self, job: Job) -> float:
        """The plan only fills up, so what asks for the same and takes as long or longer starts no earlier."""
        takes, starts = self._never_before.get(self._wish(job.ask)[1], NOTHING_KNOWN)
        at = bisect_right(takes, job.expected_s)
        return starts[at - 1] if at else -math.inf

    def matches(self, room: Room, now: float) -> bool:
        """Whether it is as was planned, apart from those who are to start by now."""
        if self._all_in_time(now):
            return True
        at = max(0, bisect_right(self.times, now) - 1)
        return self.rooms.becomes(at, room, [self.starts[job][1] for job in self.due(now)])

    def _all_in_time(self, now: float) -> bool:
        """Whether since the last turn everybody gave back what he held when he was to, and not before. A node that
        comes or goes ends the plan, so then the room is as was planned; but who claims may hold other GPUs."""
        engine = self._engine
        late = bool(engine.ending) and engine.ending[0][0] <= now
        in_time = not late and not engine.rules.claims
        for job in engine.ended:
            in_time &= self._until.pop(job, math.inf) == now
        return in_time

    @property
    def soonest(self) -> float:
        """When the next of them is to start."""
        return self._order[0][0] if self._order else math.inf

    def due(self, now: float) -> list[Job]:
        """Who is to start by now."""
        if self.soonest > now:
            return []
        return [job for _, _, job in self._order[: bisect_right(self._order, now, key=itemgetter(0))]]

    def start(self, now: float) -> list[tuple[Job, Places]]:
        """Who is to start by now; they have no promise any more."""
        due = self.due(now)
        del self._order[: len(due)]
        return [(job, self.starts.pop(job)[1].places) for job in due]


def _most_beside_a_gpu(engine: Engine) -> tuple[float, float] | None:
    """CPUs and memory that anybody asks for a GPU; None if somebody asks for them alone."""
    cpus = memory_mb = 0.0
    for ask in engine.asks.values():
        if not ask.need.bare:
            if not ask.share:
                return None
            cpus, memory_mb = max(cpus, ask.need.cpus / ask.share), max(memory_mb, ask.need.memory_mb / ask.share)
    return cpus, memory_mb


def _has_beside(room: Room, a_gpu: tuple[float, float], nodes: Iterable[int]) -> bool:
    """Whether each of the nodes has so much beside every GPU that is free there; it stays so whoever takes GPUs."""
    cpus, memory_mb = a_gpu
    return all(room.cpus[n] >= cpus * room.free[n] and room.memory_mb[n] >= memory_mb * room.free[n] for n in nodes)


def _groups(engine: Engine, now: float) -> Iterator[Group]:
    """Who ends when."""
    ends = [(max(end, now + LATE_S) if end <= now else end, job) for end, _, job in engine.ending]
    ends = sorted(((at, job) for at, job in ends if at < math.inf and not _yields(engine, job)), key=lambda one: one[0])
    size = max(1, len(ends) // MOST_ROOMS)
    group: list[Job] = []
    for index, (at, job) in enumerate(ends):
        group.append(job)
        following = ends[index + 1][0] if index + 1 < len(ends) else None
        if following != at and (len(group) >= size or following is None):
            yield at, group
            group = []


def _with_reopenings(engine: Engine, groups: Iterable[Group]) -> Iterable[Group]:
    """Also when a maintenance is over, with nobody who ends."""
    if not engine.bars:
        return groups
    over: list[Group] = [(bar.end, []) for bar in engine.bars]
    return sorted([*groups, *over], key=itemgetter(0))


def _yields(engine: Engine, job: Job) -> bool:
    return engine.rules.claims and job.yields
