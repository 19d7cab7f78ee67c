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
from scheduling.engine.job_queue import OrderedJobQueue
from scheduling.engine.placement import PER_NODE_PLACEMENTS, PlacementFunction, consolidate
from scheduling.engine.resources import GpuPlacement, NodeResources, NodeSet, members
from scheduling.engine.windows import MaintenancePeriod, blocked_nodes

if TYPE_CHECKING:
    from scheduling.engine.rules import PolicyRules

QueueEntry = tuple[int, float, int, "EngineJob"]  # band, key or rank, number (a total order), job


class RequestGroup:
    """All waiting jobs with equal requests that are admitted alike. If the first does not fit, none of them does."""

    __slots__ = (
        "account",
        "borrows",
        "eligible_nodes",
        "gpus",
        "matching_nodes",
        "min_node_gpus",
        "need",
        "no_backfill_under",
        "owner",
        "queue",
        "shape",
    )

    def __init__(self, need: ResourceRequest, matching_nodes: NodeSet, owner: Any, account: object, shape: int) -> None:
        self.need = need
        self.gpus = need.total_gpus
        self.min_node_gpus = (
            min(need.gpus, need.rest) if need.rest else need.gpus
        )  # the fewest GPUs that a node must have free
        self.matching_nodes = matching_nodes  # nodes with the requested hardware
        self.eligible_nodes = matching_nodes  # those of them on which it may start now
        self.owner = owner
        self.borrows = bool(
            owner and owner.preemptible
        )  # it uses GPUs that owners leave idle, and owners may preempt it
        self.shape = shape  # equal requests share it: if one does not fit, none does
        self.account = account  # the unit of comparison where shares decide
        self.queue: Any = []  # a heap of QueueEntry; an OrderedJobQueue for turns with reservations
        self.no_backfill_under: object = None  # the reservation for which no job in this queue is short enough to pass


class EngineJob:
    """A job in the engine, waiting or running."""

    __slots__ = (
        "attained",
        "band",
        "began",
        "expected_s",
        "group",
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
        group: RequestGroup,
        submitted: float,
        runtime_s: float,
        expected_s: float,
        user: int = 0,
        name: int = 0,
        band: int = 0,
    ) -> None:
        self.number = number  # the order of submission, which breaks ties
        self.group = group
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
        return self.group.gpus

    @property
    def is_reclaimable(self) -> bool:
        """Whether owners may count its GPUs as free."""
        return self.group.borrows or self.stopping


class Engine:
    """One pool of nodes with its waiting and running jobs."""

    def __init__(
        self,
        resources: NodeResources,
        rules: PolicyRules,
        *,
        placement: PlacementFunction = consolidate,
        quota_usage: QuotaUsage | None = None,
        preemption_cost_s: Callable[[EngineJob], float] | None = None,
        checkpoint_s: float | None = 0.0,
        requeues: bool = True,
    ) -> None:
        self.resources = resources
        self.owner_resources = resources.copy() if rules.claims else resources  # what would be free without borrowers
        self.rules = rules
        self.place = placement
        self.quota_usage = quota_usage
        self.cost_s = preemption_cost_s
        self.checkpoint_s = (
            checkpoint_s  # checkpoint interval; 0: jobs save before they stop; None: see `EngineJob.saved`
        )
        self.saves: Sequence[bool] | None = None  # by job number, whether it writes checkpoints; None: all do
        self._requeues = requeues  # whether a stopped job waits again at once; on a live cluster this takes time
        # Copied from the rules, because they are read at every event
        self._claims, self._plans, self._by_account = rules.claims, rules.plans, rules.queues_by_account
        self._ranks, self._one_line = rules.preempts, rules.single_queue
        self.queue: list[QueueEntry] = []  # for rules with a single queue
        self.groups: dict[object, RequestGroup] = {}
        self._shapes: dict[ResourceRequest, int] = {}
        self.waiting_groups: dict[RequestGroup, None] = {}  # groups with waiting jobs
        self.fresh: dict[RequestGroup, None] = {}  # groups that got a job since the last turn
        self.arrived: list[QueueEntry] = []
        self.freed = True  # whether anything other than arrivals happened since the last turn
        # Most free GPUs on any node that had GPUs released since the last turn. A job that did not fit then and needs
        # more per node does not fit now
        self.opened = resources.most
        self._by_share = placement in PER_NODE_PLACEMENTS and quota_usage is None
        self.ranked: list[QueueEntry] = []  # running jobs, safest first; for rules that preempt
        self.ending: list[
            tuple[float, int, EngineJob]
        ] = []  # running jobs, by expected end; for rules with reservations
        self.ended: list[EngineJob] = []  # jobs that ended since the last turn; also for rules with reservations
        self.reservation: Any = None
        self._early = 0
        self.running: dict[int, EngineJob] = {}
        self.borrowers: dict[int, EngineJob] = {}  # running jobs that owners may preempt; for rules that claim
        self.market: Any = None  # what each borrower would lose, computed once per turn
        # The lowest and the highest priority class so far
        self._lowest_band, self._highest_band = sys.maxsize, -sys.maxsize
        self.blocked: EngineJob | None = None
        self.started: list[EngineJob] = []
        self.stopped: list[EngineJob] = []
        self.maintenances: tuple[MaintenancePeriod, ...] = ()
        self._bars_stand_until = math.inf
        if not rules.plans:  # a reservation names nodes, so placements must not move jobs there
            resources.unsettled = self.started

    # Events

    def request_group(self, need: ResourceRequest, owner: Any = None, account: object = None) -> RequestGroup:
        """The group for this request and account; created on the first call."""
        key = (need, owner, account)
        if (group := self.groups.get(key)) is None:
            group = self.groups[key] = RequestGroup(
                need,
                self.resources.matching_nodes(need),
                owner,
                account,
                self._shapes.setdefault(need, len(self._shapes)),
            )
            if self.rules.plans:
                group.queue = OrderedJobQueue()
            if self.maintenances:
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
                heappush(self.queue, entry)
            else:
                group = entry[3].group
                self.waiting_groups[group] = None
                heappush(group.queue, entry)
                self.fresh[group] = None
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
        """Add jobs that already run. The resources they hold must not be free in `resources`."""
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
            self.owner_resources.give(places, job.group.need)

    def end(self, job: EngineJob, now: float) -> None:
        """Record that a job ended by itself or was removed."""
        if job.places is not None:
            if self._plans and now < job.since + job.expected_s:
                # The reserved job might start earlier now. The old reservation stays valid, so it is recomputed only
                # after a number of early ends that keeps the amortized cost low, as the cost grows with running jobs
                self._early += 64
                if self._early >= len(self.ending):
                    self._early, self.reservation = 0, None
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
        self.resources.close(number)
        if self.owner_resources is not self.resources:
            self.owner_resources.close(number)
        self._invalidate_turn_state()

    def node_up(self, number: int, now: float) -> None:
        """Open the node for jobs."""
        self.resources.open(number)
        if self.owner_resources is not self.resources:
            self.owner_resources.open(number)
        self._invalidate_turn_state()

    def set_maintenances(self, maintenances: tuple[MaintenancePeriod, ...], now: float) -> None:
        """Replace the maintenance windows, ahead or in progress."""
        self.maintenances, self._bars_stand_until = maintenances, -math.inf
        for number in members(self._nodes_in_maintenance(now)):
            self.drain(number, now)

    def eligible_nodes(self, group: RequestGroup, at: float) -> NodeSet:
        """The nodes on which the group might start at that time, regardless of what is free on them."""
        if not self.maintenances:
            return group.eligible_nodes
        return (
            group.matching_nodes
            & ((1 << len(self.resources.nodes)) - 1)
            & ~blocked_nodes(self.maintenances, group.need.runs_s, at)
        )

    def reopen_nodes(self, resources: NodeResources, at: float) -> None:
        """In a copy of the resources at a future time: open nodes whose maintenance is over by then."""
        for number in members(self._nodes_in_maintenance(-math.inf) & ~self._nodes_in_maintenance(at)):
            resources.open(number)

    def _nodes_in_maintenance(self, at: float) -> NodeSet:
        nodes = 0
        for maintenance in self.maintenances:
            if at < maintenance.end:
                nodes |= maintenance.closed_nodes
        return nodes

    def _apply_maintenances(self, now: float) -> None:
        """Update where each group may start, if this may have changed since the last call."""
        if now < self._bars_stand_until:
            return
        for number in members(
            self._nodes_in_maintenance(-math.inf) & ~self._nodes_in_maintenance(now) & ~self.resources.usable
        ):
            self.node_up(number, now)
        self.maintenances = tuple(maintenance for maintenance in self.maintenances if now < maintenance.end)
        for group in self.groups.values():
            able = self.eligible_nodes(group, now) if self.maintenances else group.matching_nodes
            if able != group.eligible_nodes:
                group.eligible_nodes = able
                self._invalidate_turn_state()
        runs = {group.need.runs_s for group in self.groups.values()}
        moves = (
            at for maintenance in self.maintenances for runs_s in runs for at in maintenance.change_times(runs_s, now)
        )
        self._bars_stand_until = min(moves, default=math.inf)

    def quotas_changed(self) -> None:
        """A quota was changed, so waiting jobs must be reconsidered."""
        self.freed, self.opened = True, self.resources.most

    def _invalidate_turn_state(self) -> None:
        """Forget everything concluded from earlier states of the nodes."""
        self.freed, self.opened, self.reservation = True, self.resources.most, None

    def level_changed(self, job: EngineJob, now: float) -> None:
        """The rank of a running job changed by itself, for example because its attained service passed a threshold."""
        at = self._rank_index(job)
        del self.ranked[at]
        job.attained += job.group.gpus * (now - job.since)
        job.remaining_s -= now - job.since
        job.since = now
        self.rules.on_rank_change(job, now)
        job.key = self.rules.rank(job, now)
        insort(self.ranked, (job.band, job.key, job.number, job))
        self.freed, self.opened = True, self.resources.most

    def decide(self, now: float) -> None:
        """Start and stop jobs for this moment. The caller empties `started` and `stopped` after acting on them."""
        self.market = None
        if self.maintenances:
            self._apply_maintenances(now)
        arrived = self.arrived
        if self.waiting_groups or self.queue or len(arrived) > 1:
            self._run_policy_turn(now)
        else:
            self.reservation = None
            if arrived:
                # A single job that arrives at an empty queue starts under every policy if it fits
                job = arrived[0][3]
                group = job.group
                places = (
                    None if self.is_over_quota(group) else self.place(self.resources, group.need, group.eligible_nodes)
                )
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
        self.resources.move(places, job.group.need, -1)
        job.places = places
        job.since = job.began = now
        job.runs += 1
        self.running[job.number] = job
        if self.quota_usage:
            self.quota_usage.add(job.group.owner, job.group.gpus, 1)
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
                self.owner_resources.move(places, job.group.need, -1)
            if self.market:
                self.market.mark_nodes_stale(places)
        self.started.append(job)

    def stop_job(self, job: EngineJob, now: float, cost_s: Callable[[EngineJob], float] | None = None) -> None:
        """Stop a job that has work left, and requeue it. Stopping adds the work lost and its cost to the remaining
        time.
        """
        job.attained += job.group.gpus * (now - job.since)
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

    def is_over_quota(self, group: RequestGroup) -> bool:
        """Whether a quota keeps all jobs of this group from starting."""
        return self.quota_usage is not None and self.quota_refusal(group) is not None

    def quota_refusal(self, group: RequestGroup) -> QuotaRefusal | None:
        return (
            self.quota_usage.refuse(group.owner, group.gpus, obtainable=self.owner_resources.free_gpus)
            if self.quota_usage
            else None
        )

    def groups_to_try(self) -> list[RequestGroup]:
        """Groups whose first job may fit although it did not in the last turn, for turns that try the first of each
        queue.
        """
        if not self.freed:
            return list(self.fresh)
        fresh, opened = self.fresh, self.opened
        return [group for group in self.waiting_groups if group.min_node_gpus <= opened or group in fresh]

    def tidy(self, group: RequestGroup) -> None:
        """Forget the group if no job waits in it."""
        if not group.queue:
            self.waiting_groups.pop(group, None)

    def _release_gpus(self, job: EngineJob, now: float) -> None:
        assert job.places is not None
        del self.running[job.number]
        if self.quota_usage:
            self.quota_usage.add(job.group.owner, job.group.gpus, -1)
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
                self.owner_resources.move(job.places, job.group.need, 1)
            if self.market:
                self.market.mark_nodes_stale(job.places)
        self.resources.move(job.places, job.group.need, 1)
        if self._by_share:
            free = self.resources.free
            for node, _ in job.places:
                if free[node] > self.opened:
                    self.opened = free[node]
        else:
            self.opened = self.resources.most
        job.places = None
        self.freed = True

    def _rank_index(self, job: EngineJob) -> int:
        return bisect_left(self.ranked, (job.band, job.key, job.number))
