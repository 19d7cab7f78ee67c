"""The world as the engine sees it, and what it may answer. Plain frozen values; nothing here decides or changes.

A `Picture` is everything a policy may look at. It answers with `Decisions`: what to start and exactly where, what to
stop, and for all the rest the reason why it waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple

from jobs.core.lifecycle import JobKind
from scheduling.engine.blockers import Blocker
from scheduling.engine.windows import NodeWindow

MAINTENANCE = "maintenance"


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """A node that may take work, and what is free on it."""

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


@dataclass(frozen=True, kw_only=True)
class ResourceRequest:
    """What a job asks of each of its nodes, and of how many; `rest` is for one more node that it does not fill."""

    nodes: int = 1
    gpus: int = 0
    rest: int = 0
    cpus: int = 1
    memory_mb: int = 0
    gpu_model: str = ""
    nic_type: str = ""
    node: str = ""  # the only one it may run on
    pool: str = ""  # the virtual cluster it belongs to, where the placement guarantees them cells
    runs_s: float = 0.0  # how long it holds them, where a maintenance is ahead (`windows`)

    @property
    def total_gpus(self) -> int:
        return self.nodes * self.gpus + self.rest

    # Asked at every event, and written down at the first time

    @cached_property
    def gang(self) -> bool:
        """Whether it is for more than one node."""
        return self.nodes > 1 or self.rest > 0

    @cached_property
    def needs_only_gpus(self) -> bool:
        """Whether nothing but GPUs is asked for."""
        return not (self.cpus or self.memory_mb)


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingJob:
    id: int
    name: str
    team: str
    kind: JobKind
    need: ResourceRequest
    priority: int
    submitted_at: datetime
    preemptible: bool = False
    time_limit: timedelta | None = None
    usual: timedelta | None = None  # how long jobs like it took, where that matters and there is no limit
    hold: str = ""  # "", "user" or "admin"
    reason: str = ""  # what its row tells people since the last turn, in Slurm's word
    why: str = ""  # and in a sentence; the holder's own while it is held
    begin_at: datetime | None = None
    waits_for: tuple[str, ...] = ()  # public ids of jobs whose end it still waits for
    array: str = ""
    array_limit: int | None = None
    user: str = ""
    title: str = ""  # what its owner calls it


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningJob:
    id: int
    name: str
    team: str
    kind: JobKind
    gpus: int
    priority: int
    preemptible: bool = False
    started_at: datetime | None = None
    time_limit: timedelta | None = None
    array: str = ""
    places: Mapping[int, int] = field(default_factory=dict)  # node id -> GPUs held there
    cpus: int = 0  # on each of them
    memory_mb: int = 0
    saved_at: datetime | None = None  # its newest checkpoint in remote storage: what came after it is lost by a stop
    stopping: bool = False  # its end was asked for already: what it holds comes free soon
    user: str = ""
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class QuotaView:
    """`kind` None: for all work of the team."""

    team: str
    kind: JobKind | None
    gpus: int


@dataclass(frozen=True, kw_only=True)
class ClosedNode:
    """It takes no work; `back` says what would open it: resumed, back, or nothing but the end of a `maintenance`."""

    node: NodeView
    back: str
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class ClusterSnapshot:
    now: datetime
    nodes: tuple[NodeView, ...] = ()
    waiting: tuple[WaitingJob, ...] = ()
    running: tuple[RunningJob, ...] = ()
    quotas: tuple[QuotaView, ...] = ()
    closed: tuple[ClosedNode, ...] = ()
    placement: str = "consolidate"
    windows: tuple[NodeWindow, ...] = ()

    @property
    def nodes_in_maintenance(self) -> tuple[NodeView, ...]:
        """What comes back by itself, when a maintenance is over."""
        within = {node for window in self.windows if window.start <= self.now < window.end for node in window.nodes}
        return tuple(one.node for one in self.closed if one.back == MAINTENANCE and one.node.id in within)

    @property
    def typical_requests(self) -> Counter[ResourceRequest]:
        """What is usually asked for here, a share each: by those who wait and those who run."""
        usual = Counter(ResourceRequest(gpus=max(job.places.values(), default=0)) for job in self.running)
        for need, times in Counter(job.need for job in self.waiting).items():
            usual[replace(need, nodes=1, rest=0)] += times
        return usual

    @property
    def guaranteed_nodes(self) -> dict[str, int]:
        """Team -> whole nodes that its quota for all work amounts to."""
        gpus = max((node.gpus for node in self.nodes), default=0)
        owned = {quota.team: quota.gpus // gpus for quota in self.quotas if quota.kind is None and gpus}
        return {team: nodes for team, nodes in owned.items() if nodes}


@dataclass(frozen=True, kw_only=True)
class StartDecision:
    job_id: int
    places: Mapping[int, tuple[int, ...]]  # node id -> GPU indices
    why: str


@dataclass(frozen=True, kw_only=True)
class StopDecision:
    """`for_job` is the waiting job that it makes room for; 0 where it is for nobody in particular."""

    job_id: int
    why: str
    for_job: int = 0


class WaitDecision(NamedTuple):
    """`reason` is Slurm's word, `why` the sentence a page shows: those of the first of its blockers. Made ten thousand
    times a turn, which a tuple makes cheap."""

    job_id: int
    reason: str
    why: str
    blockers: tuple[Blocker, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TurnDecisions:
    starts: tuple[StartDecision, ...] = ()
    stops: tuple[StopDecision, ...] = ()
    waits: tuple[WaitDecision, ...] = field(default=())
