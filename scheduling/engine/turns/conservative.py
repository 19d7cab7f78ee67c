"""Backfilling with a promise to everybody: whoever waits has a start time and nodes, and nobody is let pass who would
delay one of them.

The plan is a row of rooms, one from each expected end or planned start to the next. A job gets the first stretch in
which enough nodes have what it asks all the time; there its share is taken from the rooms, and so on in order. The plan
stands while it comes true. Who comes later is planned behind; if he goes before somebody who has a promise already, or
somebody ended early, late, or a node came or went, all promises are worked out anew in order. An early end never makes
one later: what was planned still fits.

Only so many are promised (`Rules.depth`, as Slurm's bf_max_job_test): the plan costs rooms times jobs. Who stands
further back must wait for a promise before he may start. Borrowers get none, they start on what is free and give way;
owners are planned as if no borrower were there.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace
from heapq import merge
from operator import itemgetter

from scheduling.engine.cluster import Need
from scheduling.engine.engine import Engine, Entry, Job
from scheduling.engine.room import Nodes, Places, Room
from scheduling.engine.turns.claiming import room_for

MOST_ROOMS = 256  # more ends than this are taken together, each at the latest of its group
SHORTEST_S = 1e-3  # even who is expected to take no time needs a place
LATE_S = 60.0  # whoever has passed his expected end is expected to take so much more


class Stretch:
    """The room from one time of the plan to the next, and the nodes that fit what was asked for before: by the number
    of the wish in `wishes`, which all stretches share.

    What is taken can only narrow them, and only on the nodes that are taken: so nobody looks at all nodes again."""

    __slots__ = ("_fitting", "_wishes", "room")

    def __init__(self, room: Room, wishes: list[Need], fitting: list[Nodes]) -> None:
        self.room = room
        self._wishes = wishes
        self._fitting = fitting  # as far as anybody asked

    def fitting(self, number: int) -> Nodes:
        known = self._fitting
        while len(known) <= number:
            known.append(self.room.fitting(self._wishes[len(known)]))
        return known[number]

    def take(self, places: Places, need: Need) -> None:
        room, known = self.room, self._fitting
        room.take(places, need)
        for node, _ in places:
            free, cpus, memory_mb = room.free[node], room.cpus[node], room.memory_mb[node]
            bit = 1 << node
            for number, nodes in enumerate(known):
                if nodes & bit:
                    wish = self._wishes[number]
                    if free < wish.gpus or cpus < wish.cpus or memory_mb < wish.memory_mb:
                        known[number] = nodes ^ bit

    def copy(self) -> Stretch:
        return Stretch(self.room.copy(), self._wishes, list(self._fitting))


class Plan:
    def __init__(self, engine: Engine, now: float) -> None:
        self._place = engine.place
        self._engine = engine
        self.starts: dict[Job, tuple[float, Places]] = {}
        self.last: Entry | None = None  # who stands furthest back of those with a promise
        room = engine.firm.copy()
        self._wishes: list[Need] = []
        self.times, self.rooms = [now], [Stretch(room, self._wishes, [])]
        self._numbers: dict[Need, int] = {}
        self._never_before: dict[Need, list[tuple[float, float]]] = {}
        for at, ended in _with_reopenings(engine, _groups(engine, now)):
            room = room.copy()
            if not ended:
                engine.reopen(room, at)
            for job in ended:
                room.give(job.places or (), job.ask.need)
            self.times.append(at)
            self.rooms.append(Stretch(room, self._wishes, []))

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
            del self.times[:past], self.rooms[:past]
        self.times[0] = now

    def promise(self, job: Job) -> float | None:
        """The earliest start that delays nobody who has one; None if it never fits."""
        need = job.ask.need
        rest = replace(need, nodes=1, gpus=need.rest, rest=0) if need.rest else None
        wish, beside_wish = self._number(need), self._number(rest) if rest else 0
        for first in range(bisect_left(self.times, self._not_before(job)), len(self.times)):
            begins = self.times[first]
            until = begins + max(job.expected_s, SHORTEST_S)
            among = beside = self._engine.able(job.ask, begins) & self.rooms[first].room.usable
            for at in range(first, len(self.times)):
                if self.times[at] >= until or among.bit_count() < need.nodes:
                    break
                among &= self.rooms[at].fitting(wish)
                beside = beside & self.rooms[at].fitting(beside_wish) if rest else 0
            if (places := self._places(self.rooms[first].room, need, rest, among, beside)) is not None:
                self._take(first, until, places, need)
                self.starts[job] = begins, places
                self._note(job, begins)
                return begins
        self._note(job, math.inf)
        return None

    def _number(self, wish: Need) -> int:
        if (known := self._numbers.get(wish)) is None:
            known = self._numbers[wish] = len(self._wishes)
            self._wishes.append(wish)
        return known

    def _places(self, room: Room, need: Need, rest: Need | None, among: Nodes, beside: Nodes) -> Places | None:
        if among.bit_count() < need.nodes:
            return None
        whole = self._place(room, replace(need, rest=0) if rest else need, among)
        if whole is None or rest is None:
            return whole
        last = self._place(room, rest, beside & ~sum(1 << node for node, _ in whole))
        return (*whole, *last) if last is not None else None

    def _take(self, first: int, until: float, places: Places, need: Need) -> None:
        last = len(self.times)
        if until < math.inf:
            last = bisect_left(self.times, until, first + 1)
            if last == len(self.times) or self.times[last] != until:
                self.times.insert(last, until)
                self.rooms.insert(last, self.rooms[last - 1].copy())
        for room in self.rooms[first:last]:
            room.take(places, need)

    def _note(self, job: Job, begins: float) -> None:
        """Kept: for each time that one may take, the latest start of those who take no longer."""
        known = self._never_before.get(job.ask.need, ())
        kept = [one for one in known if one[0] < job.expected_s or one[1] > begins]
        self._never_before[job.ask.need] = [*kept, (job.expected_s, begins)]

    def _not_before(self, job: Job) -> float:
        """The plan only fills up, so what asks for the same and takes as long or longer starts no earlier."""
        known = self._never_before.get(job.ask.need, ())
        return max((begins for expected_s, begins in known if expected_s <= job.expected_s), default=-math.inf)


def conservative(engine: Engine, now: float) -> None:
    while True:
        arrived, engine.arrived = sorted(engine.arrived), []
        if engine.hungry or (arrived := _start_at_once(engine, arrived, now)):
            _turn(engine, arrived, now)
        else:
            engine.promise = None
        if not engine.arrived:
            return
        engine.freed = True  # somebody had to stop, and may fit elsewhere


def _start_at_once(engine: Engine, arrived: list[Entry], now: float) -> list[Entry]:
    for at, (*_, job) in enumerate(arrived):
        if engine.books and engine.refuses(job.ask):
            return arrived[at:]
        if (places := room_for(engine, job, job.ask.able, now)) is None:
            return arrived[at:]
        engine.begin(job, places, now)
    return []


def _turn(engine: Engine, arrived: list[Entry], now: float) -> None:
    for entry in arrived:
        entry[3].ask.line.add(entry)
        engine.hungry[entry[3].ask] = None
    plan: Plan | None = engine.promise
    if plan is None or engine.books or not _comes_true(engine, plan, arrived, now):
        plan = engine.promise = _made_anew(engine, now)
    else:
        for entry in arrived:
            _plan(engine, plan, entry)
    for job in [job for job, (at, _) in plan.starts.items() if at <= now]:
        _start(engine, plan, job, now)
    for _, _, _, job in _waiting(engine):
        ask = job.ask
        if ask.borrows and engine.rules.claims and not (engine.books and engine.refuses(ask)):
            places = room_for(engine, job, ask.able, now)
            if places is not None:
                _begin(engine, job, places, now)
    if not plan.starts:
        engine.promise = None


def _comes_true(engine: Engine, plan: Plan, arrived: list[Entry], now: float) -> bool:
    if plan.last is not None and arrived and arrived[0] < plan.last:
        return False
    if any(at < now for at, _ in plan.starts.values()):
        return False  # somebody was expected to end by then, and did not
    plan.forward(now)
    room = plan.rooms[0].room
    for job, (at, places) in plan.starts.items():
        if at <= now:
            room = room.copy()
            room.give(places, job.ask.need)
    return room.free == engine.firm.free and room.usable == engine.firm.usable


def _made_anew(engine: Engine, now: float) -> Plan:
    plan = Plan(engine, now)
    for entry in _waiting(engine):
        _plan(engine, plan, entry)
        if len(plan.starts) >= engine.rules.depth:
            break
    return plan


def _plan(engine: Engine, plan: Plan, entry: Entry) -> None:
    job = entry[3]
    yields = job.ask.borrows and engine.rules.claims
    if not yields and len(plan.starts) < engine.rules.depth and not (engine.books and engine.refuses(job.ask)):
        plan.promise(job)
        plan.last = max(plan.last, entry) if plan.last else entry


def _start(engine: Engine, plan: Plan, job: Job, now: float) -> None:
    _, planned = plan.starts.pop(job)
    if engine.books and engine.refuses(job.ask):
        engine.promise = None  # those before him have used the quota up: others may have his place
    elif engine.rules.claims:
        places = room_for(engine, job, sum(1 << node for node, _ in planned), now)
        assert places is not None
        _begin(engine, job, places, now)
    else:
        _begin(engine, job, planned, now)


def _begin(engine: Engine, job: Job, places: Places, now: float) -> None:
    engine.begin(job, places, now)
    job.ask.line.remove(job)
    job.ask.line.tidy()
    engine.tidy(job.ask)


def _waiting(engine: Engine) -> Iterator[Entry]:
    """Everybody, in order over all the lines, as it is now."""
    return iter(list(merge(*(list(ask.line) for ask in engine.hungry))))


def _groups(engine: Engine, now: float) -> Iterator[tuple[float, list[Job]]]:
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


def _with_reopenings(engine: Engine, groups: Iterable[tuple[float, list[Job]]]) -> Iterable[tuple[float, list[Job]]]:
    """Also when a maintenance is over, with nobody who ends."""
    if not engine.bars:
        return groups
    over: list[tuple[float, list[Job]]] = [(bar.end, []) for bar in engine.bars]
    return sorted([*groups, *over], key=itemgetter(0))


def _yields(engine: Engine, job: Job) -> bool:
    return engine.rules.claims and job.yields
