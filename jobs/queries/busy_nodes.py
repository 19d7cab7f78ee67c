"""The nodes on which jobs run or are about to run, those from outside Acme included."""

from __future__ import annotations

from django.db.models import Exists, OuterRef, Q

from jobs.core.lifecycle import NodeState
from jobs.models import Allocation, Node
from jobs.models.cluster import NodeQuerySet


def nodes_with_jobs() -> NodeQuerySet:
    held = Allocation.objects.live().filter(node=OuterRef("pk"))
    reported = Q(state__in=(NodeState.MIXED, NodeState.ALLOCATED)) | ~Q(foreign_gpus=[])
    return Node.objects.filter(reported | Exists(held))
