"""When something was last wrong with each node, or with one of its GPUs: what the map colours by. It only reads.

An error that names GPUs is theirs; one that names none is the node's. Incidents bring nothing of their own here: what
opens them is a failure or a sign. Three statements, which read the failures of thirty days.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q

from failures.detection.findings import Severity
from failures.diagnosis.suspects import short_pci
from failures.incidents.grouping import NODE_CAUSES
from failures.models import Diagnosis, Sign
from failures.queries import node_history
from jobs.models import Cluster, Node

LOOK_BACK = timedelta(days=30)
EVENT_TEXT = {"down": "went down", "failed_test": "failed its test"}


@dataclass(frozen=True, kw_only=True)
class LastError:
    node: int
    gpu: int | None  # None: of the node as a whole
    at: datetime
    words: str


def last_errors(cluster: Cluster, at: datetime, showing: Mapping[int, Collection[int]]) -> list[LastError]:
    """The newest of each node and of each GPU at that moment; `showing` are the GPUs whose driver shows an Xid then."""
    newest: dict[tuple[int, int | None], LastError] = {}
    for one in (*_failure_errors(cluster, at), *_event_errors(cluster, at), *_sign_errors(cluster, at, showing)):
        known = newest.get((one.node, one.gpu))
        if known is None or one.at > known.at:
            newest[one.node, one.gpu] = one
    return list(newest.values())


def _errors_of_gpus(node: int, gpus: Collection[int], at: datetime, words: str) -> Iterator[LastError]:
    for gpu in gpus or (None,):
        yield LastError(node=node, gpu=gpu, at=at, words=words)


def _failure_errors(cluster: Cluster, at: datetime) -> Iterator[LastError]:
    rows = Diagnosis.objects.filter(cluster=cluster, root_cause__in=NODE_CAUSES, nodes__isnull=False)
    rows = rows.filter(failed_at__gt=at - LOOK_BACK, failed_at__lte=at).order_by("-failed_at", "-pk")
    found = list(rows.values_list("nodes", "failed_at", "root_cause", "suspect_gpus")[: node_history.MAX_HISTORY_ROWS])
    nodes = Node.objects.only("name", "gpu_pci").in_bulk({node for node, *_ in found})
    for node, failed_at, cause, gpus in found:
        yield from _errors_of_gpus(node, _suspect_gpu_indices(nodes[node], gpus), failed_at, cause)


def _suspect_gpu_indices(node: Node, suspects: Sequence[Mapping[str, str]]) -> list[int]:
    """Which of its GPUs they are; none if the record does not know their addresses."""
    named = {short_pci(one["pci"]) for one in suspects if one["pci"] and one["host"].partition(".")[0] == node.name}
    return [index for index, pci in enumerate(node.gpu_pci) if short_pci(pci) in named]


def _event_errors(cluster: Cluster, at: datetime) -> Iterator[LastError]:
    for node, told_at, what in node_history.event_history_entries(Q(node__cluster=cluster), at - LOOK_BACK, at):
        yield LastError(node=node, gpu=None, at=told_at, words=EVENT_TEXT[what])


def _sign_errors(cluster: Cluster, at: datetime, showing: Mapping[int, Collection[int]]) -> Iterator[LastError]:
    rows = Sign.objects.of_node_health().filter(cluster=cluster, since__gt=at - LOOK_BACK, since__lte=at)
    rows = rows.filter(Q(severity=Severity.BAD) | Q(why__startswith="Xid ")).order_by("-since")
    for node, since, why in rows.values_list("node", "since", "why")[: node_history.MAX_HISTORY_ROWS]:
        is_xid = why.startswith("Xid ")
        gpus = showing.get(node, ()) if is_xid else ()
        yield from _errors_of_gpus(node, gpus, since, why.partition(":" if is_xid else ". ")[0])
