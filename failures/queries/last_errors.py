"""The last error of each node and GPU, by which the map colors them. Read-only.

An error that names GPUs is attributed to them, any other to the node. Incidents need no query here, because a failure
or an anomaly opens them. Three queries, which read the failures of 30 days.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q

from failures.detection.findings import Severity
from failures.diagnosis.suspects import short_pci
from failures.incidents.grouping import NODE_CAUSES
from failures.models import Anomaly, Diagnosis
from failures.queries import node_history
from jobs.models import Cluster, Node

LOOK_BACK = timedelta(days=30)
EVENT_TEXT = {"down": "went down", "failed_test": "failed its test"}


@dataclass(frozen=True, kw_only=True)
class LastError:
    node: int
    gpu: int | None  # None: the whole node
    at: datetime
    words: str


def last_errors(cluster: Cluster, at: datetime, showing: Mapping[int, Collection[int]]) -> list[LastError]:
    """The newest error of each node and each GPU at that time. `showing` lists GPUs whose driver shows an Xid then."""
    newest: dict[tuple[int, int | None], LastError] = {}
    for error in (*_failure_errors(cluster, at), *_event_errors(cluster, at), *_anomaly_errors(cluster, at, showing)):
        previous = newest.get((error.node, error.gpu))
        if previous is None or error.at > previous.at:
            newest[error.node, error.gpu] = error
    return list(newest.values())


def _errors_of_gpus(node: int, gpus: Collection[int], at: datetime, words: str) -> Iterator[LastError]:
    for gpu in gpus or (None,):
        yield LastError(node=node, gpu=gpu, at=at, words=words)


def _failure_errors(cluster: Cluster, at: datetime) -> Iterator[LastError]:
    rows = Diagnosis.objects.filter(cluster=cluster, root_cause__in=NODE_CAUSES, nodes__isnull=False)
    rows = rows.filter(failed_at__gt=at - LOOK_BACK, failed_at__lte=at).order_by("-failed_at", "-pk")
    records = list(
        rows.values_list("nodes", "failed_at", "root_cause", "suspect_gpus")[: node_history.MAX_HISTORY_ROWS]
    )
    nodes = Node.objects.only("name", "gpu_pci").in_bulk({node for node, *_ in records})
    for node, failed_at, cause, gpus in records:
        yield from _errors_of_gpus(node, _suspect_gpu_indices(nodes[node], gpus), failed_at, cause)


def _suspect_gpu_indices(node: Node, suspects: Sequence[Mapping[str, str]]) -> list[int]:
    """Indices of the suspect GPUs of a node; empty if their addresses are unknown."""
    known = {short_pci(gpu["pci"]) for gpu in suspects if gpu["pci"] and gpu["host"].partition(".")[0] == node.name}
    return [index for index, pci in enumerate(node.gpu_pci) if short_pci(pci) in known]


def _event_errors(cluster: Cluster, at: datetime) -> Iterator[LastError]:
    for node, event_at, what in node_history.event_history_entries(Q(node__cluster=cluster), at - LOOK_BACK, at):
        yield LastError(node=node, gpu=None, at=event_at, words=EVENT_TEXT[what])


def _anomaly_errors(cluster: Cluster, at: datetime, showing: Mapping[int, Collection[int]]) -> Iterator[LastError]:
    rows = Anomaly.objects.of_node_health().filter(cluster=cluster, since__gt=at - LOOK_BACK, since__lte=at)
    rows = rows.filter(Q(severity=Severity.BAD) | Q(why__startswith="Xid ")).order_by("-since")
    for node, since, why in rows.values_list("node", "since", "why")[: node_history.MAX_HISTORY_ROWS]:
        is_xid = why.startswith("Xid ")
        gpus = showing.get(node, ()) if is_xid else ()
        yield from _errors_of_gpus(node, gpus, since, why.partition(":" if is_xid else ". ")[0])
