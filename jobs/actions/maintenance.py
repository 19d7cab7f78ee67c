"""The only code that changes a maintenance. Its nodes are closed and opened by the verbs of every drain."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from acmeweb.common import live
from jobs.actions import drain_impact, journal
from jobs.actions import nodes as node_actions
from jobs.actions.drain_impact import MaintenanceImpact
from jobs.actions.journal import Author
from jobs.actions.wake import request_turn
from jobs.core.hostlist import BadHostlist, expand
from jobs.models import Cluster, ClusterMode, DrainMode, Maintenance, Node
from jobs.models.maintenance import DEFAULT_LEAD

MAINTENANCE = Author(by="maintenance")
MAX_MAINTENANCE_DURATION = timedelta(days=366)


class MaintenanceError(Exception):
    """It cannot be; `field` is what is wrong, if it is one thing, and the message a sentence."""

    def __init__(self, why: str, field: str = "") -> None:
        super().__init__(why)
        self.field = field


@dataclass(frozen=True, kw_only=True)
class MaintenanceRequest:
    """What somebody asks for. `nodes` as Slurm writes them; empty: the whole cluster."""

    name: str
    reason: str
    start_at: datetime
    end_at: datetime
    nodes: str = ""
    mode: str = DrainMode.FINISH
    lead: timedelta = DEFAULT_LEAD


def check_maintenance(cluster: Cluster, wanted: MaintenanceRequest, now: datetime) -> list[Node]:
    """Its nodes, or a sentence on what does not go."""
    if cluster.mode == ClusterMode.OBSERVE:
        raise MaintenanceError(f"{cluster} is only observed: declare it there", "cluster")
    if not wanted.name.strip():
        raise MaintenanceError("is empty", "name")
    if not wanted.reason.strip():
        raise MaintenanceError("is empty: people whose jobs wait for it read it", "reason")
    if wanted.mode != DrainMode.FINISH and cluster.mode != ClusterMode.DRIVE:
        raise MaintenanceError(f"{cluster} is not driven by Acme, so its jobs can only finish", "mode")
    if not timedelta(0) <= wanted.lead <= MAX_MAINTENANCE_DURATION:
        raise MaintenanceError("is not between 0 and 366 days", "lead")
    _check_times(max(wanted.start_at, now), wanted.end_at, now)
    if Maintenance.objects.open().filter(cluster=cluster, name=wanted.name.strip()).exists():
        raise MaintenanceError(f"is taken: {cluster} has a maintenance of that name already", "name")
    return _resolve_nodes(cluster, wanted.nodes)


def _check_times(start: datetime, end: datetime, now: datetime) -> None:
    if end <= now:
        raise MaintenanceError("is past", "end_at")
    if end <= start:
        raise MaintenanceError("is not after the start", "end_at")
    if start - now > MAX_MAINTENANCE_DURATION:
        raise MaintenanceError("is more than a year ahead", "start_at")
    if end - start > MAX_MAINTENANCE_DURATION:
        raise MaintenanceError("is more than a year after the start", "end_at")


def _resolve_nodes(cluster: Cluster, written: str) -> list[Node]:
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


def preview_maintenance(cluster: Cluster, wanted: MaintenanceRequest, now: datetime) -> MaintenanceImpact:
    """What it would mean; refused as the deed would be."""
    nodes = check_maintenance(cluster, wanted, now)
    return drain_impact.maintenance_impact(
        nodes,
        start=max(wanted.start_at, now),
        end=wanted.end_at,
        mode=wanted.mode,
        lead=wanted.lead,
        now=now,
        whole=not wanted.nodes.strip(),
    )


@transaction.atomic
def schedule_maintenance(cluster: Cluster, wanted: MaintenanceRequest, *, author: Author, now: datetime) -> Maintenance:
    Cluster.objects.select_for_update(no_key=True).get(pk=cluster.pk)  # of two with one name, one is told
    nodes = check_maintenance(cluster, wanted, now)
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
    _journal_maintenance("maintenance.declared", window, author, why=window.reason, nodes=len(nodes))
    return window


@transaction.atomic
def change_maintenance_end(
    window: Maintenance, end_at: datetime, *, author: Author, why: str = "", now: datetime
) -> None:
    """Longer, or shorter; a moment ago is refused: to end it now is to cancel it."""
    _lock_maintenance(window)
    _refuse_if_over(window, now)
    _check_times(window.start_at if window.start_at > now else now, end_at, now)
    if end_at == window.end_at:
        raise MaintenanceError(f"{window} ends then already", "end_at")
    before, window.end_at = window.end_at, end_at
    window.save(update_fields=["end_at"])
    _journal_maintenance("maintenance.end_moved", window, author, why=why, before=before.isoformat())


@transaction.atomic
def cancel(window: Maintenance, *, author: Author, why: str = "", now: datetime) -> None:
    """It does not take place, or is over now: nodes that it closed take work again with the next turn."""
    _lock_maintenance(window)
    _refuse_if_over(window, now)
    window.cancelled_at = now
    window.save(update_fields=["cancelled_at"])
    _journal_maintenance("maintenance.cancelled", window, author, why=why)


# What the loop does; each is one transaction that looks again


@transaction.atomic
def close_node_for_maintenance(window: Maintenance, node: Node, now: datetime) -> bool:
    """Unless it was cancelled or somebody closed the node since the look."""
    _lock_maintenance(window)
    if not window.is_in_progress(now) or not window.affected_nodes().filter(pk=node.pk, drain_asked=False).exists():
        return False
    if window.begun_at is None:
        window.begun_at = now
        window.save(update_fields=["begun_at"])
        _journal_maintenance("maintenance.began", window, MAINTENANCE, why=window.reason)
    mode = window.mode if window.cluster.mode == ClusterMode.DRIVE else DrainMode.FINISH
    why = f"maintenance: {window.name}"
    node_actions.drain(node, author=MAINTENANCE, why=why, now=now, mode=mode, maintenance=window)
    return True


@transaction.atomic
def reopen_node_after_maintenance(window: Maintenance, node: Node, now: datetime) -> bool:
    """Unless its end was moved, or somebody else has taken the node over."""
    _lock_maintenance(window)
    if window.is_in_progress(now) or not Node.objects.filter(pk=node.pk, maintenance=window).exists():
        return False
    node_actions.resume(node, author=MAINTENANCE, why=f"The maintenance {window.name} is over.", now=now)
    return True


@transaction.atomic
def finish(window: Maintenance, now: datetime) -> bool:
    _lock_maintenance(window)
    if window.closed_at or window.phase(now) not in ("over", "cancelled"):
        return False
    if Node.objects.filter(maintenance=window).exists():
        return False
    window.closed_at = now
    window.save(update_fields=["closed_at"])
    _journal_maintenance("maintenance.ended", window, MAINTENANCE)
    return True


def _lock_maintenance(window: Maintenance) -> None:
    rows = Maintenance.objects.select_for_update(of=("self",), no_key=True).select_related("cluster")
    window.refresh_from_db(from_queryset=rows)


def _refuse_if_over(window: Maintenance, now: datetime) -> None:
    if (phase := window.phase(now)) in ("over", "cancelled"):
        raise MaintenanceError(f"the maintenance {window} is {phase} already")


def _journal_maintenance(what: str, window: Maintenance, author: Author, *, why: str = "", **detail: object) -> None:
    told = {
        "maintenance": window.pk,
        "name": window.name,
        "start": window.start_at.isoformat(),
        "end": window.end_at.isoformat(),
        **detail,
    }
    journal.cluster_event(what, author, window.cluster, why=why, detail=told).save()
    request_turn(window.cluster_id)
    live.publish_on_commit("queue", "nodes")
