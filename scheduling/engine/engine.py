"""The state of one pool of nodes and its queue, and the events that change it. It knows no policy by name.

Time is seconds, from any beginning. Between two calls of `decide` any number of events may come; `decide` leaves in
`started` and `stopped` what it did. Whoever calls carries it out.
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

QueueEntry = tuple[int, float, int, "EngineJob"]  # band, key or rank, number: the whole order, then who


class RequestGroup:
    """All waiting jobs that ask for the same and are admitted alike. If its first does not fit, none of them does."""

    __slots__ = (
        "able",
        "account",
        "borrows",
        "gpus",
        "line",
        "made",
        "need",
        "nobody_short",
        "owner",
        "shape",
        "share",
    )

    def __init__(self, need: ResourceRequest, able: NodeSet, owner: Any, account: object, shape: int) -> None:
        self.need = need
        self.gpus = need.total_gpus
        self.share = min(need.gpus, need.rest) if need.rest else need.gpus  # the least that a node must have
        self.made = able  # nodes of the make that is asked for
        self.able = able  # of these, on which it may start now
        self.owner = owner
        self.borrows = bool(owner and owner.preemptible)  # it runs on what owners leave idle, and gives way to them
        self.shape = shape  # the same for all asks of the same need: where one does not fit, none does
        self.account = account  # who is compared with whom where shares decide
        self.line: Any = []  # a heap of Entry; for turns that promise, a Line
        self.nobody_short: object = None  # the promise under which nobody in this line is short enough to pass


class EngineJob:
    __slots__ = (
        "ask",
        "asked_band",
        "attained",
        "band",
        "began",
        "expected_s",
        "gave_way_to",
        "key",
        "level",
        "name",
        "number",
        "places",
        "ran_s",
        "remaining_s",
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
        self.number = number  # ties are broken by it: the order of submission
        self.ask = ask
        self.submitted = submitted
        self.remaining_s = runtime_s  # what an oracle knows; live it is what is expected
        self.expected_s = expected_s  # what the policy may know: a limit or a prediction
        self.user = user
        self.name = name
        self.band = self.asked_band = band  # lower goes first, whatever the policy's order says
        self.key = 0.0
        self.level = 0
        self.attained = 0.0  # GPU-seconds up to `since`
        self.since = 0.0  # what it has done before is in `attained` and out of `remaining_s`
        self.began = 0.0  # the present run
        self.ran_s = 0.0  # the runs before; a turn may halt a job and begin it again elsewhere in the same moment
        self.runs = 0
        self.places: GpuPlacement | None = None  # while it runs
        self.saved = 0.0  # when its last checkpoint was written, if anybody knows
        self.stopping = False  # somebody has asked for its end already; its GPUs come free by themselves
        self.gave_way_to: EngineJob | None = None

    @property
    def gpus(self) -> int:
        return self.ask.gpus

    @property
    def is_reclaimable(self) -> bool:
        """Whether its GPUs count as free for owners."""
        return self.ask.borrows or self.stopping


class Engine:
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
        self.firm = room.copy() if rules.claims else room  # what would be free if all who give way did
        self.rules = rules
        self.place = placement
        self.books = books
        self.cost_s = preemption_cost_s
        self.checkpoint_s = checkpoint_s  # jobs save so often; 0: when they must stop; None: see their `saved`
        self.saves: Sequence[bool] | None = None  # who writes checkpoints at all, by number; None: everybody
        self._requeues = requeues  # whether who stops waits again at once; a cluster takes its time
        # Asked at every event
        self._claims, self._plans, self._by_account = rules.claims, rules.plans, rules.queues_by_account
        self._ranks, self._one_line = rules.preempts, rules.one_line
        self.line: list[QueueEntry] = []  # for rules with one line for all
        self.asks: dict[object, RequestGroup] = {}
        self._shapes: dict[ResourceRequest, int] = {}
        self.hungry: dict[RequestGroup, None] = {}  # asks with somebody waiting
        self.fresh: dict[RequestGroup, None] = {}  # asks somebody joined since the last turn
        self.arrived: list[QueueEntry] = []
        self.freed = True  # whether more than arrivals happened since the last turn
        # Where something came free since then, the most GPUs that a node has now: who did not fit then and needs more
        # on each node does not fit now
        self.opened = room.most
        self._by_share = placement in PER_NODE_PLACEMENTS and books is None
        self.ranked: list[QueueEntry] = []  # who runs, safest first; for rules that preempt
        self.ending: list[tuple[float, int, EngineJob]] = []  # who runs, by expected end; for rules that promise
        self.ended: list[EngineJob] = []  # since the last turn; for these too
        self.promise: Any = None
        self._early = 0
        self.running: dict[int, EngineJob] = {}
        self.borrowers: dict[int, EngineJob] = {}  # of these, who gives way; for rules that claim
        self.market: Any = None  # what each of them would lose, worked out once a turn
        # The lowest and the highest priority class that have been seen
        self._lowest_band, self._highest_band = sys.maxsize, -sys.maxsize
        self.blocked: EngineJob | None = None
        self.started: list[EngineJob] = []
        self.stopped: list[EngineJob] = []
        self.bars: tuple[MaintenanceBar, ...] = ()
        self._bars_stand_until = math.inf
        if not rules.plans:  # a promise names nodes, so there nobody moves behind its back
            room.unsettled = self.started

    # Events

    def ask(self, need: ResourceRequest, owner: Any = None, account: object = None) -> RequestGroup:
        """The one Ask of this wish, on this account."""
        key = (need, owner, account)
        if (known := self.asks.get(key)) is None:
            known = self.asks[key] = RequestGroup(
                need, self.room.able(need), owner, account, self._shapes.setdefault(need, len(self._shapes))
            )
            if self.rules.plans:
                known.line = OrderedJobQueue()
            if self.bars:
                self._bars_stand_until = -math.inf
        return known

    def submit(self, job: EngineJob, now: float) -> None:
        rules = self.rules
        if self._claims:
            self._record_band(job.asked_band)
            job.band = rules.band(job)
        job.key = rules.key(job, now)
        self.arrived.append((job.band, job.key, job.number, job))

    def enqueue_arrivals(self) -> None:
        """Whoever has arrived joins his line. Turns that promise see to that themselves, as some start at once."""
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
        """Whether there is anybody of a lower priority class than somebody else."""
        return self._lowest_band < self._highest_band

    def _record_band(self, band: int) -> None:
        if band < self._lowest_band:
            self._lowest_band = band
        if band > self._highest_band:
            self._highest_band = band

    def adopt(self, jobs: Sequence[tuple[EngineJob, GpuPlacement]]) -> None:
        """They run already since they were submitted, and the room was made without what they hold."""
        for job, places in jobs:
            self._adopt_job(job, places, job.submitted)
        self.ending.sort()

    def _adopt_job(self, job: EngineJob, places: GpuPlacement, began: float) -> None:
        job.places, job.since, job.began, job.runs = places, began, began, 1
        self.running[job.number] = job
        if self._plans:
            self.ending.append((began + job.expected_s, job.number, job))
        if self._by_account:
            self.rules.began(job, began)
        if self._claims and job.is_reclaimable:
            self.borrowers[job.number] = job
            self._record_band(job.asked_band)
            self.firm.give(places, job.ask.need)

    def end(self, job: EngineJob, now: float) -> None:
        """It left its GPUs by itself, or somebody took it off."""
        if job.places is not None:
            if self._plans and now < job.since + job.expected_s:
                # Perhaps the promise can be kept earlier. It holds anyway, so it is worked out again only after so many
                # early ends that the work, which grows with the jobs that run, is little for each of them
                self._early += 64
                if self._early >= len(self.ending):
                    self._early, self.promise = 0, None
            if self._plans:
                self.ended.append(job)
            self._release_gpus(job, now)
            self.rules.ended(job, now)

    def node_down(self, number: int, now: float, cost_s: Callable[[EngineJob], float] | None = None) -> None:
        """Whoever runs there goes back to the queue; the caller says so before the next turn, and reads `stopped`."""
        self.drain(number, now)
        for job in [job for job in self.running.values() if any(node == number for node, _ in job.places or ())]:
            self.stop_job(job, now, cost_s)

    def drain(self, number: int, now: float) -> None:
        """No new work there; what runs may end."""
        self.room.close(number)
        if self.firm is not self.room:
            self.firm.close(number)
        self._invalidate_turn_state()

    def node_up(self, number: int, now: float) -> None:
        self.room.open(number)
        if self.firm is not self.room:
            self.firm.open(number)
        self._invalidate_turn_state()

    def bar(self, bars: tuple[MaintenanceBar, ...], now: float) -> None:
        """Maintenance is ahead or going on."""
        self.bars, self._bars_stand_until = bars, -math.inf
        for number in members(self._nodes_in_maintenance(now)):
            self.drain(number, now)

    def able(self, ask: RequestGroup, at: float) -> NodeSet:
        """On which nodes it might start then, whatever is free on them."""
        if not self.bars:
            return ask.able
        return ask.made & ((1 << len(self.room.nodes)) - 1) & ~blocked_nodes(self.bars, ask.need.runs_s, at)

    def reopen_nodes(self, room: NodeResources, at: float) -> None:
        """In a room of the future: what is shut for a maintenance that is over by then."""
        for number in members(self._nodes_in_maintenance(-math.inf) & ~self._nodes_in_maintenance(at)):
            room.open(number)

    def _nodes_in_maintenance(self, at: float) -> NodeSet:
        nodes = 0
        for bar in self.bars:
            if at < bar.end:
                nodes |= bar.shut
        return nodes

    def _apply_maintenances(self, now: float) -> None:
        """Who may start where, when that may have changed: only then is anybody asked."""
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
        moves = (at for bar in self.bars for one in runs for at in bar.change_times(one, now))
        self._bars_stand_until = min(moves, default=math.inf)

    def quotas_changed(self) -> None:
        self.freed, self.opened = True, self.room.most

    def _invalidate_turn_state(self) -> None:
        """Nothing that was found out about the room need hold any more."""
        self.freed, self.opened, self.promise = True, self.room.most, None

    def level_changed(self, job: EngineJob, now: float) -> None:
        """Its rank moved by itself while it runs, as when its attained service passes a threshold."""
        at = self._rank_index(job)
        del self.ranked[at]
        job.attained += job.ask.gpus * (now - job.since)
        job.remaining_s -= now - job.since
        job.since = now
        self.rules.changed(job, now)
        job.key = self.rules.rank(job, now)
        insort(self.ranked, (job.band, job.key, job.number, job))
        self.freed, self.opened = True, self.room.most

    def decide(self, now: float) -> None:
        """Who starts and who stops now. Whoever calls empties `started` and `stopped` when it has acted on them."""
        self.market = None
        if self.bars:
            self._apply_maintenances(now)
        arrived = self.arrived
        if self.hungry or self.line or len(arrived) > 1:
            self._run_policy_turn(now)
        else:
            self.promise = None
            if arrived:
                # Who comes alone where nobody waits starts under every policy if he fits
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
            self.enqueue_arrivals()  # who had to stop is looked at in the next turn
        self.fresh.clear()

    # What turns do

    def begin(self, job: EngineJob, places: GpuPlacement, now: float) -> None:
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
            self.rules.began(job, now)
        if self._claims:
            if job.is_reclaimable:
                self.borrowers[job.number] = job
            else:
                self.firm.move(places, job.ask.need, -1)
            if self.market:
                self.market.moved(places)
        self.started.append(job)

    def stop_job(self, job: EngineJob, now: float, cost_s: Callable[[EngineJob], float] | None = None) -> None:
        """It gives its GPUs back with work left, and waits again; stopping has its price."""
        job.attained += job.ask.gpus * (now - job.since)
        job.ran_s += now - job.began
        job.remaining_s -= now - job.since
        if cost_s is None and self.checkpoint_s:  # whoever names a price has counted what is lost
            job.remaining_s += self.unsaved_work_s(job, now)
        if cost_s := cost_s or self.cost_s:
            job.remaining_s += cost_s(job)
        self._release_gpus(job, now)
        self.stopped.append(job)
        if self._requeues:
            self.submit(job, now)

    def unsaved_work_s(self, job: EngineJob, now: float) -> float:
        """The work that would be lost if it stopped now."""
        if self.checkpoint_s is None:
            return now - max(job.began, job.saved)
        if not self.checkpoint_s:
            return 0.0
        ran = now - job.began
        return ran % self.checkpoint_s if self.saves is None or self.saves[job.number] else ran

    def is_over_quota(self, ask: RequestGroup) -> bool:
        """Whether a quota keeps back all who ask for it."""
        return self.books is not None and self.quota_refusal(ask) is not None

    def quota_refusal(self, ask: RequestGroup) -> QuotaRefusal | None:
        return self.books.refuse(ask.owner, ask.gpus, obtainable=self.firm.free_gpus) if self.books else None

    def groups_to_try(self) -> list[RequestGroup]:
        """Whose first may fit although it did not in the last turn, for turns that look at the first of each line."""
        if not self.freed:
            return list(self.fresh)
        fresh, opened = self.fresh, self.opened
        return [ask for ask in self.hungry if ask.share <= opened or ask in fresh]

    def tidy(self, ask: RequestGroup) -> None:
        """A line of nobody is forgotten."""
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
            # Who ends as expected is the first of them
            first = self.ending[0][2] is job
            del self.ending[0 if first else bisect_left(self.ending, (job.since + job.expected_s, job.number))]
        if self._by_account:
            self.rules.left(job, now)
        if self._claims:
            if job.is_reclaimable:
                del self.borrowers[job.number]
            else:
                self.firm.move(job.places, job.ask.need, 1)
            if self.market:
                self.market.moved(job.places)
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
