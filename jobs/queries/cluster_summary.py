"""A short summary of each cluster: the use of its GPUs, and the numbers of running and waiting jobs.

It contains no names of jobs or users, so every user may see it. Three statements serve all clusters: one scans nodes
and live allocations and returns a row for each group of equal nodes; two count rows in the partial indexes of live and
waiting jobs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import Count

from jobs.core.gpu_capacity import Capacity, NodeLoad, sum_capacity
from jobs.core.lifecycle import USABLE_NODE_STATES, NodeFlag, NodeState, is_schedulable
from jobs.models import Cluster, Job

# GPUs of jobs that were submitted outside Acme count as held, although no allocation row exists for them
NODE_GROUPS_SQL = """
SELECT n.cluster_id, n.state, n.flags, n.drain_requested, n.gpus, coalesce(h.held, 0) + cardinality(n.foreign_gpus),
  count(*)
FROM jobs_node n LEFT JOIN (
  SELECT node_id, count(DISTINCT gpu) AS held FROM jobs_allocation WHERE released_at IS NULL AND gpu IS NOT NULL
  GROUP BY node_id
) AS h ON h.node_id = n.id GROUP BY 1, 2, 3, 4, 5, 6
"""


@dataclass(frozen=True, kw_only=True)
class ClusterSummary:
    """One cluster: the use of its GPUs, and its running and waiting jobs."""

    cluster: Cluster
    capacity: Capacity
    nodes: int
    running: int
    waiting: int
    is_silent: bool


def cluster_summaries(now: datetime) -> list[ClusterSummary]:
    loads = _node_loads()
    running, waiting = _counts_by_cluster(Job.objects.live()), _counts_by_cluster(Job.objects.waiting())
    return [
        ClusterSummary(
            cluster=cluster,
            capacity=sum_capacity(loads.get(cluster.pk, ())),
            nodes=sum(load.nodes for load in loads.get(cluster.pk, ())),
            running=running.get(cluster.pk, 0),
            waiting=waiting.get(cluster.pk, 0),
            is_silent=cluster.is_silent(now),
        )
        for cluster in Cluster.objects.all()
    ]


def _node_loads() -> dict[int, Sequence[NodeLoad]]:
    loads: dict[int, list[NodeLoad]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(NODE_GROUPS_SQL)
        for cluster, state, flags, drain_requested, gpus, held, nodes in cursor.fetchall():
            # As `Node.all_flags`: a requested drain counts before the cluster confirms it
            flags = [*flags, NodeFlag.DRAIN] if drain_requested else flags
            loads[cluster].append(
                NodeLoad(
                    nodes=nodes,
                    gpus=gpus,
                    held=held,
                    answers=state in USABLE_NODE_STATES and NodeFlag.NOT_RESPONDING not in flags,
                    is_schedulable=is_schedulable(NodeState(state), flags),
                )
            )
    return dict(loads)


def _counts_by_cluster(jobs: Any) -> dict[int, int]:
    return dict(jobs.order_by().values_list("cluster").annotate(Count("pk")))
