"""Backfilling with one reservation: the first job that does not fit gets it, others may pass without delaying it.

The reservation is based on expected ends: in a copy of the resources, running jobs are released in order of their ends
until the first job fits. It names the nodes and how many of their GPUs are spare. Another job may pass if it is
expected to end before the reserved start, or if it uses other nodes or only spare GPUs.

The reservation is kept until its job starts, a job ends early, or a node is closed or opened; a new reservation for the
same job is never later. While it is kept, time only reduces what may pass: if nothing was freed, only new arrivals are
tried, and a queue without a job that is short enough (`RequestGroup.no_backfill_under`) is not searched again.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from operator import itemgetter

from scheduling.engine.engine import Engine, EngineJob, QueueEntry, RequestGroup
from scheduling.engine.line import OrderedJobQueue, enqueue_entries
from scheduling.engine.room import GpuPlacement, NodeSet
from scheduling.engine.turns.claiming import claim_placement, claimable_jobs, fits_with_claims

# The class matters for borrowers, which may claim from lower classes; it is None for owners
FitCache = dict[tuple[int, NodeSet, int | None], bool]  # shape, nodes, class -> whether it fits
UnfitKeys = set[tuple[int, bool, int | None]]  # shape, whether the job is short, class


@dataclass(eq=False, kw_only=True)
class HeadReservation:
    """The reservation of the first job that does not fit."""

    job: EngineJob
    at: float
    claims: bool = False
    spare: dict[int, int] = field(default_factory=dict)  # reserved node -> GPUs that other jobs may hold beyond `at`
    known: dict[int, NodeSet] = field(default_factory=dict)  # by shape: nodes usable beyond `at`

    def slack(self, now: float) -> float:
        """How long a passing job may run. Always finite, so jobs without a limit never pass an unknown start."""
        return min(self.at - now, sys.float_info.max)

    def may_pass_freely(self, ask: RequestGroup) -> bool:
        """Whether the group may always pass: an owner can preempt borrowers anyway."""
        return self.claims and ask.borrows and not self.job.ask.borrows

    def nodes_past_start(self, ask: RequestGroup) -> NodeSet:
        """The nodes on which this group may hold GPUs past the reserved start."""
        if (nodes := self.known.get(ask.shape)) is None:
            nodes = self.known[ask.shape] = self._find_nodes_past_start(ask)
        return nodes

    def _find_nodes_past_start(self, ask: RequestGroup) -> NodeSet:
        if self.at == math.inf:
            return 0  # the start is unknown, so a job without a known end must not pass
        need = ask.need
        gang = need.nodes > 1 or need.rest
        return ask.able & ~sum(1 << node for node, spare in self.spare.items() if gang or spare < need.gpus)

    def use_spare_gpus(self, places: GpuPlacement) -> None:
        """Subtract a placement from the spare GPUs."""
        for node, gpus in places:
            if node in self.spare:
                self.spare[node] -= gpus
                self.known.clear()


def easy_turn(engine: Engine, now: float) -> None:
    """Start jobs in order and backfill; repeat after preemptions, because victims may fit elsewhere."""
    while True:
        arrived, engine.arrived = engine.arrived, []
        _backfill_turn(engine, arrived, now)
        if not engine.arrived:
            return
        engine.freed = True  # a job was stopped and may fit elsewhere


def _backfill_turn(engine: Engine, arrived: list[QueueEntry], now: float) -> None:
    if len(arrived) > 1:
        arrived.sort()
    if not engine.hungry:
        engine.promise = None
        arrived = _start_at_once(engine, arrived, now)
        if not arrived:
            return
    promise: HeadReservation | None = engine.promise
    stands = promise is not None and not _arrived_before_head(arrived, promise.job)
    if promise and stands and not engine.freed:
        nowhere: UnfitKeys = set()
        enqueue_entries(
            [entry for entry in arrived if not _try_backfill(engine, promise, entry[3], now, nowhere)], engine.hungry
        )
        return
    if arrived:
        enqueue_entries(arrived, engine.hungry)
    if promise and stands and _head_still_waits(engine, promise.job, now):
        head: EngineJob | None = promise.job
    else:
        head = _start_heads(engine, now)
    if head is None:
        engine.promise = None
        return
    opened = engine.room.most
    if promise is None or promise.job is not head:
        promise = engine.promise = _reserve_head(engine, head, now)
    elif not arrived and not engine.rules.claims:
        opened = engine.opened
    for entry in arrived:
        entry[3].ask.no_backfill_under = None
    _backfill_jobs(engine, promise, now, opened)


def _head_still_waits(engine: Engine, first: EngineJob, now: float) -> bool:
    """Whether the job with the reservation still does not fit. No job may have arrived before it."""
    if engine.books or engine.rules.queues_by_account:
        return False
    if engine.rules.claims:
        return not fits_with_claims(engine, first, first.ask.able)
    return first.ask.share > engine.opened or engine.place(engine.room, first.ask.need, first.ask.able) is None


def _arrived_before_head(arrived: list[QueueEntry], head: EngineJob) -> bool:
    """Whether a job arrived that goes before the first one in the queue."""
    return bool(arrived) and arrived[0][:3] < (head.band, head.key, head.number)


def _start_at_once(engine: Engine, arrived: list[QueueEntry], now: float) -> list[QueueEntry]:
    """Start arrived jobs while no job waits. Return the arrivals from the first one that does not fit."""
    rules, books, room, place = engine.rules, engine.books, engine.room, engine.place
    if rules.queues_by_account and len(arrived) > 1:
        return arrived
    for at, entry in enumerate(arrived):
        job = entry[3]
        ask = job.ask
        if books and engine.is_over_quota(ask):
            return arrived[at:]
        places = claim_placement(engine, job, ask.able, now) if rules.claims else place(room, ask.need, ask.able)
        if places is None:
            return arrived[at:]
        engine.begin(job, places, now)
    return []


def _job_placement(engine: Engine, job: EngineJob, among: NodeSet, now: float) -> GpuPlacement | None:
    if engine.rules.claims:
        return claim_placement(engine, job, among, now)
    return engine.place(engine.room, job.ask.need, among)


def _start_heads(engine: Engine, now: float) -> EngineJob | None:
    """Start the first job in order as long as it fits. Return the first one that does not."""
    asks = [ask for ask in engine.hungry if not engine.is_over_quota(ask)] if engine.books else engine.hungry
    heads = (
        [_head_entry(engine, ask, now) for ask in asks]
        if engine.rules.queues_by_account
        else [ask.line.first for ask in asks]
    )
    heapify(heads)
    while heads:
        job: EngineJob = heads[0][3]
        ask = job.ask
        if engine.books and engine.is_over_quota(ask):
            heappop(heads)
        elif engine.rules.queues_by_account and (grown := _head_entry(engine, ask, now)) > heads[0]:
            heapreplace(heads, grown)
        elif (places := _job_placement(engine, job, ask.able, now)) is None:
            return job
        else:
            engine.begin(job, places, now)
            _dequeue_job(engine, job)
            if ask.line:
                heapreplace(heads, _head_entry(engine, ask, now))
            else:
                heappop(heads)
    return None


def _head_entry(engine: Engine, ask: RequestGroup, now: float) -> QueueEntry:
    """The entry of the group's first job, with the share of its account added to the key."""
    band, key, number, job = ask.line.first
    return band, key + engine.rules.share(ask, engine, now) if engine.rules.queues_by_account else key, number, job


def _dequeue_job(engine: Engine, job: EngineJob) -> None:
    line: OrderedJobQueue = job.ask.line
    line.remove(job)
    if not line:
        engine.tidy(job.ask)


def _reserve_head(engine: Engine, head: EngineJob, now: float) -> HeadReservation:
    """The earliest expected start of the first job. The start is infinite if no sequence of ends makes it fit."""
    room, need = engine.room.copy(), head.ask.need
    counted = not need.cpus and not need.memory_mb  # otherwise nothing on the reserved nodes is spare
    preemptible = claimable_jobs(engine, head) if engine.rules.claims else ()
    for other in preemptible:
        room.give(other.places or (), other.ask.need)
    lack = head.ask.gpus - room.free_gpus
    endings: Sequence[tuple[float, int, EngineJob | None]] = engine.ending
    at = now
    if preemptible:
        released = set(preemptible)
        endings = [entry for entry in endings if entry[2] not in released]
    if engine.bars:
        window_ends: list[tuple[float, int, EngineJob | None]] = [(bar.end, -1, None) for bar in engine.bars]
        endings = sorted([*endings, *window_ends], key=itemgetter(0, 1))
    for index, (end, _, job) in enumerate(endings):
        if end == math.inf or (job and job.places is None):
            break
        at = max(end, now)
        if job:
            room.give(job.places or (), job.ask.need)
            lack -= job.ask.gpus
        else:
            engine.reopen_nodes(room, at)
            lack = head.ask.gpus - room.free_gpus
        together = index + 1 < len(endings) and endings[index + 1][0] <= at
        if lack > 0 or together:
            continue
        if (places := engine.place(room, need, engine.able(head.ask, at))) is not None:
            spare = {node: room.free[node] - gpus if counted else -1 for node, gpus in places}
            return HeadReservation(job=head, at=at, spare=spare, claims=engine.rules.claims)
    return HeadReservation(job=head, at=math.inf, claims=engine.rules.claims)


def _backfill_jobs(engine: Engine, promise: HeadReservation, now: float, opened: int) -> None:
    """Start jobs that may pass, in order over all queues whose requests are small enough."""
    small = [ask for ask in engine.hungry if ask.share <= opened]
    cache: FitCache = {}
    walks = [walk for ask in small if (walk := _QueueWalk.of(engine, promise, ask, now, cache))]
    nowhere: UnfitKeys = set()
    heads = [(*entry, walk) for walk in walks if (entry := walk.next())]
    heapify(heads)
    while heads:
        job, walk = heads[0][3:]
        if grown := walk.updated_head(heads[0], now):
            heapreplace(heads, grown)
            continue
        started = _try_backfill(engine, promise, job, now, nowhere)
        if started:
            _dequeue_job(engine, job)
        following = walk.next() if started or walk.may_continue(job) else None
        if following:
            heapreplace(heads, (*following, walk))
        else:
            heappop(heads)
    for walk in walks:
        walk.line.tidy()


WalkHead = tuple[int, float, int, EngineJob, "_QueueWalk"]


class _QueueWalk:
    """A walk along one queue: over all jobs, or only over those that are short enough."""

    def __init__(
        self, engine: Engine, promise: HeadReservation, ask: RequestGroup, now: float, *, only_short: bool
    ) -> None:
        self.promise, self.only_short = promise, only_short
        self.line: OrderedJobQueue = ask.line
        self.slack = promise.slack(now)
        self._engine = engine
        self._share = engine.rules.share(ask, engine, now) if engine.rules.queues_by_account else 0.0
        self._ask = ask
        self._place = self.line.front_index

    @staticmethod
    def of(
        engine: Engine, promise: HeadReservation, ask: RequestGroup, now: float, cache: FitCache
    ) -> _QueueWalk | None:
        """A walk along the queue of this group; None if no job in it can pass."""
        if ask.gpus > engine.firm.free_gpus or ask is promise.job.ask:
            return None
        fits_past_start = _fits_cached(
            engine, ask, ask.able if promise.may_pass_freely(ask) else promise.nodes_past_start(ask), cache
        )
        if not fits_past_start and (ask.no_backfill_under is promise or not _fits_cached(engine, ask, ask.able, cache)):
            return None
        if engine.books and engine.is_over_quota(ask):
            return None
        if fits_past_start:
            return _QueueWalk(engine, promise, ask, now, only_short=False)
        return _QueueWalk(engine, promise, ask, now, only_short=True)

    def next(self) -> QueueEntry | None:
        """The next job that may pass, or None at the end of the queue."""
        line, place = self.line, self._place
        index = line.next_within(place, self.slack) if self.only_short else line.next(place)
        if index is None:
            if self.only_short:
                self._ask.no_backfill_under = self.promise
            return None
        self._place = index + 1
        band, key, number, job = line.at(index)
        return band, key + self._share, number, job

    def updated_head(self, head: WalkHead, now: float) -> WalkHead | None:
        """The entry at its new place if the account's share has grown since; None if it has not."""
        if not self._engine.rules.queues_by_account:
            return None
        share = self._engine.rules.share(self._ask, self._engine, now)
        if share <= self._share:
            return None
        more, self._share = share - self._share, share
        return head[0], head[1] + more, *head[2:]

    def may_continue(self, refused: EngineJob) -> bool:
        """Whether to go on after a job found no place: a short job may still fit behind a long one, but not behind a
        short one.
        """
        self.only_short = True
        return refused.expected_s > self.slack


def _fits_cached(engine: Engine, ask: RequestGroup, among: NodeSet, cache: FitCache) -> bool:
    """Whether the group's first job fits on these nodes. `cache` has results for the same resources."""
    job: EngineJob = ask.line.first[3]
    key = ask.shape, among, job.requested_band if ask.borrows else None
    if (fits := cache.get(key)) is None:
        fits = cache[key] = fits_with_claims(engine, job, among)
    return fits


def _try_backfill(engine: Engine, promise: HeadReservation, job: EngineJob, now: float, nowhere: UnfitKeys) -> bool:
    """Start the job if it may pass; return whether it did.

    `nowhere` collects requests that found no place. Resources only shrink during a turn, until a borrower is preempted.
    """
    ask = job.ask
    if ask is promise.job.ask:
        return False
    short = job.expected_s <= promise.slack(now) or promise.may_pass_freely(ask)
    key = ask.shape, short, job.requested_band if ask.borrows else None
    if key in nowhere or (engine.books and engine.is_over_quota(ask)):
        return False
    stopped = len(engine.stopped)
    places = _job_placement(engine, job, ask.able if short else promise.nodes_past_start(ask), now)
    if places is None:
        nowhere.add(key)
        return False
    if len(engine.stopped) > stopped:
        nowhere.clear()
    if not short:
        promise.use_spare_gpus(places)
    engine.begin(job, places, now)
    return True
