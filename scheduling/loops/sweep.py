"""Sweep: due work that nobody woke.

Who is eligible   clusters that Acme drives, with a deed that is due for longer than `OVERDUE`.
What a turn does  asks for a turn of their loop. Beat ticks every second, so this finds something only when ticks
                  expired unheard: all workers busy, or a broker that was away.
Failure story     A wish is a note in the cluster's row and a hint to the workers: twice is once, and a lost hint costs
                  until the next tick.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from jobs.actions.wake import request_turn
from jobs.models import Cluster, ClusterMode, Deed

COMMAND_OVERDUE_AFTER = timedelta(minutes=2)  # twice as long as a worker may be at a deed


def request_overdue_turns(now: datetime) -> int:
    """Return how many clusters were woken."""
    late = Deed.objects.due(now - COMMAND_OVERDUE_AFTER).filter(cluster__mode=ClusterMode.DRIVE)
    clusters = Cluster.objects.filter(pk__in=late.values("cluster")).values_list("pk", flat=True)
    for cluster_id in clusters:
        request_turn(cluster_id)
    return len(clusters)
