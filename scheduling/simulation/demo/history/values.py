"""Values that the modules of this package share: where the rows of a history belong, and the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Model

from failures.models import Decision, Diagnosis, Incident
from jobs.actions.journal import Author
from jobs.core.lifecycle import JobKind
from jobs.models import (
    Attempt,
    Cluster,
    Job,
    Node,
)
from scheduling.models import Campaign, Evaluation, Shard, Trial
from scheduling.simulation.demo.sites import DEMO_SITES, DemoSite
from scheduling.simulation.drill.jobs import AttemptLife, DrillJob

ALLOCATION_COLUMNS = ("attempt_id", "node_id", "gpu", "held_at", "released_at")
AllocationValues = tuple[int, int, int, datetime, datetime]


class EventValues(NamedTuple):
    """The columns of an Event, as `jobs.actions.journal` fills them. A history has 200,000 Events."""

    type: str
    by: str
    user_id: int | None
    at: datetime
    cluster_id: int
    job_id: int | None = None
    attempt_id: int | None = None
    node_id: int | None = None
    from_state: str = ""
    to_state: str = ""
    why: str = ""
    detail: str = "{}"  # JSON
    request_id: str = ""


def new_event(type: str, author: Author, at: datetime, cluster_id: int, **values: Any) -> EventValues:
    return EventValues(type=type, by=author.by, user_id=author.user_id, at=at, cluster_id=cluster_id, **values)


@dataclass(frozen=True, kw_only=True)
class DemoUser:
    id: int
    name: str
    team_id: int


@dataclass(frozen=True, kw_only=True)
class HistoryPlace:
    """Where the rows belong: the cluster, its nodes in the order of the simulation, and the users of each kind."""

    cluster: Cluster
    nodes: Sequence[Node]
    users: Mapping[JobKind, Sequence[DemoUser]]
    began: datetime

    @property
    def site(self) -> DemoSite:
        return DEMO_SITES[self.cluster.name]

    def at(self, seconds: float) -> datetime:
        return self.began + timedelta(seconds=seconds)


@dataclass(kw_only=True)
class HistoryRows:
    """The rows of each table, with keys from 1 in the order of time."""

    jobs: list[Job] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    allocations: list[AllocationValues] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    diagnoses: list[Diagnosis] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    diagnosis_nodes: list[Model] = field(default_factory=list)
    incident_nodes: list[Model] = field(default_factory=list)
    events: list[EventValues] = field(default_factory=list)
    campaigns: list[Campaign] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    shards: list[Shard] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class PlacedAttempt:
    """An attempt of the simulation with its GPUs and its row."""

    work: DrillJob
    life: AttemptLife
    ended: float
    gpus: Sequence[tuple[int, int]]  # (node, index of the GPU)
    row: Attempt
    job: Job
