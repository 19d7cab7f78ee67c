"""Changes to a snapshot that might start a job, each with its cost.

Costs make different changes comparable: 0 gives up nothing, 1 gives up everything. Requesting fewer GPUs costs the
fraction that is left out. Waiting t hours for another job to end costs t / (1 + t). Changes that need an operator cost
more than those that the owner can make.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from jobs.core.gpu_shares import WHOLE_GPU
from scheduling.engine.cluster import ClosedNode, ClusterSnapshot, NodeView, QuotaView, RunningJob, WaitingJob

HARDWARE_COST = 0.15
PREEMPTIBLE_COST = 0.25
SHORTER_LIMIT_COST = 0.5  # multiplied by the fraction by which the limit is shortened
OPERATOR_COST = 0.3  # added to the cost of what the operator grants
PRIORITY_COST = 0.6


class ChangeActor(StrEnum):
    OWNER = "owner"
    OPERATOR = "operator"
    TIME = "time"


@dataclass(frozen=True, kw_only=True)
class SuggestedChange:
    """A change and its effect on a snapshot. `phrase` continues "It would start now if".

    `request` has the same change as fields of a job request. It is empty if submitting the job again with other fields
    would not make the change.
    """

    kind: str
    who: ChangeActor
    cost: float
    phrase: str
    apply: Callable[[ClusterSnapshot], ClusterSnapshot] = field(compare=False, repr=False)
    request: Mapping[str, Any] = field(default_factory=dict)

    @property
    def why(self) -> str:
        return f"It would start now if {self.phrase}."

    def then(self, other: SuggestedChange) -> SuggestedChange:
        """Both changes as one: costs add up, and the less available actor counts."""
        return SuggestedChange(
            kind=f"{self.kind}+{other.kind}",
            who=max(self.who, other.who, key=list(ChangeActor).index),
            cost=self.cost + other.cost,
            phrase=f"{self.phrase}, and if {other.phrase}",
            apply=lambda snapshot: other.apply(self.apply(snapshot)),
            request={**self.request, **other.request} if self.request and other.request else {},
        )


def make_change(
    kind: str,
    who: ChangeActor,
    cost: float,
    phrase: str,
    apply: Callable[[ClusterSnapshot], ClusterSnapshot],
    request: Mapping[str, Any] | None = None,
) -> SuggestedChange:
    return SuggestedChange(kind=kind, who=who, cost=cost, phrase=phrase, apply=apply, request=request or {})


def find_waiting_job(snapshot: ClusterSnapshot, job_id: int) -> WaitingJob:
    return next(job for job in snapshot.waiting if job.id == job_id)


def with_job_fields(job_id: int, **fields: Any) -> Callable[[ClusterSnapshot], ClusterSnapshot]:
    """A change of the job's own request."""

    def replace_job(snapshot: ClusterSnapshot) -> ClusterSnapshot:
        waiting = tuple(replace(job, **fields) if job.id == job_id else job for job in snapshot.waiting)
        return replace(snapshot, waiting=waiting)

    return replace_job


def with_quotas(raised: Collection[QuotaView]) -> Callable[[ClusterSnapshot], ClusterSnapshot]:
    by_scope = {(quota.team, quota.kind, quota.gpu_model): quota for quota in raised}

    def replace_quotas(snapshot: ClusterSnapshot) -> ClusterSnapshot:
        quotas = tuple(by_scope.get((quota.team, quota.kind, quota.gpu_model), quota) for quota in snapshot.quotas)
        return replace(snapshot, quotas=quotas)

    return replace_quotas


def with_open_nodes(opened: Collection[ClosedNode]) -> Callable[[ClusterSnapshot], ClusterSnapshot]:
    ids = {closed.node.id for closed in opened}

    def open_nodes(snapshot: ClusterSnapshot) -> ClusterSnapshot:
        nodes = (*snapshot.nodes, *(closed.node for closed in opened))
        return replace(
            snapshot, nodes=nodes, closed=tuple(closed for closed in snapshot.closed if closed.node.id not in ids)
        )

    return open_nodes


def without_running_jobs(ended: Collection[RunningJob]) -> Callable[[ClusterSnapshot], ClusterSnapshot]:
    """A change after which these jobs have ended and their resources are free."""

    def end_jobs(snapshot: ClusterSnapshot) -> ClusterSnapshot:
        ids = {job.id for job in ended}
        nodes = {node.id: node for node in snapshot.nodes}
        for job in ended:
            for node_id, gpus in job.places.items():
                if node_id in nodes:
                    free = _with_freed_share if job.gpu_milli else _with_freed_gpus
                    nodes[node_id] = free(nodes[node_id], job, gpus)
        running = tuple(job for job in snapshot.running if job.id not in ids)
        return replace(snapshot, nodes=tuple(nodes.values()), running=running)

    return end_jobs


def _with_freed_gpus(node: NodeView, job: RunningJob, gpus: int) -> NodeView:
    held = {*node.free_gpus, *(gpu for gpu, _ in node.shared_gpus)}
    taken = [gpu for gpu in range(node.gpus) if gpu not in held]
    return replace(
        node,
        free_gpus=tuple(sorted((*node.free_gpus, *taken[:gpus]))),
        free_cpus=node.free_cpus + job.cpus,
        free_memory_mb=node.free_memory_mb + job.memory_mb,
    )


def _with_freed_share(node: NodeView, job: RunningJob, gpus: int) -> NodeView:
    left = {gpu: free + job.gpu_milli * (gpu == job.shared_gpu) for gpu, free in node.shared_gpus}
    free_again = [gpu for gpu, free in left.items() if free == WHOLE_GPU]
    return replace(
        node,
        free_gpus=tuple(sorted((*node.free_gpus, *free_again))),
        shared_gpus=tuple((gpu, free) for gpu, free in left.items() if free < WHOLE_GPU),
        free_cpus=node.free_cpus + job.cpus,
        free_memory_mb=node.free_memory_mb + job.memory_mb,
    )
