"""The only code that changes a maintenance. Its nodes are closed and opened by the verbs of every drain."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from acmeweb import live
from jobs import consequences, journal, node_actions
from jobs.consequences import Ahead
from jobs.hostlist import BadHostlist, expand
from jobs.journal import Author
from jobs.models import Cluster, DrainMode, Maintenance, Mode, Node
from jobs.models.maintenance import LEAD
from jobs.wishes import want_turn

MAINTENANCE = Author(by="maintenance")
LONGEST = timedelta(days=366)


class MaintenanceError(Exception):
    """It cannot be; `field` is what is wrong, if it is one thing, and the message a sentence."""

    def __init__(self, why: str, field: str = "") -> None:
        super().__init__(why)
        self.field = field


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What somebody asks for. `nodes` as Slurm writes them; empty: the whole cluster."""

    name: str
    reason: str
    start_at: datetime
    end_at: datetime
    nodes: str = ""
    mode: str = DrainMode.FINISH
    lead: timedelta = LEAD


def checked(cluster: Cluster, wanted: Wanted, now: datetime) -> list[Node]:
    """Its nodes, or a sentence on what does not go."""
    if cluster.mode == Mode.OBSERVE:
        raise MaintenanceError(f"{cluster} is only observed: declare it there", "cluster")
    if not wanted.name.strip():
        raise MaintenanceError("is empty", "name")
    if not wanted.reason.strip():
        raise MaintenanceError("is empty: people whose jobs wait for it read it", "reason")
    if wanted.mode != DrainMode.FINISH and cluster.mode != Mode.DRIVE:
        raise MaintenanceError(f"{cluster} is not driven by Acme, so its jobs can only finish", "mode")
    if not timedelta(0) <= wanted.lead <= LONGEST:
        raise MaintenanceError("is not between 0 and 366 days", "lead")
    _refuse_times(max(wanted.start_at, now), wanted.end_at, now)
    if Maintenance.objects.open().filter(cluster=cluster, name=wanted.name.strip()).exists():
        raise MaintenanceError(f"is taken: {cluster} has a maintenance of that name already", "name")
    return _nodes(cluster, wanted.nodes)


def _refuse_times(start: datetime, end: datetime, now: datetime) -> None:
    if end <= now:
        raise MaintenanceError("is past", "end_at")
    if end <= start:
        raise MaintenanceError("is not after the start", "end_at")
    if start - now > LONGEST:
        raise MaintenanceError("is more than a year ahead", "start_at")
    if end - start > LONGEST:
        raise MaintenanceError("is more than a year after the start", "end_at")


def _nodes(cluster: Cluster, written: str) -> list[Node]:
    """Every node, where none is named."""
    here = Node.objects.filter(cluster=cluster)
    if not written.strip():
        return list(here)
    try:
        names = expand(written)
    except BadHostlist as bad:
        raise MaintenanceError(str(bad), "nodes") from None
    if any("\0" in name for name in names):
        raise MaintenanceError("contains a NUL byte", "nodes")
    found = list(here.filter(name__in=names))
    if unknown := sorted(set(names) - {node.name for node in found}):
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise MaintenanceError(f"{cluster} has no node {', '.join(one[:64] for one in unknown[:3])}{more}", "nodes")
    if not found:
        raise MaintenanceError("names no node", "nodes")
    return found


def ahead(cluster: Cluster, wanted: Wanted, now: datetime) -> Ahead:
    """What it would mean; refused as the deed would be."""
    nodes = checked(cluster, wanted, now)
    return consequences.of_maintenance(
        nodes,
        start=max(wanted.start_at, now),
        end=wanted.end_at,
        mode=wanted.mode,
        lead=wanted.lead,
        now=now,
        whole=not wanted.nodes.strip(),
    )


@transaction.atomic
def declare(cluster: Cluster, wanted: Wanted, *, author: Author, now: datetime) -> Maintenance:
    Cluster.objects.select_for_update(no_key=True).get(pk=cluster.pk)  # of two with one name, one is told
    nodes = checked(cluster, wanted, now)
    window = Maintenance.objects.create(
        cluster=cluster,
        name=wanted.name.strip(),
        reason=wanted.reason.strip(),
        whole_cluster=not wanted.nodes.strip(),
        start_at=max(wanted.start_at, now),
        end_at=wanted.end_at,
        mode=wanted.mode,
        lead=wanted.lead,
        by=author.by,
    )
    if not window.whole_cluster:
        window.nodes.set(nodes)
    _tell("maintenance.declared", window, author, why=window.reason, nodes=len(nodes))
    return window


@transaction.atomic
def move_end(window: Maintenance, end_at: datetime, *, author: Author, why: str = "", now: datetime) -> None:
    """Longer, or shorter; a moment ago is refused: to end it now is to cancel it."""
    _lock(window)
    _refuse_over(window, now)
    _refuse_times(window.start_at if window.start_at > now else now, end_at, now)
    if end_at == window.end_at:
        raise MaintenanceError(f"{window} ends then already", "end_at")
    before, window.end_at = window.end_at, end_at
    window.save(update_fields=["end_at"])
    _tell("maintenance.end_moved", window, author, why=why, before=before.isoformat())


@transaction.atomic
def cancel(window: Maintenance, *, author: Author, why: str = "", now: datetime) -> None:
    """It does not take place, or is over now: nodes that it closed take work again with the next turn."""
    _lock(window)
    _refuse_over(window, now)
    window.cancelled_at = now
    window.save(update_fields=["cancelled_at"])
    _tell("maintenance.cancelled", window, author, why=why)


# What the loop does; each is one transaction that looks again


@transaction.atomic
def close_node(window: Maintenance, node: Node, now: datetime) -> bool:
    """Unless it was cancelled or somebody closed the node since the look."""
    _lock(window)
    if not window.is_wanted(now) or not window.covered().filter(pk=node.pk, drain_asked=False).exists():
        return False
    if window.begun_at is None:
        window.begun_at = now
        window.save(update_fields=["begun_at"])
        _tell("maintenance.began", window, MAINTENANCE, why=window.reason)
    mode = window.mode if window.cluster.mode == Mode.DRIVE else DrainMode.FINISH
    why = f"maintenance: {window.name}"
    node_actions.drain(node, author=MAINTENANCE, why=why, now=now, mode=mode, maintenance=window)
    return True


@transaction.atomic
def open_node(window: Maintenance, node: Node, now: datetime) -> bool:
    """Unless its end was moved, or somebody else has taken the node over."""
    _lock(window)
    if window.is_wanted(now) or not Node.objects.filter(pk=node.pk, maintenance=window).exists():
        return False
    node_actions.resume(node, author=MAINTENANCE, why=f"The maintenance {window.name} is over.", now=now)
    return True


@transaction.atomic
def finish(window: Maintenance, now: datetime) -> bool:
    _lock(window)
    if window.closed_at or window.phase(now) not in ("over", "cancelled"):
        return False
    if Node.objects.filter(maintenance=window).exists():
        return False
    window.closed_at = now
    window.save(update_fields=["closed_at"])
    _tell("maintenance.ended", window, MAINTENANCE)
    return True


def _lock(window: Maintenance) -> None:
    rows = Maintenance.objects.select_for_update(of=("self",), no_key=True).select_related("cluster")
    window.refresh_from_db(from_queryset=rows)


def _refuse_over(window: Maintenance, now: datetime) -> None:
    if (phase := window.phase(now)) in ("over", "cancelled"):
        raise MaintenanceError(f"the maintenance {window} is {phase} already")


def _tell(what: str, window: Maintenance, author: Author, *, why: str = "", **detail: object) -> None:
    told = {
        "maintenance": window.pk,
        "name": window.name,
        "start": window.start_at.isoformat(),
        "end": window.end_at.isoformat(),
        **detail,
    }
    journal.of_cluster(what, author, window.cluster, why=why, detail=told).save()
    want_turn(window.cluster_id)
    live.changed("queue", "nodes")
