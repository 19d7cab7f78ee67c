"""The cluster as the engine sees it, and the decisions that it returns. Plain values that nothing changes.

A `ClusterSnapshot` is everything a policy may look at. The answer is `TurnDecisions`: which jobs start and exactly
where, which jobs stop, and why each of the others waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple

from jobs.core.gpu_models import accepts_model
from jobs.core.gpu_shares import SHARD, WHOLE_GPU, charged_milli
from jobs.core.lifecycle import RECOVERING, JobKind
from jobs.core.preemption_contract import ANY_TIME, Standing
from scheduling.engine.blockers import Blocker, BlockerKind
from scheduling.engine.gpu_speeds import GpuSpeeds
from scheduling.engine.history import SchedulingHistory
from scheduling.engine.windows import NodeWindow

MAINTENANCE = "maintenance"


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """A node that accepts jobs, and what is free on it."""

    id: int
    name: str
    gpus: int
    free_gpus: tuple[int, ...]
    free_cpus: int
    free_memory_mb: int
    gpu_model: str = ""
    nic_type: str = ""
    leaf: str = ""
    pod: str = ""
    shared_gpus: tuple[tuple[int, int], ...] = ()  # index and free thousandths of each GPU that shares hold
    shards_per_gpu: int = WHOLE_GPU  # into how many equal parts its GPUs can be shared; 0: not at all
    share_gres: str = SHARD  # what Slurm calls these parts
    shares_one_gpu: bool = False  # only one of its GPUs can be shared at a time, as Slurm does with gres/mps
    mig_profiles: tuple[str, ...] = ()  # it has MIG slices: the profile of each entry of `shared_gpus`, which are these
    boot_s: float = 0.0  # it sleeps: a job that starts there waits this long for its boot
    wake_w: int = 0  # it sleeps: what it draws when it is awake and idle; set if there is a power budget


@dataclass(frozen=True, kw_only=True)
class ResourceRequest:
    """What a job needs on each of `nodes` nodes. `rest` GPUs are needed on one more node, which the job does
    not fill. `gpu_milli` thousandths of one GPU are needed instead of whole GPUs, and always on a single node. With a
    `mig_profile`, they are a MIG slice of this profile, and no other part of a GPU will do.
    """

    nodes: int = 1
    gpus: int = 0
    gpu_milli: int = 0
    share_gres: str = ""  # of a share: what Slurm must call it, because mps isolates jobs and shard does not
    mig_profile: str = ""
    rest: int = 0
    cpus: int = 1
    memory_mb: int = 0
    gpu_model: str = ""
    nic_type: str = ""
    node: str = ""  # the only one it may run on
    pool: str = ""  # the virtual cluster it belongs to, where the placement guarantees them cells
    runs_s: float = 0.0  # how long it holds the nodes; set if a maintenance is ahead (`windows`)
    watts: int = 0  # its predicted peak on all nodes above idle ones; set if there is a power budget
    # How many times as long it runs on each model of `gpu_model` as on the first; empty if that is not known
    slowdowns: tuple[float, ...] = ()

    @property
    def total_gpus(self) -> int:
        """Whole GPUs; a share is not one."""
        return self.nodes * self.gpus + self.rest

    @property
    def charged_milli(self) -> int:
        """What accounts count, in thousandths of a GPU."""
        return charged_milli(self.total_gpus, self.gpu_milli)

    @property
    def most_gpus(self) -> int:
        """The most whole GPUs of a node that one part of the job may take: one for a share that finds no shared GPU."""
        return self.gpus or int(self.gpu_milli > 0 and not self.mig_profile)

    # Cached, because they are read at every event

    @cached_property
    def gang(self) -> bool:
        """Whether the job needs more than one node."""
        return self.nodes > 1 or self.rest > 0

    @cached_property
    def needs_only_gpus(self) -> bool:
        """Whether the job needs neither CPUs nor memory, nor power of a budget."""
        return not (self.cpus or self.memory_mb or self.watts)


@dataclass(frozen=True, kw_only=True)
class PowerBudget:
    """What jobs on the nodes may draw above idle ones, by prediction. `name` is like "seren" or "rack r1"."""

    name: str
    watts: int
    nodes: frozenset[int] | None = None  # ids; None: all nodes of the cluster
    idle_w: int = 0  # what its nodes draw that are awake and idle; `watts` leaves it out


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingJob:
    """A job that waits to start."""

    id: int
    name: str
    team: str
    kind: JobKind
    need: ResourceRequest
    priority: int
    submitted_at: datetime
    preemptible: bool = False
    time_limit: timedelta | None = None
    usual: timedelta | None = None  # run time of similar jobs; set if it matters and there is no limit
    hold: str = ""  # "", "user" or "admin"
    reason: str = ""  # Slurm's term stored in its row by the last turn
    why: str = ""  # the stored sentence; while held, the one given by the user
    power_budgets: tuple[str, ...] = ()  # the stored ones
    begin_at: datetime | None = None
    deadline_at: datetime | None = None
    waits_for: tuple[str, ...] = ()  # public ids of the dependencies that have not ended
    array: str = ""
    array_limit: int | None = None
    user: str = ""
    title: str = ""  # the name given by its owner

    def has_gate(self, now: datetime) -> bool:
        """Whether `gate_blockers` would yield anything."""
        return bool(self.hold or self.waits_for or (self.begin_at and self.begin_at > now))

    def gate_blockers(self, now: datetime) -> Iterator[Blocker]:
        """Yield what keeps the job from starting regardless of free resources: a hold, a begin time, dependencies."""
        if self.hold == "admin":
            yield Blocker(kind=BlockerKind.HOLD, reason="JobHeldAdmin", why=self.why or "An operator holds it.")
        elif self.hold:
            reason = RECOVERING if self.reason == RECOVERING else "JobHeldUser"
            yield Blocker(kind=BlockerKind.HOLD, reason=reason, why=self.why or "Its owner holds it.")
        if self.begin_at and self.begin_at > now:
            why = f"Its earliest start is {self.begin_at:%Y-%m-%d %H:%M:%S} UTC."
            yield Blocker(kind=BlockerKind.BEGIN, reason="BeginTime", why=why)
        if self.waits_for:
            more = f" and {len(self.waits_for) - 3} more" if len(self.waits_for) > 3 else ""
            why = f"It waits for {', '.join(self.waits_for[:3])}{more} to end."
            yield Blocker(kind=BlockerKind.DEPENDENCY, reason="Dependency", why=why, jobs=len(self.waits_for))


@dataclass(kw_only=True, slots=True)
class RunningJob:
    """A job that holds nodes. Not frozen, because a snapshot may have ten thousand and frozen ones are four times as
    slow to create. Nothing changes them.
    """

    id: int
    name: str
    team: str
    kind: JobKind
    gpus: int
    priority: int
    preemptible: bool = False
    started_at: datetime | None = None
    time_limit: timedelta | None = None
    deadline_at: datetime | None = None
    array: str = ""
    places: Mapping[int, int] = field(default_factory=dict)  # node id -> GPUs held there; 0 for a share
    gpu_milli: int = 0  # of the GPU `shared_gpu` of its node, if it holds a share
    shared_gpu: int = 0
    cpus: int = 0  # on each node
    memory_mb: int = 0
    saved_at: datetime | None = None  # its newest checkpoint in remote storage; a stop loses later work
    stopping: bool = False  # its stop is requested already, so its GPUs come free soon
    standing: Standing = ANY_TIME  # whether its contract permits a preemption now
    asked_at: datetime | None = None  # when it was asked for a checkpoint that it has not saved yet
    user: str = ""
    title: str = ""
    watts: int = 0  # its predicted peak on all nodes above idle ones; set if there is a power budget
    slowdown: float = 1.0  # how many times as long it runs on its GPU model as on the first one that it requested

    @property
    def charged_milli(self) -> int:
        """What accounts count, in thousandths of a GPU."""
        return charged_milli(self.gpus, self.gpu_milli)


@dataclass(frozen=True, kw_only=True)
class QuotaView:
    """A limit on the GPUs of a team. With `kind` None it applies to all its jobs, with a GPU model only to GPUs of that
    model.
    """

    team: str
    kind: JobKind | None
    gpus: int
    gpu_model: str = ""

    def applies_to(self, job: WaitingJob) -> bool:
        """Whether the job may count against it."""
        is_of_team = self.team == job.team and self.kind in (None, job.kind)
        return is_of_team and (not self.gpu_model or accepts_model(job.need.gpu_model, self.gpu_model))


@dataclass(frozen=True, kw_only=True)
class ClosedNode:
    """A node that accepts no jobs. `back` says what would open it: "resumed", "back", or the end of a `MAINTENANCE`."""

    node: NodeView
    back: str
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class ClusterSnapshot:
    """Everything that a turn may look at, read from the database at `now`."""

    now: datetime
    nodes: tuple[NodeView, ...] = ()
    waiting: tuple[WaitingJob, ...] = ()
    running: tuple[RunningJob, ...] = ()
    quotas: tuple[QuotaView, ...] = ()
    closed: tuple[ClosedNode, ...] = ()
    placement: str = "consolidate"
    windows: tuple[NodeWindow, ...] = ()
    power: tuple[PowerBudget, ...] = ()
    history: SchedulingHistory | None = None  # None: nothing is known about the past
    speeds: GpuSpeeds | None = None  # None: no waiting job names several GPU models

    @cached_property
    def node_models(self) -> dict[int, str]:
        """The GPU model of each node by its id."""
        nodes = (*self.nodes, *(closed.node for closed in self.closed))
        return {node.id: node.gpu_model for node in nodes}

    def gpu_model(self, job: RunningJob) -> str:
        """The model that the job holds; empty if that is not known. A job never holds two."""
        return next((self.node_models.get(node, "") for node in job.places), "")

    @property
    def nodes_in_maintenance(self) -> tuple[NodeView, ...]:
        """Closed nodes that open by themselves when a maintenance ends."""
        node_ids = {node for window in self.windows if window.start <= self.now < window.end for node in window.nodes}
        return tuple(closed.node for closed in self.closed if closed.back == MAINTENANCE and closed.node.id in node_ids)

    @property
    def typical_requests(self) -> Counter[ResourceRequest]:
        """Requests of running and waiting jobs per node, with their frequency."""
        held = ((max(job.places.values(), default=0), job.gpu_milli) for job in self.running)
        counts = Counter(ResourceRequest(gpus=gpus, gpu_milli=milli) for gpus, milli in held)
        for need, times in Counter(job.need for job in self.waiting).items():
            counts[replace(need, nodes=1, rest=0, watts=0)] += times
        return counts

    @property
    def guaranteed_nodes(self) -> dict[str, int]:
        """Team -> number of whole nodes covered by its quota for all jobs."""
        gpus = max((node.gpus for node in self.nodes), default=0)
        guaranteed = {
            quota.team: quota.gpus // gpus
            for quota in self.quotas
            if quota.kind is None and not quota.gpu_model and gpus
        }
        return {team: nodes for team, nodes in guaranteed.items() if nodes}


@dataclass(frozen=True, kw_only=True)
class StartDecision:
    """Start this job on exactly these GPUs or MIG slices, or on thousandths of one of the GPUs."""

    job_id: int
    places: Mapping[int, tuple[int, ...]]  # node id -> GPU indices
    why: str
    gpu_milli: int = 0
    slowdown: float = 1.0  # of the GPU model that it gets


@dataclass(frozen=True, kw_only=True)
class StopDecision:
    """Stop this job. `for_job` is the waiting job that gets its GPUs; 0 if there is none in particular."""

    job_id: int
    why: str
    for_job: int = 0


class WaitDecision(NamedTuple):
    """Why a job waits: `reason` is Slurm's term, `why` the sentence of its first blocker.

    A turn creates ten thousand of these, so this is a tuple, which is cheap to create.
    """

    job_id: int
    reason: str
    why: str
    blockers: tuple[Blocker, ...] = ()

    @property
    def power_budgets(self) -> tuple[str, ...]:
        """The budgets that the first blocker names."""
        return self.blockers[0].power_budgets if self.blockers else ()


@dataclass(frozen=True, kw_only=True)
class TurnDecisions:
    """The result of one turn."""

    starts: tuple[StartDecision, ...] = ()
    stops: tuple[StopDecision, ...] = ()
    asks: tuple[StopDecision, ...] = ()  # jobs to preempt after their next checkpoint: ask for it
    waits: tuple[WaitDecision, ...] = field(default=())
