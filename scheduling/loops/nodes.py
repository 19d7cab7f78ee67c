"""Nodes: take over what a cluster reports of its nodes; a part of sync.

A node whose row cannot be read keeps its last known state and takes no new work.

A room of a thousand nodes looks every second as it looked a second ago. So every report is compared with plain columns,
and only the rows that differ are locked, made into objects and written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction

from jobs import node_actions
from jobs.journal import SYNC
from jobs.lifecycle import NodeFlag
from jobs.models import TO_NODES, Cluster, Deed, Node
from scheduling import observing
from scheduling.backends.base import Listing, SeenNode

# What a report may change, and what decides whether it may
COMPARED = (
    *("pk", "name", "state", "flags", "gpus", "gpu_model", "cpus", "memory_mb", "rack", "leaf", "pod", "nic_type"),
    *("nic_count", "foreign_gpus", "drain_asked", "reason", "reason_by", "reason_at"),
)


def sync_nodes(
    cluster: Cluster, seen: Listing[SeenNode], foreign: Mapping[str, Collection[int]], now: datetime
) -> None:
    # In one transaction, so that nobody takes a cluster that was half written down for the whole of it
    with transaction.atomic():
        rows = Node.objects.filter(cluster=cluster)
        known = list(rows.order_by().values_list(*COMPARED, named=True))
        learned = _learn(cluster, seen, {row.name for row in known})
        report = _Report(cluster, seen, foreign)
        moved = [row.pk for row in known if _differs(row, report.fields(row))] + learned
        for node in rows.filter(pk__in=moved).select_for_update(no_key=True).order_by("pk"):
            node_actions.observe(node, author=SYNC, now=now, **report.fields(node))


def _learn(cluster: Cluster, seen: Sequence[SeenNode], known: set[str]) -> list[int]:
    new = [Node(cluster=cluster, name=report.name) for report in seen if report.name not in known]
    return [node.pk for node in Node.objects.bulk_create(new)]


def _differs(row: Any, fields: Mapping[str, object]) -> bool:
    return any(getattr(row, name) != value for name, value in fields.items())


def _unreadable(node: Any) -> dict[str, object]:
    return {"flags": sorted({*node.flags, NodeFlag.UNREADABLE})}


class _Report:
    """What one look at a cluster says of a node, as columns of its row."""

    def __init__(self, cluster: Cluster, seen: Listing[SeenNode], foreign: Mapping[str, Collection[int]]) -> None:
        self._by = f"cluster {cluster}"
        self._listing = seen
        self._seen = {report.name: report for report in seen}
        self._foreign = foreign
        told = Deed.objects.open().filter(node__cluster=cluster, kind__in=TO_NODES)
        self._being_told = set(told.values_list("node_id", flat=True))

    def fields(self, node: Any) -> dict[str, object]:
        if (report := self._seen.get(node.name)) is None:
            return _unreadable(node) if self._listing.hides_node(node.name) else observing.ABSENT_NODE
        held = sorted(self._foreign.get(node.name, ()))
        return {**observing.node_fields(report), "foreign_gpus": held, **self._reason(node, report.reason)}

    def _reason(self, node: Any, reason: str) -> dict[str, object]:
        """While a drain or resume is on its way the cluster's own words about it are yesterday's."""
        if node.drain_asked or (reason and node.pk in self._being_told):
            return {}
        return (
            {"reason": reason, "reason_by": self._by} if reason else {"reason": "", "reason_by": "", "reason_at": None}
        )
