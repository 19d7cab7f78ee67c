"""The state of one pool of nodes and its queue, the events that change it, and the base class of policies.

Time is in seconds from an arbitrary origin. Any number of events may occur between two calls of `decide`, which records
its actions in `started_jobs` and `stopped_jobs`. The caller carries them out.

`Engine` holds what is true now: the nodes, the jobs and the quotas. What is only kept to be fast or is kept for one
kind of rules has a class of its own, which says when it is valid:

`RunningJobs`          the running jobs, with an index by rank or by expected end
`Borrowers`            the running jobs that owners may preempt, and what would be free without them
`MaintenanceSchedule`  where each group may start, until a maintenance changes that
`ChangesSinceTurn`     what has happened since the last turn, so that jobs that cannot start are not tried
`StandingReservation`  the reservation that outlives a turn

A policy is a subclass of `PolicyRules` in a file of its own; `policies` lists them by name. If the engine is compiled,
these rules are compiled too. Policies in plain Python still work with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappush
from typing import TYPE_CHECKING, Any, ClassVar

from mypy_extensions import mypyc_attr

from jobs.core.gpu_models import SEPARATOR, accepts_model
from jobs.core.lifecycle import JobKind
from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.gpu_accounts import QUOTA_REASON, QuotaRefusal, QuotaUsage
from scheduling.engine.history import SchedulingHistory
from scheduling.engine.job import EngineJob, QueueEntry, RequestGroup
from scheduling.engine.job_queue import OrderedJobQueue
from scheduling.engine.placement import PER_NODE_PLACEMENTS, PlacementFunction, consolidate
from scheduling.engine.placements.preferred_models import PreferredModels
from scheduling.engine.resources import GpuPlacement, NodeResources, NodeSet, members
from scheduling.engine.settings import reject_unknown
from scheduling.engine.state.borrowers import Borrowers
from scheduling.engine.state.maintenance import MaintenanceSchedule
from scheduling.engine.state.model_choice import ModelWait, choose_models, slowdown_at
from scheduling.engine.state.preemption_costs import PreemptionCosts
from scheduling.engine.state.running_jobs import RunningJobs
from scheduling.engine.state.turn_memory import ChangesSinceTurn, StandingReservation
from scheduling.engine.windows import MaintenancePeriod

if TYPE_CHECKING:
    from scheduling.engine.predicting import Predictor


class _RuleTraits:
    """What the rules need from the engine. A copy, because it is read at every event."""

    __slots__ = ("claims", "plans", "queues_by_account", "ranks", "single_queue")

    def __init__(self, rules: PolicyRules) -> None:
        self.claims = rules.claims
        self.plans = rules.plans
        self.queues_by_account = rules.queues_by_account
        self.ranks = rules.preempts
        self.single_queue = rules.single_queue


@dataclass(frozen=True, kw_only=True)
class EngineSetting:
    """How jobs stop and what outlives a turn. The default is a replay in which jobs lose nothing."""

    preemption_cost_s: Callable[[EngineJob], float] | None = None
    checkpoint_s: float | None = 0.0  # see `PreemptionCosts`
    # Whether a stopped job waits again at once. On a live cluster it waits again after it has stopped
    requeues: bool = True
    # Whether queues and reservations outlive a turn. A live cluster fills and makes them in every turn: slower
    keeps_memory: bool = True
    # Whether rules that preempt by rank do it as on a live cluster (`turns/rank_claims`)
    claims_by_rank: bool = False
    # Whether jobs stop after `expected_s`. In a replay of true run times it is long enough on every GPU model
    has_time_limits: bool = True


DEFAULT_SETTING = EngineSetting()


class ChangedSpeeds:
    """What a replay must know of jobs that others on the same GPUs slow down, by number of the job."""

    __slots__ = ("ends", "moved", "slowed_s", "uncharged_s")

    def __init__(self) -> None:
        self.ends: dict[int, float] = {}  # of running jobs whose speed has ever changed
        self.moved: list[EngineJob] = []  # jobs whose end has changed; the replay empties it
        self.uncharged_s: dict[int, float] = {}  # time on GPUs that is charged to others
        self.slowed_s: dict[int, float] = {}  # time without progress


class Engine:
    """One pool of nodes with its waiting and running jobs.

    Between two events:
    * A job is in exactly one of `arrivals`, its queue and `running`, or it has ended. With rules of a single queue that
      is `queue`, otherwise the queue of its group.
    * `waiting_groups` are the groups whose queue is not empty, in the order in which they got their first job.
    * `resources` are free of the resources of every running job; `quota_usage` counts them.
    """

    def __init__(
        self,
        resources: NodeResources,
        rules: PolicyRules,
        setting: EngineSetting = DEFAULT_SETTING,
        *,
        placement: PlacementFunction = consolidate,
        quota_usage: QuotaUsage | None = None,
        predictor: Predictor | None = None,
    ) -> None:
        self.resources = resources
        self.rules = rules
        self.place = placement
        self.quota_usage = quota_usage
        self.preemption_costs = PreemptionCosts(setting.preemption_cost_s, setting.checkpoint_s)
        self.keeps_memory = setting.keeps_memory
        self.has_time_limits = setting.has_time_limits
        self._predictor = predictor  # predicts the run times of submitted jobs and learns those of ended jobs
        self.claims_by_rank = setting.claims_by_rank
        self.claims: list[tuple[EngineJob, GpuPlacement]] = []  # places of waiting jobs for which others stop
        self._requeues = setting.requeues
        self._traits = _RuleTraits(rules)
        self.groups: dict[object, RequestGroup] = {}  # by request, owner and account
        self._shapes: dict[tuple[ResourceRequest, object], int] = {}
        self._limited_groups: dict[str, list[RequestGroup]] = {}  # those whose team has a quota for a GPU model
        self._nodes_of_model: dict[str, NodeSet] = {}
        self.arrivals: list[QueueEntry] = []  # submitted jobs that are not in a queue yet
        self.queue: list[QueueEntry] = []  # a heap; for rules with a single queue
        self.waiting_groups: dict[RequestGroup, None] = {}
        self.running = RunningJobs(ranks=rules.preempts, plans=rules.plans)
        self.borrowers = Borrowers(resources, claims=rules.claims)
        self.maintenance = MaintenanceSchedule(len(resources.nodes))
        per_node = placement in PER_NODE_PLACEMENTS and quota_usage is None and not resources.counts_power
        self.changes = ChangesSinceTurn(resources, per_node=per_node)
        self.reservation = StandingReservation()
        self._now = 0.0  # of the present turn
        self._all_nodes: NodeSet = (1 << len(resources.nodes)) - 1
        self._chooses_models = False  # whether a request has several GPU models with known speeds
        # Jobs that wait for a model which they prefer, although another one that they accept may be free
        self.model_waits: dict[EngineJob, ModelWait] = {}
        self.started_jobs: list[EngineJob] = []
        self.stopped_jobs: list[EngineJob] = []
        self.changed_speeds: ChangedSpeeds | None = None  # set if jobs may slow each other down
        if not rules.plans:  # a reservation names nodes, so placements must not move jobs there
            resources.unsettled = self.started_jobs
        self.prepare()

    def prepare(self) -> None:
        """Set up what this kind of engine adds to `Engine`. Called when it is made."""

    @property
    def owner_resources(self) -> NodeResources:
        """What would be free without borrowers."""
        return self.borrowers.owner_resources

    # Events

    def request_group(self, need: ResourceRequest, owner: Any = None, account: object = None) -> RequestGroup:
        """The group for this request and account; created on the first call."""
        key = (need, owner, account)
        if (group := self.groups.get(key)) is None:
            if SEPARATOR in need.gpu_model and not isinstance(self.place, PreferredModels):
                self.place = PreferredModels(self.place)
            self._chooses_models |= len(need.slowdowns) > 1
            limited = self.quota_usage is not None and self.quota_usage.limits_models(owner)
            # Teams may start on other nodes than others because of their quotas
            apart = (owner.team, owner.kind, owner.preemptible) if limited else None
            shape = self._shapes.setdefault((need, apart), len(self._shapes))
            group = RequestGroup(need, self.resources.matching_nodes(need), owner, account, shape)
            self.groups[key] = group
            if limited:
                self._limited_groups.setdefault(owner.team, []).append(group)
                self._bar_full_models([group])
            if self._traits.plans:
                group.queue = OrderedJobQueue()
            if self.maintenance.periods:
                self.maintenance.recheck()
        return group

    def submit(self, job: EngineJob, now: float) -> None:
        """Add a waiting job. It joins its queue in the next turn."""
        rules = self.rules
        if self._predictor and job.predicted_s < 0.0:
            job.predicted_s = self._predictor.predict(job)
        if self._traits.claims:
            self.borrowers.record_class(job.submitted_band)
            job.band = rules.band(job)
        job.key = rules.key(job, now)
        self.arrivals.append((job.band, job.key, job.number, job))

    def enqueue_arrivals(self) -> None:
        """Move arrived jobs into their queues. Turns with reservations do this themselves, because some jobs start at
        once.
        """
        single_queue, new = self._traits.single_queue, self.changes.groups_with_arrivals
        for entry in self.arrivals:
            if single_queue:
                heappush(self.queue, entry)
            else:
                group = entry[3].group
                self.waiting_groups[group] = None
                heappush(group.queue, entry)
                new[group] = None
        self.arrivals.clear()

    def adopt(
        self, jobs: Sequence[tuple[EngineJob, GpuPlacement]], now: float, *, counted_until: float | None = None
    ) -> None:
        """Add jobs that already run. The resources they hold must not be free in `resources`. Their usage before
        `counted_until` is already known to the rules.
        """
        for job, places in jobs:
            began = job.submitted
            job.places, job.since, job.began, job.runs = places, began, began, 1
            if self._traits.ranks:
                self.rules.restore_rank(job, now)
            if self._traits.queues_by_account:
                self.rules.on_job_start(job, began if counted_until is None else counted_until)
            if self._traits.claims:
                self.borrowers.adopt(job)
        self.running.extend([job for job, _ in jobs])

    def end(self, job: EngineJob, now: float) -> None:
        """Record that a job ended by itself or was removed."""
        if job.places is not None:
            if self._traits.plans:
                if now < job.since + job.expected_s:
                    self.reservation.record_early_end(len(self.running))
                self.changes.ends.append(job)
            self._release_gpus(job, now)
            if self._predictor:
                self._predictor.learn(job, job.worked_s + (now - job.began) / job.slowdown)
            self.rules.on_job_end(job, now)

    def node_down(self, number: int, now: float, cost_s: Callable[[EngineJob], float] | None = None) -> None:
        """Requeue all jobs on the node. The caller must report this before the next turn, and finds the jobs in
        `stopped_jobs`.
        """
        self.drain(number, now)
        for job in list(self.running.on_node(number)):
            self.stop_job(job, now, cost_s)

    def drain(self, number: int, now: float) -> None:
        """Close the node for new jobs. Running jobs may finish."""
        self.resources.close(number)
        if self.owner_resources is not self.resources:
            self.owner_resources.close(number)
        self._record_node_change()

    def node_up(self, number: int, now: float) -> None:
        """Open the node for jobs."""
        self.resources.open(number)
        if self.owner_resources is not self.resources:
            self.owner_resources.open(number)
        self._record_node_change()

    def set_maintenances(self, periods: tuple[MaintenancePeriod, ...], now: float) -> None:
        """Replace the maintenance windows, ahead or in progress."""
        self.maintenance.replace_periods(periods)
        for number in members(self.maintenance.nodes_closed_at(now)):
            self.drain(number, now)

    def _apply_maintenances(self, now: float) -> None:
        """Open the nodes whose maintenance is over and update where each group may start."""
        for number in members(self.maintenance.nodes_reopened_by(now) & ~self.resources.usable):
            self.node_up(number, now)
        if self.maintenance.update_groups(self.groups.values(), now):
            self._record_node_change()

    def _record_node_change(self) -> None:
        """Jobs may start on other nodes than before, so nothing that an earlier turn found out holds."""
        self.changes.record_any_change(self.resources)
        self.reservation.drop()

    def quotas_changed(self) -> None:
        """A quota was changed, so waiting jobs must be reconsidered."""
        self.changes.record_any_change(self.resources)

    def level_changed(self, job: EngineJob, now: float) -> None:
        """The rank of a running job changed by itself, for example because its attained service passed a threshold."""
        self.running.remove_rank(job)
        job.attained += self.rules.service(job, now - job.since)
        job.remaining_s -= (now - job.since) / job.slowdown
        job.since = now
        self.rules.on_rank_change(job, now)
        job.key = self.rules.rank(job, now)
        self.running.add_rank(job)
        self.changes.record_any_change(self.resources)

    def decide(self, now: float) -> None:
        """Start and stop jobs for this moment. The caller empties `started_jobs` and `stopped_jobs` after acting on
        them.
        """
        self.borrowers.prices = None
        self._now = now
        if not self.keeps_memory:
            self._forget_last_turn()
        if self.maintenance.is_due(now):
            self._apply_maintenances(now)
        if self._chooses_models:
            self._choose_models(now)
        if self.borrowers.end_protections(now):
            self.changes.record_any_change(self.resources)
            self.reservation.drop()
        if self.waiting_groups or self.queue or len(self.arrivals) > 1:
            self._run_policy_turn(now)
        else:
            self.reservation.drop()
            if self.arrivals and not self._start_single_arrival(now):
                self._run_policy_turn(now)
        self.changes.clear()

    @property
    def chooses_models(self) -> bool:
        """Whether turns need the running jobs, to predict when GPUs of each model come free."""
        return self._chooses_models

    def _choose_models(self, now: float) -> None:
        """Let jobs wait for a model on which they end earlier than on one that is free. With memory, a job is looked
        at once, when it arrives."""
        self.model_waits = choose_models(self, now)
        if self.maintenance.is_due(now):  # there are new groups
            self._apply_maintenances(now)

    def _forget_last_turn(self) -> None:
        """Turn all waiting jobs into arrivals, as in an engine that was just built from a snapshot."""
        self.reservation.drop()
        self.arrivals += self.queue
        for group in self.waiting_groups:
            self.arrivals += group.queue
            group.queue = OrderedJobQueue() if self._traits.plans else []
        self.arrivals.sort()
        self.queue, self.waiting_groups = [], {}
        self.changes.record_any_change(self.resources)

    def _start_single_arrival(self, now: float) -> bool:
        """Start a job that arrived at empty queues: under every policy it starts if it fits. Whether it did."""
        job = self.arrivals[0][3]
        group = job.group
        if self.is_over_quota(group):
            return False
        places = self.place(self.resources, group.need, group.eligible_nodes)
        if places is None:
            return False
        self.arrivals.clear()
        self.begin(job, places, now)
        return True

    def _run_policy_turn(self, now: float) -> None:
        if self._traits.plans:
            self.rules.turn(self, now)
        else:
            self.enqueue_arrivals()
            self.rules.turn(self, now)
            self.enqueue_arrivals()  # stopped jobs are considered in the next turn

    # Called by turns

    def begin(self, job: EngineJob, places: GpuPlacement, now: float) -> None:
        """Start a job: take its resources and update every index."""
        self.resources.move(places, job.group.need, -1)
        self._record_start(job, places, now)

    def _record_start(self, job: EngineJob, places: GpuPlacement, now: float) -> None:
        traits = self._traits
        job.places = places
        job.since = job.began = now
        job.runs += 1
        if job.group.need.slowdowns:
            job.slowdown = slowdown_at(job.group.need, places, self.resources)
        if self.quota_usage:
            self._count_for_quota(job.group, places, 1)
        if traits.ranks:
            job.key = self.rules.rank(job, now)
        self.running.add(job)
        if traits.queues_by_account:
            self.rules.on_job_start(job, now)
        if traits.claims:
            self.borrowers.add(job)
        self.started_jobs.append(job)

    def stop_job(self, job: EngineJob, now: float, cost_s: Callable[[EngineJob], float] | None = None) -> None:
        """Stop a job that has work left, and requeue it. Stopping adds the work lost and its cost to the remaining
        time.
        """
        costs = self.preemption_costs
        job.attained += self.rules.service(job, now - job.since)
        job.ran_s += now - job.began
        job.worked_s += (now - job.began) / job.slowdown
        job.remaining_s -= (now - job.since) / job.slowdown
        if cost_s is None and costs.checkpoint_s:  # an explicit cost already includes the lost work
            job.remaining_s += costs.unsaved_work_s(job, now) / job.slowdown
        if cost_s := cost_s or costs.fixed_s:
            job.remaining_s += cost_s(job)
        self._release_gpus(job, now)
        self.stopped_jobs.append(job)
        if self._requeues:
            self.submit(job, now)

    def return_claims(self) -> None:
        """Give back what waiting jobs hold that start once others have stopped. An engine of one turn need not."""
        for job, places in self.claims:
            self.hold_claim(job.group, places, 1)
        self.claims.clear()

    def hold_claim(self, group: RequestGroup, places: GpuPlacement, sign: int) -> None:
        """Take the place of a job that is to start in a later turn (-1), or give it back (1)."""
        self.resources.move(places, group.need, sign)
        if self.quota_usage:
            self._count_for_quota(group, places, -sign)

    def withdraw_start(self, job: EngineJob, now: float) -> None:
        """Undo a start of this turn: the job waits again, as if it had never started."""
        self._release_gpus(job, now)
        job.runs -= 1
        self.submit(job, now)

    def _release_gpus(self, job: EngineJob, now: float) -> None:
        """Release the resources of a job that stops or ends, and update every index."""
        self.running.remove(job)
        if self.quota_usage:
            self._count_for_quota(job.group, job.places or (), -1)
        if self._traits.queues_by_account:
            self.rules.on_job_release(job, now)
        if self._traits.claims:
            self.borrowers.remove(job)
        self._return_places(job, now)
        job.places = None

    def _return_places(self, job: EngineJob, now: float) -> None:
        assert job.places is not None
        self.resources.move(job.places, job.group.need, 1)
        self.changes.record_release(job.places, self.resources)

    def _count_for_quota(self, group: RequestGroup, places: GpuPlacement, sign: int) -> None:
        """Count a job that took these places (1) or gave them back (-1)."""
        usage = self.quota_usage
        assert usage is not None
        if not usage.limits_models(group.owner):
            usage.add(group.owner, group.charged_milli, sign)
            return
        model = self.resources.nodes[places[0][0]].gpu_model if places else ""
        usage.add(group.owner, group.charged_milli, sign, model)
        self._bar_full_models(self._limited_groups[group.owner.team])

    def _bar_full_models(self, groups: Sequence[RequestGroup]) -> None:
        """Bar these groups of one team from GPU models of which its quota is used up."""
        known: dict[tuple[Any, bool, int], NodeSet] = {}  # most groups of a team have the same kind and size
        for group in groups:
            key = group.owner.kind, group.owner.preemptible, group.charged_milli
            if (barred := known.get(key)) is None:
                barred = known[key] = self.barred_nodes(group.owner, group.charged_milli)
            self._bar_nodes(group, barred)

    def _bar_nodes(self, group: RequestGroup, barred: NodeSet) -> None:
        if barred != group.barred_nodes:
            group.barred_nodes = barred
            group.eligible_nodes = self.maintenance.eligible_nodes(group, self._now)

    def barred_nodes(self, owner: Any, milli: int) -> NodeSet:
        """The nodes with GPU models of which the owner may not hold this much more."""
        if self.quota_usage is None or not self.quota_usage.limits_models(owner):
            return 0
        models = self.quota_usage.full_models(owner, milli)
        return sum(self.nodes_of_model(model) for model in set(models))

    def nodes_of_model(self, model: str) -> NodeSet:
        """The nodes with this GPU model, open or not. They never change, so they are looked up once."""
        if (nodes := self._nodes_of_model.get(model)) is None:
            nodes = self._nodes_of_model[model] = self.resources.matching_nodes(ResourceRequest(gpu_model=model))
        return nodes

    def is_over_quota(self, group: RequestGroup) -> bool:
        """Whether a quota keeps all jobs of this group from starting."""
        return self.quota_usage is not None and self.quota_refusal(group) is not None

    def quota_refusal(self, group: RequestGroup) -> QuotaRefusal | None:
        """Why a quota keeps the jobs of this group from starting; None if no quota does."""
        if not self.quota_usage:
            return None
        refusal = self.quota_usage.refuse(group.owner, group.charged_milli, obtainable=self.owner_resources.free_gpus)
        if refusal is None and group.barred_nodes and not group.matching_nodes & self._all_nodes & ~group.barred_nodes:
            texts = self.full_model_texts(group)  # none if no node has the model that the group requests
            return QuotaRefusal(reason=QUOTA_REASON, why=texts[0]) if texts else None
        return refusal

    def full_model_texts(self, group: RequestGroup) -> list[str]:
        """A sentence for each GPU model that the group accepts and that quotas keep it from."""
        usage, requested = self.quota_usage, group.need.gpu_model
        if usage is None or not group.barred_nodes:
            return []
        models = dict.fromkeys(usage.full_models(group.owner, group.charged_milli))
        return [
            usage.model_refusal(group.owner, group.charged_milli, model)
            for model in models
            if accepts_model(requested, model)
        ]

    def groups_to_try(self) -> list[RequestGroup]:
        """Groups whose first job may fit although it did not in the last turn, for turns that try the first of each
        queue.
        """
        changes = self.changes
        new = changes.groups_with_arrivals
        if changes.only_arrivals:
            return list(new)
        return [
            group for group in self.waiting_groups if group.min_node_gpus <= changes.largest_opening or group in new
        ]

    def tidy(self, group: RequestGroup) -> None:
        """Forget the group if no job waits in it."""
        if not group.queue:
            self.waiting_groups.pop(group, None)


def whole_second(at: float) -> float:
    """The first whole second at or after this time, when the turn of a live cluster notices it."""
    return float(math.ceil(round(at, 3)))


@mypyc_attr(allow_interpreted_subclasses=True)
class PolicyRules:
    """A queue order, a way to walk the queue, and what is learned from ended jobs. One instance serves one engine.

    single_queue  all jobs wait in one queue, because the first job that does not fit blocks all behind it
    preempts      running jobs are ranked too, and may have to stop; on live clusters only those that agreed to it
    plans         the engine tracks expected ends, because jobs get reservations
    claims        owners preempt borrowers, which get notice in advance (`turns/claiming`); requires `plans`
    depth         the maximum number of reservations at once, if every job gets one
    uses_trees    the order uses run times predicted by trees, where there are any
    packs         jobs may share whole GPUs; only in replays
    engine_class  the engine that the rules need
    weighs_service  `attained` counts GPU time by the speed of its GPU model, not only its length
    has_opportunistic  jobs of the kinds `best_effort` count as borrowers, although nobody preempts them
    """

    name: ClassVar[str]
    single_queue: ClassVar[bool] = False
    preempts: ClassVar[bool] = False
    plans: ClassVar[bool] = False
    claims: ClassVar[bool] = False
    depth: ClassVar[int] = 1_000
    uses_trees: ClassVar[bool] = False
    packs: ClassVar[bool] = False
    engine_class: ClassVar[type[Engine]] = Engine
    has_opportunistic: ClassVar[bool] = False
    weighs_service: ClassVar[bool] = False

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> PolicyRules:
        """The rules with the settings of an operator. Most policies have no settings."""
        reject_unknown(settings)
        return cls()

    @classmethod
    def check_libraries(cls) -> None:
        """Raise `MissingLibrary` if the policy needs a library that is not installed."""

    @property
    def queues_by_account(self) -> bool:
        """Whether each account has its own queues, because the resources it holds or has used determine the order."""
        return False

    @property
    def reserves(self) -> frozenset[JobKind]:
        """The kinds of jobs whose quotas stay free for their owners."""
        return frozenset()

    @property
    def needs_run_times(self) -> bool:
        """Whether the order is meaningless without run times learned from ended jobs."""
        return False

    def refuse_live(self) -> None:
        """Raise `InvalidField` if these settings need what a live cluster does not record."""

    def load_history(self, history: SchedulingHistory, now: float) -> None:
        """Start from this history instead of an empty one. Called before any job is added to the engine."""

    def load_profiles(self, profiles: Any) -> None:
        """Start from these `SharingProfiles` of jobs. Called before the engine is made; only with `packs`."""

    def turn(self, engine: Engine, now: float) -> None:
        """Walk the queue and start jobs; usually one of the functions in `turns`."""
        raise NotImplementedError

    def key(self, job: EngineJob, now: float) -> float:
        """The place among waiting jobs: the smallest first, ties by submission."""
        return 0.0

    def band(self, job: EngineJob) -> int:
        """Lower goes first regardless of the key. Used only with `claims`."""
        return job.submitted_band

    def cost(self, job: EngineJob, now: float) -> float:
        """The key without its tie-breaker, 0 or more, for a policy that uses this order as a component."""
        return self.key(job, now)

    def rank(self, job: EngineJob, now: float) -> float:
        """The place among running jobs if it started now. Must not change while it runs, except at
        `next_rank_change`.
        """
        return self.key(job, now)

    def next_rank_change(self, job: EngineJob, now: float) -> float | None:
        """When the rank changes by itself if the job keeps running; None if never."""
        return None

    def on_rank_change(self, job: EngineJob, now: float) -> None:
        """Called at the time that `next_rank_change` returned."""

    def restore(self, job: EngineJob) -> None:
        """Set what the rules keep in a job from its `attained` service, for a job that was queued or ran before."""

    def service(self, job: EngineJob, seconds: float) -> float:
        """What so many seconds of the present run add to the `attained` service."""
        gpu_s = job.group.charged_gpus * seconds
        return gpu_s / job.slowdown if self.weighs_service else gpu_s

    def restore_rank(self, job: EngineJob, now: float) -> None:
        """Set the `key` of a job that has run since `began`: its rank then, changed at `next_rank_change`."""
        job.key = self.rank(job, job.began)
        while (at := self.next_rank_change(job, job.since)) is not None and (at := whole_second(at)) <= now:
            job.attained += self.service(job, at - job.since)
            job.since = at
            self.on_rank_change(job, at)
            job.key = self.rank(job, at)

    def share(self, group: RequestGroup, engine: Engine, now: float) -> float:
        """What the account of these jobs has used or holds; the smallest goes first. It may only grow during a turn."""
        return 0.0

    def on_job_start(self, job: EngineJob, now: float) -> None:
        """Called when a job takes GPUs; only with `queues_by_account`."""

    def on_job_release(self, job: EngineJob, now: float) -> None:
        """Called when a job releases its GPUs; only with `queues_by_account`."""

    def on_job_end(self, job: EngineJob, now: float) -> None:
        """Called when a job has ended by itself, to learn from it. `since` is the start of its last run."""

    def mean_error_s(self) -> float | None:
        """The mean error of the policy's run time predictions; None if it makes none."""
        return None
