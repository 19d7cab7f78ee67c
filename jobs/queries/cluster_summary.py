"""Each cluster at a glance: where its GPUs are, how many jobs run and wait. It names nobody, so it is everybody's.

Three statements for all clusters together: one walks over the nodes and the live allocations, and comes back with a row
for each sort of node that there is; two count what the partial indexes of live and waiting jobs hold.
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
from jobs.core.lifecycle import USABLE_NODE_STATES, NodeFlag, NodeState, takes_work
from jobs.models import Cluster, Job

# GPUs of jobs that came to the cluster another way are taken too, though no allocation of ours says so
NODE_GROUPS_SQL = """
SELECT n.cluster_id, n.state, n.flags, n.drain_asked, n.gpus, coalesce(h.held, 0) + cardinality(n.foreign_gpus),
  count(*)
FROM jobs_node n LEFT JOIN (
  SELECT node_id, count(*) AS held FROM jobs_allocation WHERE released_at IS NULL AND gpu IS NOT NULL GROUP BY node_id
) AS h ON h.node_id = n.id GROUP BY 1, 2, 3, 4, 5, 6
"""


@dataclass(frozen=True, kw_only=True)
class ClusterSummary:
    """One cluster: where its GPUs are, and how many jobs run and wait."""

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
    found: dict[int, list[NodeLoad]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(NODE_GROUPS_SQL)
        for cluster, state, flags, drain_asked, gpus, held, nodes in cursor.fetchall():
            flags = [*flags, NodeFlag.DRAIN] if drain_asked else flags
            found[cluster].append(
                NodeLoad(
                    nodes=nodes,
                    gpus=gpus,
                    held=held,
                    answers=state in USABLE_NODE_STATES and NodeFlag.NOT_RESPONDING not in flags,
                    takes_work=takes_work(NodeState(state), flags),
                )
            )
    return dict(found)


def _counts_by_cluster(found: Any) -> dict[int, int]:
    return dict(found.order_by().values_list("cluster").annotate(Count("pk")))
