"""Changes to a Picture that might start a job, each with what it costs.

Costs make different things comparable: 0 gives nothing up, 1 gives up all. Asking for a part of the GPUs costs the part
that is left out; waiting t hours for somebody's end costs t / (1 + t); what needs an operator costs more than what the
owner does alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from scheduling.engine.cluster import ClosedNode, NodeView, Picture, QuotaView, RunningJob, WaitingJob

OTHER_MAKE = 0.15
PREEMPTIBLE = 0.25
SHORTER_LIMIT = 0.5  # times the part of the limit that is cut
OPERATOR = 0.3  # besides what is given
PRIORITY = 0.6


class Who(StrEnum):
    OWNER = "owner"
    OPERATOR = "operator"
    TIME = "time"


@dataclass(frozen=True, kw_only=True)
class Change:
    """`phrase` goes on after "It would start now if"."""

    kind: str
    who: Who
    cost: float
    phrase: str
    apply: Callable[[Picture], Picture] = field(compare=False, repr=False)

    @property
    def why(self) -> str:
        return f"It would start now if {self.phrase}."

    def then(self, other: Change) -> Change:
        return Change(
            kind=f"{self.kind}+{other.kind}",
            who=max(self.who, other.who, key=list(Who).index),
            cost=self.cost + other.cost,
            phrase=f"{self.phrase}, and if {other.phrase}",
            apply=lambda picture: other.apply(self.apply(picture)),
        )


def change(kind: str, who: Who, cost: float, phrase: str, apply: Callable[[Picture], Picture]) -> Change:
    return Change(kind=kind, who=who, cost=cost, phrase=phrase, apply=apply)


def job_of(picture: Picture, job_id: int) -> WaitingJob:
    return next(job for job in picture.waiting if job.id == job_id)


def with_job(job_id: int, **fields: Any) -> Callable[[Picture], Picture]:
    """The job asks for something else."""

    def apply(picture: Picture) -> Picture:
        waiting = tuple(replace(job, **fields) if job.id == job_id else job for job in picture.waiting)
        return replace(picture, waiting=waiting)

    return apply


def with_quotas(raised: Collection[QuotaView]) -> Callable[[Picture], Picture]:
    by_scope = {(quota.team, quota.kind): quota for quota in raised}

    def apply(picture: Picture) -> Picture:
        quotas = tuple(by_scope.get((quota.team, quota.kind), quota) for quota in picture.quotas)
        return replace(picture, quotas=quotas)

    return apply


def with_open(opened: Collection[ClosedNode]) -> Callable[[Picture], Picture]:
    ids = {one.node.id for one in opened}

    def apply(picture: Picture) -> Picture:
        nodes = (*picture.nodes, *(one.node for one in opened))
        return replace(picture, nodes=nodes, closed=tuple(one for one in picture.closed if one.node.id not in ids))

    return apply


def without(gone: Collection[RunningJob]) -> Callable[[Picture], Picture]:
    """These have ended, and what they held is free."""

    def apply(picture: Picture) -> Picture:
        ids = {job.id for job in gone}
        nodes = {node.id: node for node in picture.nodes}
        for job in gone:
            for node_id, gpus in job.places.items():
                if node_id in nodes:
                    nodes[node_id] = _given_back(nodes[node_id], job, gpus)
        running = tuple(job for job in picture.running if job.id not in ids)
        return replace(picture, nodes=tuple(nodes.values()), running=running)

    return apply


def _given_back(node: NodeView, job: RunningJob, gpus: int) -> NodeView:
    taken = [gpu for gpu in range(node.gpus) if gpu not in node.free_gpus]
    return replace(
        node,
        free_gpus=tuple(sorted((*node.free_gpus, *taken[:gpus]))),
        free_cpus=node.free_cpus + job.cpus,
        free_memory_mb=node.free_memory_mb + job.memory_mb,
    )
