"""Backfilling with one reservation: the first job that does not fit gets it, others may pass without delaying it.

The reservation is based on expected ends: in a copy of the resources, running jobs are released in order of their ends
until the first job fits. It names the nodes and how many of their GPUs are spare. Another job may pass if it is
expected to end before the reserved start, or if it uses other nodes or only spare GPUs.

The reservation is kept until its job starts, a job ends early, or a node is closed or opened; a new reservation for the
same job is never later. While it is kept, time only reduces what may pass: if nothing was freed, only new arrivals are
tried, and a queue without a job that is short enough (`RequestGroup.no_backfill_under`) is not searched again.

A preemption ends the walk along the queue. The victim gets its place in the queue back before the next walk, so no job
behind it starts on its GPUs as if it did not wait.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from operator import itemgetter

from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.engine import Engine
from scheduling.engine.job import EngineJob, QueueEntry, RequestGroup
from scheduling.engine.job_queue import OrderedJobQueue, enqueue_entries
from scheduling.engine.resources import GpuPlacement, NodeSet, PowerAreas
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
    spare_watts: int = 0  # that other jobs may draw beyond `at`; used if there is a power budget
    spare_areas: PowerAreas | None = None  # the same for the budgets of parts of the cluster

    def slack(self, now: float) -> float:
        """How long a passing job may run. Always finite, so jobs without a limit never pass an unknown start."""
        return min(self.at - now, sys.float_info.max)

    def may_pass_freely(self, group: RequestGroup) -> bool:
        """Whether the group may always pass: an owner can preempt borrowers anyway."""
        return self.claims and group.borrows and not self.job.group.borrows

    def nodes_past_start(self, group: RequestGroup) -> NodeSet:
        """The nodes on which this group may hold GPUs past the reserved start."""
        if (nodes := self.known.get(group.shape)) is None:
            nodes = self.known[group.shape] = self._find_nodes_past_start(group)
        return nodes

    def _find_nodes_past_start(self, group: RequestGroup) -> NodeSet:
        if self.at == math.inf:
            return 0  # the start is unknown, so a job without a known end must not pass
        need = group.need
        if need.watts > self.spare_watts:
            return 0
        gang = need.nodes > 1 or need.rest
        gpus = _gpus_kept_from_head(need)
        nodes = group.eligible_nodes & ~sum(1 << node for node, spare in self.spare.items() if gang or spare < gpus)
        return self.spare_areas.fitting(need, nodes) if self.spare_areas and need.watts else nodes

    def use_spare_gpus(self, places: GpuPlacement, need: ResourceRequest) -> None:
        """Subtract a placement from the spare GPUs and the spare power."""
        if need.watts:
            self.spare_watts -= need.watts
            if self.spare_areas:
                self.spare_areas.move(places, need, -1)
            self.known.clear()
        for node, gpus in places:
            if node in self.spare:
                self.spare[node] -= _gpus_kept_from_head(need) if need.gpu_milli else gpus
                self.known.clear()


def _gpus_kept_from_head(need: ResourceRequest) -> int:
    """How many GPUs of a node a job may make useless to the reserved one. A share that runs past the reserved start
    counts as one, also if it is placed beside others: these may have ended by then.
    """
    return need.most_gpus


def easy_turn(engine: Engine, now: float) -> None:
    """Start jobs in order and backfill; repeat after preemptions, because victims wait again and may fit elsewhere."""
    while True:
        arrived, engine.arrivals = engine.arrivals, []
        _backfill_turn(engine, arrived, now)
        if not engine.arrivals:
            return
        engine.changes.only_arrivals = False  # a job was stopped and may fit elsewhere


def _backfill_turn(engine: Engine, arrived: list[QueueEntry], now: float) -> None:
    if len(arrived) > 1:
        arrived.sort()
    if not engine.waiting_groups:
        engine.reservation.drop()
        arrived = _start_at_once(engine, arrived, now)
        if not arrived:
            return
    reservation: HeadReservation | None = engine.reservation.current
    stands = reservation is not None and not _arrived_before_head(arrived, reservation.job)
    if reservation and stands and engine.changes.only_arrivals:
        left = _backfill_arrivals(engine, reservation, arrived, now)
        for entry in left:  # it may be short enough, so its queue must be searched when GPUs come free
            entry[3].group.no_backfill_under = None
        enqueue_entries(left, engine.waiting_groups)
        return
    if arrived:
        enqueue_entries(arrived, engine.waiting_groups)
    if reservation and stands and _head_still_waits(engine, reservation.job, now):
        head: EngineJob | None = reservation.job
    else:
        head = _start_heads(engine, now)
    if head is None:
        engine.reservation.drop()
        return
    opened = engine.resources.most
    if reservation is None or reservation.job is not head:
        reservation = engine.reservation.current = _reserve_head(engine, head, now)
    elif not arrived and not engine.rules.claims:
        opened = engine.changes.largest_opening
    for entry in arrived:
        entry[3].group.no_backfill_under = None
    _backfill_jobs(engine, reservation, now, opened)


def _backfill_arrivals(
    engine: Engine, reservation: HeadReservation, arrived: list[QueueEntry], now: float
) -> list[QueueEntry]:
    """Start the arrived jobs that may pass. Return the others."""
    nowhere: UnfitKeys = set()
    left = []
    for at, entry in enumerate(arrived):
        if not _try_backfill(engine, reservation, entry[3], now, nowhere):
            left.append(entry)
        elif engine.arrivals:  # its victims
            engine.arrivals += arrived[at + 1 :]
            break
    return left


def _head_still_waits(engine: Engine, first: EngineJob, now: float) -> bool:
    """Whether the job with the reservation still does not fit. No job may have arrived before it."""
    if engine.quota_usage or engine.rules.queues_by_account:
        return False
    if engine.rules.claims:
        return not fits_with_claims(engine, first, first.group.eligible_nodes)
    return (
        first.group.min_node_gpus > engine.changes.largest_opening
        or engine.place(engine.resources, first.group.need, first.group.eligible_nodes) is None
    )


def _arrived_before_head(arrived: list[QueueEntry], head: EngineJob) -> bool:
    """Whether a job arrived that goes before the first one in the queue."""
    return bool(arrived) and arrived[0][:3] < (head.band, head.key, head.number)


def _start_at_once(engine: Engine, arrived: list[QueueEntry], now: float) -> list[QueueEntry]:
    """Start arrived jobs while no job waits. Return the arrivals from the first one that does not fit."""
    if engine.rules.queues_by_account and len(arrived) > 1:
        return arrived
    for at, entry in enumerate(arrived):
        job = entry[3]
        group = job.group
        if engine.quota_usage and engine.is_over_quota(group):
            return arrived[at:]
        if (places := _job_placement(engine, job, group.eligible_nodes, now)) is None:
            return arrived[at:]
        engine.begin(job, places, now)
        if engine.arrivals:  # its victims
            engine.arrivals += arrived[at + 1 :]
            return []
    return []


def _job_placement(engine: Engine, job: EngineJob, among: NodeSet, now: float) -> GpuPlacement | None:
    if engine.rules.claims:
        return claim_placement(engine, job, among, now)
    return engine.place(engine.resources, job.group.need, among)


def _start_heads(engine: Engine, now: float) -> EngineJob | None:
    """Start the first job in order as long as it fits. Return the first one that does not; None after a preemption."""
    groups = (
        [group for group in engine.waiting_groups if not engine.is_over_quota(group)]
        if engine.quota_usage
        else engine.waiting_groups
    )
    heads = (
        [_head_entry(engine, group, now) for group in groups]
        if engine.rules.queues_by_account
        else [group.queue.first for group in groups]
    )
    heapify(heads)
    while heads:
        job: EngineJob = heads[0][3]
        group = job.group
        if engine.quota_usage and engine.is_over_quota(group):
            heappop(heads)
        elif engine.rules.queues_by_account and (grown := _head_entry(engine, group, now)) > heads[0]:
            heapreplace(heads, grown)
        elif (places := _job_placement(engine, job, group.eligible_nodes, now)) is None:
            return job
        else:
            engine.begin(job, places, now)
            _dequeue_job(engine, job)
            if engine.arrivals:  # its victims
                return None
            if group.queue:
                heapreplace(heads, _head_entry(engine, group, now))
            else:
                heappop(heads)
    return None


def _head_entry(engine: Engine, group: RequestGroup, now: float) -> QueueEntry:
    """The entry of the group's first job, with the share of its account added to the key."""
    band, key, number, job = group.queue.first
    return band, key + engine.rules.share(group, engine, now) if engine.rules.queues_by_account else key, number, job


def _dequeue_job(engine: Engine, job: EngineJob) -> None:
    queue: OrderedJobQueue = job.group.queue
    queue.remove(job)
    if not queue:
        engine.tidy(job.group)


def _reserve_head(engine: Engine, head: EngineJob, now: float) -> HeadReservation:
    """The earliest expected start of the first job. The start is infinite if no sequence of ends makes it fit."""
    resources, need = engine.resources.copy(), head.group.need
    counted = not need.cpus and not need.memory_mb  # otherwise nothing on the reserved nodes is spare
    preemptible = claimable_jobs(engine, head) if engine.rules.claims else ()
    for other in preemptible:
        resources.give(other.places or (), other.group.need)
    endings: Sequence[tuple[float, int, EngineJob | None]] = engine.running.by_end
    at = now
    if preemptible:
        released = set(preemptible)
        endings = [entry for entry in endings if entry[2] not in released]
    if engine.maintenance.periods:
        window_ends: list[tuple[float, int, EngineJob | None]] = [
            (end, -1, None) for end in engine.maintenance.end_times()
        ]
        endings = sorted([*endings, *window_ends], key=itemgetter(0, 1))
    for index, (end, _, job) in enumerate(endings):
        if end == math.inf or (job and job.places is None):
            break
        at = max(end, now)
        if job:
            resources.give(job.places or (), job.group.need)
        else:
            engine.maintenance.reopen_nodes(resources, at)
        together = index + 1 < len(endings) and endings[index + 1][0] <= at
        if head.group.gpus > resources.free_gpus or together:
            continue
        if (places := engine.place(resources, need, engine.maintenance.eligible_nodes(head.group, at))) is not None:
            resources.take(places, need)
            spare = {node: resources.free[node] if counted else -1 for node, _ in places}
            return HeadReservation(
                job=head,
                at=at,
                spare=spare,
                claims=engine.rules.claims,
                spare_watts=resources.watts_left,
                spare_areas=resources.areas,
            )
    return HeadReservation(job=head, at=math.inf, claims=engine.rules.claims)


def _backfill_jobs(engine: Engine, reservation: HeadReservation, now: float, opened: int) -> None:
    """Start jobs that may pass, in order over all queues whose requests are small enough."""
    small = [group for group in engine.waiting_groups if group.min_node_gpus <= opened]
    cache: FitCache = {}
    walks = [walk for group in small if (walk := _QueueWalk.of(engine, reservation, group, now, cache))]
    nowhere: UnfitKeys = set()
    heads = [(*entry, walk) for walk in walks if (entry := walk.next())]
    heapify(heads)
    while heads:
        job, walk = heads[0][3:]
        if grown := walk.updated_head(heads[0], now):
            heapreplace(heads, grown)
            continue
        started = _try_backfill(engine, reservation, job, now, nowhere)
        if started:
            _dequeue_job(engine, job)
            if engine.arrivals:  # its victims
                break
        following = walk.next() if started or walk.may_continue(job) else None
        if following:
            heapreplace(heads, (*following, walk))
        else:
            heappop(heads)
    for walk in walks:
        walk.queue.tidy()


WalkHead = tuple[int, float, int, EngineJob, "_QueueWalk"]


class _QueueWalk:
    """A walk along one queue: over all jobs, or only over those that are short enough."""

    def __init__(
        self, engine: Engine, reservation: HeadReservation, group: RequestGroup, now: float, *, only_short: bool
    ) -> None:
        self.reservation, self.only_short = reservation, only_short
        self.queue: OrderedJobQueue = group.queue
        self.slack = reservation.slack(now)
        self._engine = engine
        self._share = engine.rules.share(group, engine, now) if engine.rules.queues_by_account else 0.0
        self._group = group
        self._place = self.queue.front_index

    @staticmethod
    def of(
        engine: Engine, reservation: HeadReservation, group: RequestGroup, now: float, cache: FitCache
    ) -> _QueueWalk | None:
        """A walk along the queue of this group; None if no job in it can pass."""
        if group.gpus > engine.owner_resources.free_gpus or group is reservation.job.group:
            return None
        fits_past_start = _fits_cached(
            engine,
            group,
            group.eligible_nodes if reservation.may_pass_freely(group) else reservation.nodes_past_start(group),
            cache,
        )
        if not fits_past_start and (
            group.no_backfill_under is reservation or not _fits_cached(engine, group, group.eligible_nodes, cache)
        ):
            return None
        if engine.quota_usage and engine.is_over_quota(group):
            return None
        if fits_past_start:
            return _QueueWalk(engine, reservation, group, now, only_short=False)
        return _QueueWalk(engine, reservation, group, now, only_short=True)

    def next(self) -> QueueEntry | None:
        """The next job that may pass, or None at the end of the queue."""
        queue, place = self.queue, self._place
        index = queue.next_within(place, self.slack) if self.only_short else queue.next(place)
        if index is None:
            if self.only_short:
                self._group.no_backfill_under = self.reservation
            return None
        self._place = index + 1
        band, key, number, job = queue.at(index)
        return band, key + self._share, number, job

    def updated_head(self, head: WalkHead, now: float) -> WalkHead | None:
        """The entry at its new place if the account's share has grown since; None if it has not."""
        if not self._engine.rules.queues_by_account:
            return None
        share = self._engine.rules.share(self._group, self._engine, now)
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


def _fits_cached(engine: Engine, group: RequestGroup, among: NodeSet, cache: FitCache) -> bool:
    """Whether the group's first job fits on these nodes. `cache` has results for the same resources."""
    job: EngineJob = group.queue.first[3]
    key = group.shape, among, job.submitted_band if group.borrows else None
    if (fits := cache.get(key)) is None:
        fits = cache[key] = fits_with_claims(engine, job, among)
    return fits


def _try_backfill(engine: Engine, reservation: HeadReservation, job: EngineJob, now: float, nowhere: UnfitKeys) -> bool:
    """Start the job if it may pass; return whether it did.

    `nowhere` collects requests that found no place. Resources only shrink during a turn, until a borrower is preempted.
    """
    group = job.group
    if group is reservation.job.group:
        return False
    short = job.expected_s <= reservation.slack(now) or reservation.may_pass_freely(group)
    key = group.shape, short, job.submitted_band if group.borrows else None
    if key in nowhere or (engine.quota_usage and engine.is_over_quota(group)):
        return False
    stopped = len(engine.stopped_jobs)
    places = _job_placement(engine, job, group.eligible_nodes if short else reservation.nodes_past_start(group), now)
    if places is None:
        nowhere.add(key)
        return False
    if len(engine.stopped_jobs) > stopped:
        nowhere.clear()
    if not short:
        reservation.use_spare_gpus(places, group.need)
    engine.begin(job, places, now)
    return True
