"""Sync the nodes of a cluster: update the rows that differ from the cluster's report.

A node whose row is unreadable keeps its last known state and accepts no new jobs.

Most nodes do not change from one second to the next. So reports are compared with plain columns, and only the rows that
differ are locked, loaded as objects and written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction

from jobs.actions import nodes as node_actions
from jobs.actions.journal import SYNC
from jobs.core.lifecycle import NodeFlag
from jobs.models import NODE_COMMANDS, Cluster, ClusterCommand, Node
from scheduling.backends.base import BackendNode, ClusterListing
from scheduling.loops.observe import observations

# The columns that a report may change, and those that decide whether it may
COMPARED_COLUMNS = (
    *(
        "pk",
        "name",
        "state",
        "flags",
        "gpus",
        "shards_per_gpu",
        "share_gres",
        "mig_slices",
        "gpu_model",
        "cpus",
        "memory_mb",
    ),
    *(
        "rack",
        "leaf",
        "pod",
        "nic_type",
        "nic_count",
        "foreign_gpus",
        "drain_requested",
        "reason",
        "reason_by",
        "reason_at",
    ),
)


def sync_nodes(
    cluster: Cluster, seen: ClusterListing[BackendNode], foreign: Mapping[str, Collection[int]], now: datetime
) -> None:
    # In one transaction, so that no reader sees a partly updated cluster
    with transaction.atomic():
        rows = Node.objects.filter(cluster=cluster)
        known = list(rows.order_by().values_list(*COMPARED_COLUMNS, named=True))
        learned = _create_new_nodes(cluster, seen, {row.name for row in known})
        report = _NodeReports(cluster, seen, foreign)
        moved = [row.pk for row in known if _has_differences(row, report.fields(row))] + learned
        for node in rows.filter(pk__in=moved).select_for_update(no_key=True).order_by("pk"):
            node_actions.record_observation(node, author=SYNC, now=now, **report.fields(node))


def _create_new_nodes(cluster: Cluster, seen: Sequence[BackendNode], known: set[str]) -> list[int]:
    new = [Node(cluster=cluster, name=report.name) for report in seen if report.name not in known]
    return [node.pk for node in Node.objects.bulk_create(new)]


def _has_differences(row: Any, fields: Mapping[str, object]) -> bool:
    return any(getattr(row, name) != value for name, value in fields.items())


def _unreadable_node_fields(node: Any) -> dict[str, object]:
    return {"flags": sorted({*node.flags, NodeFlag.UNREADABLE})}


class _NodeReports:
    """The cluster's reports of its nodes, as columns of their rows."""

    def __init__(
        self, cluster: Cluster, seen: ClusterListing[BackendNode], foreign: Mapping[str, Collection[int]]
    ) -> None:
        self._by = f"cluster {cluster}"
        self._listing = seen
        self._seen = {report.name: report for report in seen}
        self._foreign = foreign
        commands = ClusterCommand.objects.open().filter(node__cluster=cluster, kind__in=NODE_COMMANDS)
        self._with_open_command = set(commands.values_list("node_id", flat=True))

    def fields(self, node: Any) -> dict[str, object]:
        if (report := self._seen.get(node.name)) is None:
            return _unreadable_node_fields(node) if self._listing.hides_node(node.name) else observations.ABSENT_NODE
        held = sorted(self._foreign.get(node.name, ()))
        return {**observations.node_fields(report), "foreign_gpus": held, **self._reason_columns(node, report.reason)}

    def _reason_columns(self, node: Any, reason: str) -> dict[str, object]:
        """Return the reason columns. While a drain or resume command is open, the cluster's reason is outdated."""
        if node.drain_requested or (reason and node.pk in self._with_open_command):
            return {}
        return (
            {"reason": reason, "reason_by": self._by} if reason else {"reason": "", "reason_by": "", "reason_at": None}
        )
