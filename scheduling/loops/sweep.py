"""Sweep: request turns for overdue commands.

Eligible rows     Clusters that Acme drives, with a command that is due for longer than `COMMAND_OVERDUE_AFTER`.
What a turn does  Requests a scheduling turn. Turns run every second, so commands are only overdue if all workers were
                  busy.
Failure story     A request is stored in the row of the loop. Repeated requests have no further effect.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from jobs.actions.wake import request_turn
from jobs.models import Cluster, ClusterCommand, ClusterMode

COMMAND_OVERDUE_AFTER = timedelta(minutes=2)  # twice the claim time of a command


def request_overdue_turns(now: datetime) -> int:
    """Return for how many clusters a turn was requested."""
    late = ClusterCommand.objects.due(now - COMMAND_OVERDUE_AFTER).filter(cluster__mode=ClusterMode.DRIVE)
    clusters = Cluster.objects.filter(pk__in=late.values("cluster")).values_list("pk", flat=True)
    for cluster_id in clusters:
        request_turn(cluster_id)
    return len(clusters)
