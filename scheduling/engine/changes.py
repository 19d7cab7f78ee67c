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

from scheduling.engine.cluster import ClosedNode, ClusterSnapshot, NodeView, QuotaView, RunningJob, WaitingJob

HARDWARE_COST = 0.15
PREEMPTIBLE_COST = 0.25
SHORTER_LIMIT_COST = 0.5  # times the part of the limit that is cut
OPERATOR_COST = 0.3  # besides what is given
PRIORITY_COST = 0.6


class ChangeActor(StrEnum):
    OWNER = "owner"
    OPERATOR = "operator"
    TIME = "time"


@dataclass(frozen=True, kw_only=True)
class SuggestedChange:
    """`phrase` goes on after "It would start now if"."""

    kind: str
    who: ChangeActor
    cost: float
    phrase: str
    apply: Callable[[ClusterSnapshot], ClusterSnapshot] = field(compare=False, repr=False)

    @property
    def why(self) -> str:
        return f"It would start now if {self.phrase}."

    def then(self, other: SuggestedChange) -> SuggestedChange:
        return SuggestedChange(
            kind=f"{self.kind}+{other.kind}",
            who=max(self.who, other.who, key=list(ChangeActor).index),
            cost=self.cost + other.cost,
            phrase=f"{self.phrase}, and if {other.phrase}",
            apply=lambda picture: other.apply(self.apply(picture)),
        )


def make_change(
    kind: str, who: ChangeActor, cost: float, phrase: str, apply: Callable[[ClusterSnapshot], ClusterSnapshot]
) -> SuggestedChange:
    return SuggestedChange(kind=kind, who=who, cost=cost, phrase=phrase, apply=apply)


def find_waiting_job(picture: ClusterSnapshot, job_id: int) -> WaitingJob:
    return next(job for job in picture.waiting if job.id == job_id)


def with_job_fields(job_id: int, **fields: Any) -> Callable[[ClusterSnapshot], ClusterSnapshot]:
    """The job asks for something else."""

    def replace_job(picture: ClusterSnapshot) -> ClusterSnapshot:
        waiting = tuple(replace(job, **fields) if job.id == job_id else job for job in picture.waiting)
        return replace(picture, waiting=waiting)

    return replace_job


def with_quotas(raised: Collection[QuotaView]) -> Callable[[ClusterSnapshot], ClusterSnapshot]:
    by_scope = {(quota.team, quota.kind): quota for quota in raised}

    def replace_quotas(picture: ClusterSnapshot) -> ClusterSnapshot:
        quotas = tuple(by_scope.get((quota.team, quota.kind), quota) for quota in picture.quotas)
        return replace(picture, quotas=quotas)

    return replace_quotas


def with_open_nodes(opened: Collection[ClosedNode]) -> Callable[[ClusterSnapshot], ClusterSnapshot]:
    ids = {one.node.id for one in opened}

    def open_nodes(picture: ClusterSnapshot) -> ClusterSnapshot:
        nodes = (*picture.nodes, *(one.node for one in opened))
        return replace(picture, nodes=nodes, closed=tuple(one for one in picture.closed if one.node.id not in ids))

    return open_nodes


def without_running_jobs(gone: Collection[RunningJob]) -> Callable[[ClusterSnapshot], ClusterSnapshot]:
    """These have ended, and what they held is free."""

    def end_jobs(picture: ClusterSnapshot) -> ClusterSnapshot:
        ids = {job.id for job in gone}
        nodes = {node.id: node for node in picture.nodes}
        for job in gone:
            for node_id, gpus in job.places.items():
                if node_id in nodes:
                    nodes[node_id] = _with_freed_gpus(nodes[node_id], job, gpus)
        running = tuple(job for job in picture.running if job.id not in ids)
        return replace(picture, nodes=tuple(nodes.values()), running=running)

    return end_jobs


def _with_freed_gpus(node: NodeView, job: RunningJob, gpus: int) -> NodeView:
    taken = [gpu for gpu in range(node.gpus) if gpu not in node.free_gpus]
    return replace(
        node,
        free_gpus=tuple(sorted((*node.free_gpus, *taken[:gpus]))),
        free_cpus=node.free_cpus + job.cpus,
        free_memory_mb=node.free_memory_mb + job.memory_mb,
    )
