"""The state of one pool of nodes and its queue, and the events that change it. Independent of any particular policy.

Time is in seconds from an arbitrary origin. Any number of events may occur between two calls of `decide`, which records
its actions in `started` and `stopped`. The caller carries them out.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from heapq import heappush
from typing import TYPE_CHECKING, Any

from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.gpu_accounts import QuotaRefusal, QuotaUsage
from scheduling.engine.line import OrderedJobQueue
from scheduling.engine.placement import PER_NODE_PLACEMENTS, PlacementFunction, consolidate
from scheduling.engine.room import GpuPlacement, NodeResources, NodeSet, members
from scheduling.engine.windows import MaintenanceBar, blocked_nodes

if TYPE_CHECKING:
    from scheduling.engine.rules import PolicyRules

QueueEntry = tuple[int, float, int, "EngineJob"]  # band, key or rank, number (a total order), job


class RequestGroup:
    """All waiting jobs with equal requests that are admitted alike. If the first does not fit, none of them does."""

    __slots__ = (
        "able",
        "account",
        "borrows",
        "gpus",
        "line",
        "made",
        "need",
        "no_backfill_under",
        "owner",
        "shape",
        "share",
    )

    def __init__(self, need: ResourceRequest, able: NodeSet, owner: Any, account: object, shape: int) -> None:
        self.need = need
        self.gpus = need.total_gpus
        self.share = min(need.gpus, need.rest) if need.rest else need.gpus  # the fewest GPUs that a node must have free
        self.made = able  # nodes with the requested hardware
        self.able = able  # those of them on which it may start now
        self.owner = owner
        self.borrows = bool(
            owner and owner.preemptible
        )  # it uses GPUs that owners leave idle, and owners may preempt it
        self.shape = shape  # equal requests share it: if one does not fit, none does
        self.account = account  # the unit of comparison where shares decide
        self.line: Any = []  # a heap of QueueEntry; an OrderedJobQueue for turns with reservations
        self.no_backfill_under: object = None  # the reservation for which no job in this queue is short enough to pass


class EngineJob:
    """A job in the engine, waiting or running."""

    __slots__ = (
        "ask",
        "attained",
        "band",
        "began",
        "expected_s",
        "key",
        "level",
        "name",
        "number",
        "places",
        "preempted_by",
        "ran_s",
        "remaining_s",
        "requested_band",
        "runs",
        "saved",
        "since",
        "stopping",
        "submitted",
        "user",
    )

    def __init__(
        self,
        number: int,
        ask: RequestGroup,
        submitted: float,
        runtime_s: float,
        expected_s: float,
        user: int = 0,
        name: int = 0,
        band: int = 0,
    ) -> None:
        self.number = number  # the order of submission, which breaks ties
        self.ask = ask
        self.submitted = submitted
        self.remaining_s = runtime_s  # the true remaining time in a replay; the expected one on a live cluster
        self.expected_s = expected_s  # the estimate that a policy may use: a limit or a prediction
        self.user = user
        self.name = name
        self.band = self.requested_band = band  # lower goes first, regardless of the policy's order
        self.key = 0.0
        self.level = 0
        self.attained = 0.0  # GPU-seconds up to `since`
        self.since = 0.0  # work before this time is counted in `attained` and subtracted from `remaining_s`
        self.began = 0.0  # start of the current run
        self.ran_s = 0.0  # earlier runs; a turn may stop a job and restart it elsewhere at the same moment
        self.runs = 0
        self.places: GpuPlacement | None = None  # set while it runs
        self.saved = 0.0  # when its last checkpoint was written, if known
        self.stopping = False  # a stop is requested already, so its GPUs come free without a claim
        self.preempted_by: EngineJob | None = None

    @property
    def gpus(self) -> int:
        return self.ask.gpus

    @property
    def is_reclaimable(self) -> bool:
        """Whether owners may count its GPUs as free."""
        return self.ask.borrows or self.stopping


class Engine:
    """One pool of nodes with its waiting and running jobs."""

    def __init__(
        self,
        room: NodeResources,
        rules: PolicyRules,
        *,
        placement: PlacementFunction = consolidate,
        books: QuotaUsage | None = None,
        preemption_cost_s: Callable[[EngineJob], float] | None = None,
        checkpoint_s: float | None = 0.0,
        requeues: bool = True,
    ) -> None:
        self.room = room
        self.firm = room.copy() if rules.claims else room  # what would be free without borrowers
        self.rules = rules
        self.place = placement
        self.books = books
        self.cost_s = preemption_cost_s
        self.checkpoint_s = (
            checkpoint_s  # checkpoint interval; 0: jobs save before they stop; None: see `EngineJob.saved`
        )
        self.saves: Sequence[bool] | None = None  # by job number, whether it writes checkpoints; None: all do
        self._requeues = requeues  # whether a stopped job waits again at once; on a live cluster this takes time
        # Copied from the rules, because they are read at every event
        self._claims, self._plans, self._by_account = rules.claims, rules.plans, rules.queues_by_account
        self._ranks, self._one_line = rules.preempts, rules.one_line
        self.line: list[QueueEntry] = []  # for rules with a single queue
        self.asks: dict[object, RequestGroup] = {}
        self._shapes: dict[ResourceRequest, int] = {}
        self.hungry: dict[RequestGroup, None] = {}  # groups with waiting jobs
        self.fresh: dict[RequestGroup, None] = {}  # groups that got a job since the last turn
        self.arrived: list[QueueEntry] = []
        self.freed = True  # whether anything other than arrivals happened since the last turn
        # Most free GPUs on any node that had GPUs released since the last turn. A job that did not fit then and needs
        # more per node does not fit now
        self.opened = room.most
        self._by_share = placement in PER_NODE_PLACEMENTS and books is None
        self.ranked: list[QueueEntry] = []  # running jobs, safest first; for rules that preempt
        self.ending: list[
            tuple[float, int, EngineJob]
        ] = []  # running jobs, by expected end; for rules with reservations
        self.ended: list[EngineJob] = []  # jobs that ended since the last turn; also for rules with reservations
        self.promise: Any = None
        self._early = 0
        self.running: dict[int, EngineJob] = {}
        self.borrowers: dict[int, EngineJob] = {}  # running jobs that owners may preempt; for rules that claim
        self.market: Any = None  # what each borrower would lose, computed once per turn
        # The lowest and the highest priority class so far
        self._lowest_band, self._highest_band = sys.maxsize, -sys.maxsize
        self.blocked: EngineJob | None = None
        self.started: list[EngineJob] = []
        self.stopped: list[EngineJob] = []
        self.bars: tuple[MaintenanceBar, ...] = ()
        self._bars_stand_until = math.inf
        if not rules.plans:  # a reservation names nodes, so placements must not move jobs there
            room.unsettled = self.started

    # Events

    def ask(self, need: ResourceRequest, owner: Any = None, account: object = None) -> RequestGroup:
        """The group for this request and account; created on the first call."""
        key = (need, owner, account)
        if (group := self.asks.get(key)) is None:
            group = self.asks[key] = RequestGroup(
                need, self.room.able(need), owner, account, self._shapes.setdefault(need, len(self._shapes))
            )
            if self.rules.plans:
                group.line = OrderedJobQueue()
            if self.bars:
                self._bars_stand_until = -math.inf
        return group

    def submit(self, job: EngineJob, now: float) -> None:
        """Add a waiting job. It joins its queue in the next turn."""
        rules = self.rules
        if self._claims:
            self._record_band(job.requested_band)
            job.band = rules.band(job)
        job.key = rules.key(job, now)
        self.arrived.append((job.band, job.key, job.number, job))

    def enqueue_arrivals(self) -> None:
        """Move arrived jobs into their queues. Turns with reservations do this themselves, because some jobs start at
        once.
        """
        for entry in self.arrived:
            if self._one_line:
                heappush(self.line, entry)
            else:
                ask = entry[3].ask
                self.hungry[ask] = None
                heappush(ask.line, entry)
                self.fresh[ask] = None
        self.arrived.clear()

    @property
    def priority_classes_differ(self) -> bool:
        """Whether jobs of different priority classes have been submitted."""
        return self._lowest_band < self._highest_band

    def _record_band(self, band: int) -> None:
        if band < self._lowest_band:
            self._lowest_band = band
        if band > self._highest_band:
            self._highest_band = band

    def adopt(self, jobs: Sequence[tuple[EngineJob, GpuPlacement]]) -> None:
        """Add jobs that already run. The resources they hold must not be free in `room`."""
        for job, places in jobs:
            self._adopt_job(job, places, job.submitted)
        self.ending.sort()

    def _adopt_job(self, job: EngineJob, places: GpuPlacement, began: float) -> None:
        job.places, job.since, job.began, job.runs = places, began, began, 1
        self.running[job.number] = job
        if self._plans:
            self.ending.append((began + job.expected_s, job.number, job))
        if self._by_account:
            self.rules.on_job_start(job, began)
        if self._claims and job.is_reclaimable:
            self.borrowers[job.number] = job
            self._record_band(job.requested_band)
            self.firm.give(places, job.ask.need)

    def end(self, job: EngineJob, now: float) -> None:
        """Record that a job ended by itself or was removed."""
        if job.places is not None:
            if self._plans and now < job.since + job.expected_s:
                # The reserved job might start earlier now. The old reservation stays valid, so it is recomputed only
                # after a number of early ends that keeps the amortized cost low, as the cost grows with running jobs
                self._early += 64
                if self._early >= len(self.ending):
                    self._early, self.promise = 0, None
            if self._plans:
                self.ended.append(job)
            self._release_gpus(job, now)
            self.rules.on_job_end(job, now)

    def node_down(self, number: int, now: float, cost_s: Callable[[EngineJob], float] | None = None) -> None:
        """Requeue all jobs on the node. The caller must report this before the next turn, and finds the jobs in
        `stopped`.
        """
        self.drain(number, now)
        for job in [job for job in self.running.values() if any(node == number for node, _ in job.places or ())]:
            self.stop_job(job, now, cost_s)

    def drain(self, number: int, now: float) -> None:
        """Close the node for new jobs. Running jobs may finish."""
        self.room.close(number)
        if self.firm is not self.room:
            self.firm.close(number)
        self._invalidate_turn_state()

    def node_up(self, number: int, now: float) -> None:
        """Open the node for jobs."""
        self.room.open(number)
        if self.firm is not self.room:
            self.firm.open(number)
        self._invalidate_turn_state()

    def bar(self, bars: tuple[MaintenanceBar, ...], now: float) -> None:
        """Replace the maintenance windows, ahead or in progress."""
        self.bars, self._bars_stand_until = bars, -math.inf
        for number in members(self._nodes_in_maintenance(now)):
            self.drain(number, now)

    def able(self, ask: RequestGroup, at: float) -> NodeSet:
        """The nodes on which the group might start at that time, regardless of what is free on them."""
        if not self.bars:
            return ask.able
        return ask.made & ((1 << len(self.room.nodes)) - 1) & ~blocked_nodes(self.bars, ask.need.runs_s, at)

    def reopen_nodes(self, room: NodeResources, at: float) -> None:
        """In a copy of the resources at a future time: open nodes whose maintenance is over by then."""
        for number in members(self._nodes_in_maintenance(-math.inf) & ~self._nodes_in_maintenance(at)):
            room.open(number)

    def _nodes_in_maintenance(self, at: float) -> NodeSet:
        nodes = 0
        for bar in self.bars:
            if at < bar.end:
                nodes |= bar.shut
        return nodes

    def _apply_maintenances(self, now: float) -> None:
        """Update where each group may start, if this may have changed since the last call."""
        if now < self._bars_stand_until:
            return
        for number in members(
            self._nodes_in_maintenance(-math.inf) & ~self._nodes_in_maintenance(now) & ~self.room.usable
        ):
            self.node_up(number, now)
        self.bars = tuple(bar for bar in self.bars if now < bar.end)
        for ask in self.asks.values():
            able = self.able(ask, now) if self.bars else ask.made
            if able != ask.able:
                ask.able = able
                self._invalidate_turn_state()
        runs = {ask.need.runs_s for ask in self.asks.values()}
        moves = (at for bar in self.bars for runs_s in runs for at in bar.change_times(runs_s, now))
        self._bars_stand_until = min(moves, default=math.inf)

    def quotas_changed(self) -> None:
        """A quota was changed, so waiting jobs must be reconsidered."""
        self.freed, self.opened = True, self.room.most

    def _invalidate_turn_state(self) -> None:
        """Forget everything concluded from earlier states of the nodes."""
        self.freed, self.opened, self.promise = True, self.room.most, None

    def level_changed(self, job: EngineJob, now: float) -> None:
        """The rank of a running job changed by itself, for example because its attained service passed a threshold."""
        at = self._rank_index(job)
        del self.ranked[at]
        job.attained += job.ask.gpus * (now - job.since)
        job.remaining_s -= now - job.since
        job.since = now
        self.rules.on_rank_change(job, now)
        job.key = self.rules.rank(job, now)
        insort(self.ranked, (job.band, job.key, job.number, job))
        self.freed, self.opened = True, self.room.most

    def decide(self, now: float) -> None:
        """Start and stop jobs for this moment. The caller empties `started` and `stopped` after acting on them."""
        self.market = None
        if self.bars:
            self._apply_maintenances(now)
        arrived = self.arrived
        if self.hungry or self.line or len(arrived) > 1:
            self._run_policy_turn(now)
        else:
            self.promise = None
            if arrived:
                # A single job that arrives at an empty queue starts under every policy if it fits
                job = arrived[0][3]
                ask = job.ask
                places = None if self.is_over_quota(ask) else self.place(self.room, ask.need, ask.able)
                if places is not None:
                    arrived.clear()
                    self.begin(job, places, now)
                else:
                    self._run_policy_turn(now)
        self.freed, self.opened = False, 0
        if self.ended:
            self.ended.clear()

    def _run_policy_turn(self, now: float) -> None:
        if not self._plans:
            self.enqueue_arrivals()
        self.rules.turn(self, now)
        if not self._plans:
            self.enqueue_arrivals()  # stopped jobs are considered in the next turn
        self.fresh.clear()

    # Called by turns

    def begin(self, job: EngineJob, places: GpuPlacement, now: float) -> None:
        """Start a job: take its resources and update every index."""
        self.room.move(places, job.ask.need, -1)
        job.places = places
        job.since = job.began = now
        job.runs += 1
        self.running[job.number] = job
        if self.books:
            self.books.add(job.ask.owner, job.ask.gpus, 1)
        if self._ranks:
            job.key = self.rules.rank(job, now)
            insort(self.ranked, (job.band, job.key, job.number, job))
        elif self._plans:
            insort(self.ending, (now + job.expected_s, job.number, job))
        if self._by_account:
            self.rules.on_job_start(job, now)
        if self._claims:
            if job.is_reclaimable:
                self.borrowers[job.number] = job
            else:
                self.firm.move(places, job.ask.need, -1)
            if self.market:
                self.market.mark_nodes_stale(places)
        self.started.append(job)

    def stop_job(self, job: EngineJob, now: float, cost_s: Callable[[EngineJob], float] | None = None) -> None:
        """Stop a job that has work left, and requeue it. Stopping adds the work lost and its cost to the remaining
        time.
        """
        job.attained += job.ask.gpus * (now - job.since)
        job.ran_s += now - job.began
        job.remaining_s -= now - job.since
        if cost_s is None and self.checkpoint_s:  # an explicit cost already includes the lost work
            job.remaining_s += self.unsaved_work_s(job, now)
        if cost_s := cost_s or self.cost_s:
            job.remaining_s += cost_s(job)
        self._release_gpus(job, now)
        self.stopped.append(job)
        if self._requeues:
            self.submit(job, now)

    def unsaved_work_s(self, job: EngineJob, now: float) -> float:
        """Seconds of work that are lost if the job stops now."""
        if self.checkpoint_s is None:
            return now - max(job.began, job.saved)
        if not self.checkpoint_s:
            return 0.0
        ran = now - job.began
        return ran % self.checkpoint_s if self.saves is None or self.saves[job.number] else ran

    def is_over_quota(self, ask: RequestGroup) -> bool:
        """Whether a quota keeps all jobs of this group from starting."""
        return self.books is not None and self.quota_refusal(ask) is not None

    def quota_refusal(self, ask: RequestGroup) -> QuotaRefusal | None:
        return self.books.refuse(ask.owner, ask.gpus, obtainable=self.firm.free_gpus) if self.books else None

    def groups_to_try(self) -> list[RequestGroup]:
        """Groups whose first job may fit although it did not in the last turn, for turns that try the first of each
        queue.
        """
        if not self.freed:
            return list(self.fresh)
        fresh, opened = self.fresh, self.opened
        return [ask for ask in self.hungry if ask.share <= opened or ask in fresh]

    def tidy(self, ask: RequestGroup) -> None:
        """Forget the group if no job waits in it."""
        if not ask.line:
            self.hungry.pop(ask, None)

    def _release_gpus(self, job: EngineJob, now: float) -> None:
        assert job.places is not None
        del self.running[job.number]
        if self.books:
            self.books.add(job.ask.owner, job.ask.gpus, -1)
        if self._ranks:
            del self.ranked[self._rank_index(job)]
        elif self._plans:
            # A job that ends as expected is the first entry
            first = self.ending[0][2] is job
            del self.ending[0 if first else bisect_left(self.ending, (job.since + job.expected_s, job.number))]
        if self._by_account:
            self.rules.on_job_release(job, now)
        if self._claims:
            if job.is_reclaimable:
                del self.borrowers[job.number]
            else:
                self.firm.move(job.places, job.ask.need, 1)
            if self.market:
                self.market.mark_nodes_stale(job.places)
        self.room.move(job.places, job.ask.need, 1)
        if self._by_share:
            free = self.room.free
            for node, _ in job.places:
                if free[node] > self.opened:
                    self.opened = free[node]
        else:
            self.opened = self.room.most
        job.places = None
        self.freed = True

    def _rank_index(self, job: EngineJob) -> int:
        return bisect_left(self.ranked, (job.band, job.key, job.number))
