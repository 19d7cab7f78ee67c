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

from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.engine import Engine, EngineJob, QueueEntry, RequestGroup
from scheduling.engine.placement import PER_NODE_PLACEMENTS
from scheduling.engine.room import GpuPlacement, NodeResources, NodeSet
from scheduling.engine.turns.ahead import ExactTimeline, GpuOnlyTimeline, PlannedShare, ResourceTimeline

MAX_TIMELINE_STEPS = 256  # more ends than this are taken together, each at the latest of its group
MAX_GPUS_FOR_SETS = 16  # on a node, up to which there is a set for each number
MIN_RUN_S = 1e-3  # even who is expected to take no time needs a place
OVERDUE_EXTENSION_S = 60.0  # whoever has passed his expected end is expected to take so much more

EndGroup = tuple[float, list[EngineJob]]  # when, and who ends then
KnownStarts = tuple[list[float], list[float]]  # how long some take and when they start, both rising
NO_KNOWN_STARTS: KnownStarts = [], []


class ReservationPlan:
    def __init__(self, engine: Engine, now: float) -> None:
        self._place = engine.place
        self._engine = engine
        self.starts: dict[EngineJob, tuple[float, PlannedShare]] = {}
        self._order: list[tuple[float, int, EngineJob]] = []  # these by time, and then as they were promised
        self._promised = 0
        self._until: dict[EngineJob, float] = {}  # when each is to give back what he holds
        self.last: QueueEntry | None = None  # who stands furthest back of those with a promise
        self.later: Iterator[QueueEntry] = iter(
            ()
        )  # who is still to be looked at, of those who waited when it was made
        self.made = 0  # promises to those
        self._wishes: list[ResourceRequest] = []
        self._numbers: dict[ResourceRequest, int] = {}
        self._never_before: dict[int, KnownStarts] = {}  # by wish
        groups = list(_with_reopenings(engine, _end_groups(engine, now)))
        for at, ended in groups:
            for job in ended:
                self._until[job] = at
        self.times = [now, *(at for at, _ in groups)]
        outlines = self._gpu_only_timeline(groups)
        self._outlined = outlines is not None
        self.rooms: ResourceTimeline = outlines or self._exact_timeline(groups)
        self._known: dict[int, tuple[ResourceRequest, int]] = {}

    def _exact_timeline(self, groups: list[EndGroup]) -> ExactTimeline:
        rooms = [self._engine.firm.copy()]
        for at, ended in groups:
            room = rooms[-1].copy()
            if not ended:
                self._engine.reopen_nodes(room, at)
            for job in ended:
                room.give(job.places or (), job.ask.need)
            rooms.append(room)
        return ExactTimeline(rooms, self._wishes)

    def _gpu_only_timeline(self, groups: list[EndGroup]) -> GpuOnlyTimeline | None:
        """None where more than GPUs may be short, or somebody must look closer."""
        engine, room = self._engine, self._engine.firm.copy()
        a_gpu = _max_cpu_memory_per_gpu(engine)
        if engine.place not in PER_NODE_PLACEMENTS or engine.bars or room.most > MAX_GPUS_FOR_SETS or a_gpu is None:
            return None
        if not _has_cpu_memory_per_gpu(room, a_gpu, range(len(room.nodes))):
            return None
        rooms = [room.nodes_with_at_least()]
        for _, ended in groups:
            for job in ended:
                places = job.places or ()
                room.give(places, job.ask.need)
                if not _has_cpu_memory_per_gpu(room, a_gpu, [node for node, _ in places]):
                    return None
            rooms.append(room.nodes_with_at_least())
        return GpuOnlyTimeline(engine.firm, self._wishes, rooms)

    @property
    def job(self) -> EngineJob:
        """The first who has a promise; there must be one."""
        return next(iter(self.starts))

    @property
    def at(self) -> float:
        return self.starts[self.job][0]

    def advance_to(self, now: float) -> None:
        """What is past is forgotten; the first room begins now."""
        past = bisect_right(self.times, now) - 1
        if past > 0:
            del self.times[:past]
            self.rooms.forget(past)
        self.times[0] = now

    def fits_now(self, ask: RequestGroup) -> bool:
        """Whether the first room has what is asked for; how long it will have it is another matter."""
        need, wish = self._numbered_request(ask)
        return (self.rooms.fitting_nodes_at(0, wish) & ask.able).bit_count() >= need.nodes

    def promise(self, job: EngineJob) -> float | None:
        """The earliest start that delays nobody who has one; None if it never fits."""
        need, wish = self._numbered_request(job.ask)
        rest = replace(need, nodes=1, gpus=need.rest, rest=0) if need.rest else None
        beside_wish = self._request_number(rest) if rest else 0
        times, rooms, wide = self.times, self.rooms, need.nodes
        first, count = bisect_left(times, self._earliest_known_start(job)), len(times)
        while first < count:
            begins = times[first]
            until = begins + max(job.expected_s, MIN_RUN_S)
            last = bisect_left(times, until, first + 1)
            able = self._engine.able(job.ask, begins) & rooms.usable(first)
            among, narrow = rooms.nodes_fitting_throughout(first, last, wish, wide, able)
            if narrow < last:
                first = rooms.after(first, narrow, wish, wide, able)
            else:
                beside = rooms.nodes_fitting_throughout(first, last, beside_wish, 0, able)[0] if rest else 0
                if places := self._find_placement(rooms.whole(first), need, rest, among, beside):
                    share = PlannedShare(places, need)
                    self._reserve_share(first, last, until, share)
                    self.starts[job] = begins, share
                    self._until[job] = until
                    self._promised += 1
                    insort(self._order, (begins, self._promised, job))
                    self._record_start(job, begins)
                    return begins
                first += 1
        self._record_start(job, math.inf)
        return None

    def _numbered_request(self, ask: RequestGroup) -> tuple[ResourceRequest, int]:
        """What is asked for, as far as it matters here, and its number."""
        if (known := self._known.get(ask.shape)) is None:
            need = replace(ask.need, cpus=0, memory_mb=0) if self._outlined else ask.need
            known = self._known[ask.shape] = need, self._request_number(need)
        return known

    def _request_number(self, wish: ResourceRequest) -> int:
        if (known := self._numbers.get(wish)) is None:
            known = self._numbers[wish] = len(self._wishes)
            self._wishes.append(wish)
        return known

    def _find_placement(
        self, room: NodeResources, need: ResourceRequest, rest: ResourceRequest | None, among: NodeSet, beside: NodeSet
    ) -> GpuPlacement | None:
        whole = self._place(room, replace(need, rest=0) if rest else need, among)
        if whole is None or rest is None:
            return whole
        last = self._place(room, rest, beside & ~sum(1 << node for node, _ in whole))
        return (*whole, *last) if last is not None else None

    def _reserve_share(self, first: int, last: int, until: float, share: PlannedShare) -> None:
        """From what begins before `until`; `last` is the first that does not."""
        if until < math.inf and (last == len(self.times) or self.times[last] != until):
            self.times.insert(last, until)
            self.rooms.split_step(last)
        self.rooms.take(first, last, share)

    def _record_start(self, job: EngineJob, begins: float) -> None:
        """Kept: for each time that one may take, the latest start of those who take no longer."""
        takes, starts = self._never_before.setdefault(self._numbered_request(job.ask)[1], ([], []))
        at = ends = bisect_left(takes, job.expected_s)
        while ends < len(takes) and starts[ends] <= begins:
            ends += 1
        takes[at:ends] = [job.expected_s]
        starts[at:ends] = [begins]

    def _earliest_known_start(self, job: EngineJob) -> float:
        """The plan only fills up, so what asks for the same and takes as long or longer starts no earlier."""
        takes, starts = self._never_before.get(self._numbered_request(job.ask)[1], NO_KNOWN_STARTS)
        at = bisect_right(takes, job.expected_s)
        return starts[at - 1] if at else -math.inf

    def matches(self, room: NodeResources, now: float) -> bool:
        """Whether it is as was planned, apart from those who are to start by now."""
        if self._all_on_time(now):
            return True
        at = max(0, bisect_right(self.times, now) - 1)
        return self.rooms.becomes(at, room, [self.starts[job][1] for job in self.due(now)])

    def _all_on_time(self, now: float) -> bool:
        """Whether since the last turn everybody gave back what he held when he was to, and not before. A node that
        comes or goes ends the plan, so then the room is as was planned; but who claims may hold other GPUs."""
        engine = self._engine
        late = bool(engine.ending) and engine.ending[0][0] <= now
        in_time = not late and not engine.rules.claims
        for job in engine.ended:
            in_time &= self._until.pop(job, math.inf) == now
        return in_time

    @property
    def next_start_time(self) -> float:
        """When the next of them is to start."""
        return self._order[0][0] if self._order else math.inf

    def due(self, now: float) -> list[EngineJob]:
        """Who is to start by now."""
        if self.next_start_time > now:
            return []
        return [job for _, _, job in self._order[: bisect_right(self._order, now, key=itemgetter(0))]]

    def start(self, now: float) -> list[tuple[EngineJob, GpuPlacement]]:
        """Who is to start by now; they have no promise any more."""
        due = self.due(now)
        del self._order[: len(due)]
        return [(job, self.starts.pop(job)[1].places) for job in due]


def _max_cpu_memory_per_gpu(engine: Engine) -> tuple[float, float] | None:
    """CPUs and memory that anybody asks for a GPU; None if somebody asks for them alone."""
    cpus = memory_mb = 0.0
    for ask in engine.asks.values():
        if not ask.need.needs_only_gpus:
            if not ask.share:
                return None
            cpus, memory_mb = max(cpus, ask.need.cpus / ask.share), max(memory_mb, ask.need.memory_mb / ask.share)
    return cpus, memory_mb


def _has_cpu_memory_per_gpu(room: NodeResources, a_gpu: tuple[float, float], nodes: Iterable[int]) -> bool:
    """Whether each of the nodes has so much beside every GPU that is free there; it stays so whoever takes GPUs."""
    cpus, memory_mb = a_gpu
    return all(room.cpus[n] >= cpus * room.free[n] and room.memory_mb[n] >= memory_mb * room.free[n] for n in nodes)


def _end_groups(engine: Engine, now: float) -> Iterator[EndGroup]:
    """Who ends when."""
    ends = [(max(end, now + OVERDUE_EXTENSION_S) if end <= now else end, job) for end, _, job in engine.ending]
    ends = sorted(
        ((at, job) for at, job in ends if at < math.inf and not _is_reclaimed(engine, job)), key=lambda one: one[0]
    )
    size = max(1, len(ends) // MAX_TIMELINE_STEPS)
    group: list[EngineJob] = []
    for index, (at, job) in enumerate(ends):
        group.append(job)
        following = ends[index + 1][0] if index + 1 < len(ends) else None
        if following != at and (len(group) >= size or following is None):
            yield at, group
            group = []


def _with_reopenings(engine: Engine, groups: Iterable[EndGroup]) -> Iterable[EndGroup]:
    """Also when a maintenance is over, with nobody who ends."""
    if not engine.bars:
        return groups
    over: list[EndGroup] = [(bar.end, []) for bar in engine.bars]
    return sorted([*groups, *over], key=itemgetter(0))


def _is_reclaimed(engine: Engine, job: EngineJob) -> bool:
    return engine.rules.claims and job.is_reclaimable
