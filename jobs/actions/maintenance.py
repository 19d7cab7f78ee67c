"""The only code that changes a maintenance. Its nodes are closed and opened with the actions of drains."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from acmeweb.common import live
from acmeweb.common.errors import InvalidField, InvalidInput, StateConflict
from jobs.actions import journal
from jobs.actions import nodes as node_actions
from jobs.actions.journal import Author
from jobs.actions.wake import request_turn
from jobs.core.hostlist import expand
from jobs.models import Cluster, ClusterMode, DrainMode, Maintenance, Node
from jobs.models.maintenance import DEFAULT_RUN_TIME
from jobs.queries import drain_impact
from jobs.queries.drain_impact import MaintenanceImpact

MAINTENANCE = Author(by="maintenance")
MAX_MAINTENANCE_DURATION = timedelta(days=366)


@dataclass(frozen=True, kw_only=True)
class MaintenanceRequest:
    """A requested maintenance. `nodes` is in Slurm's notation; empty means the whole cluster."""

    name: str
    reason: str
    start_at: datetime
    end_at: datetime
    nodes: str = ""
    mode: str = DrainMode.FINISH
    lead_time: timedelta = DEFAULT_RUN_TIME


def check_maintenance(cluster: Cluster, request: MaintenanceRequest, now: datetime) -> list[Node]:
    """Return the nodes of the maintenance. Raises InvalidField if the request is invalid."""
    if cluster.mode == ClusterMode.OBSERVE:
        raise InvalidField("cluster", f"{cluster} is in mode observe; schedule the maintenance on the cluster itself")
    if not request.name.strip():
        raise InvalidField("name", "is empty")
    if not request.reason.strip():
        raise InvalidField("reason", "is empty; it is shown to users whose jobs wait")
    if request.mode != DrainMode.FINISH and cluster.mode != ClusterMode.DRIVE:
        raise InvalidField("mode", f"{cluster} is not driven by Acme, so its jobs can only finish")
    if not timedelta(0) <= request.lead_time <= MAX_MAINTENANCE_DURATION:
        raise InvalidField("lead_time", "is not between 0 and 366 days")
    _check_times(max(request.start_at, now), request.end_at, now)
    if Maintenance.objects.open().filter(cluster=cluster, name=request.name.strip()).exists():
        raise InvalidField("name", f"is already used by another maintenance of {cluster}")
    return _resolve_nodes(cluster, request.nodes)


def _check_times(start: datetime, end: datetime, now: datetime) -> None:
    if end <= now:
        raise InvalidField("end_at", "is in the past")
    if end <= start:
        raise InvalidField("end_at", "is not after the start")
    # Catches typing errors in the year
    if start - now > MAX_MAINTENANCE_DURATION:
        raise InvalidField("start_at", "is more than a year ahead")
    if end - start > MAX_MAINTENANCE_DURATION:
        raise InvalidField("end_at", "is more than a year after the start")


def _resolve_nodes(cluster: Cluster, nodelist: str) -> list[Node]:
    """Return the named nodes, or all nodes if none are named."""
    candidates = Node.objects.filter(cluster=cluster)
    if not nodelist.strip():
        return list(candidates)
    try:
        names = expand(nodelist)
    except InvalidInput as bad:
        raise InvalidField("nodes", str(bad)) from None
    if any("\0" in name for name in names):
        raise InvalidField("nodes", "contains a NUL byte")
    nodes = list(candidates.filter(name__in=names))
    if unknown := sorted(set(names) - {node.name for node in nodes}):
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise InvalidField("nodes", f"{cluster} has no node {', '.join(name[:64] for name in unknown[:3])}{more}")
    if not nodes:
        raise InvalidField("nodes", "contains no node")
    return nodes


def preview_maintenance(cluster: Cluster, request: MaintenanceRequest, now: datetime) -> MaintenanceImpact:
    """Return the effect of the maintenance. Raises the same errors as scheduling it."""
    nodes = check_maintenance(cluster, request, now)
    return drain_impact.maintenance_impact(
        nodes,
        start=max(request.start_at, now),
        end=request.end_at,
        mode=request.mode,
        lead_time=request.lead_time,
        now=now,
        whole=not request.nodes.strip(),
    )


@transaction.atomic
def schedule_maintenance(
    cluster: Cluster, request: MaintenanceRequest, *, author: Author, now: datetime
) -> Maintenance:
    """Create the maintenance."""
    Cluster.objects.select_for_update(no_key=True).get(
        pk=cluster.pk
    )  # serializes requests, so that the second one with the same name is rejected
    nodes = check_maintenance(cluster, request, now)
    window = Maintenance.objects.create(
        cluster=cluster,
        name=request.name.strip(),
        reason=request.reason.strip(),
        whole_cluster=not request.nodes.strip(),
        start_at=max(request.start_at, now),
        end_at=request.end_at,
        mode=request.mode,
        lead_time=request.lead_time,
        by=author.by,
    )
    if not window.whole_cluster:
        window.nodes.set(nodes)
    _journal_maintenance("maintenance.created", window, author, why=window.reason, nodes=len(nodes))
    return window


@transaction.atomic
def change_maintenance_end(
    window: Maintenance, end_at: datetime, *, author: Author, why: str = "", now: datetime
) -> None:
    """Change the end of the maintenance. An end in the past is rejected: use `cancel` to end it now."""
    _lock_maintenance(window)
    _refuse_if_over(window, now)
    _check_times(window.start_at if window.start_at > now else now, end_at, now)
    if end_at == window.end_at:
        raise InvalidField("end_at", f"{window} already ends at that time")
    before, window.end_at = window.end_at, end_at
    window.save(update_fields=["end_at"])
    _journal_maintenance("maintenance.end_changed", window, author, why=why, before=before.isoformat())


@transaction.atomic
def cancel(window: Maintenance, *, author: Author, why: str = "", now: datetime) -> None:
    """Cancel the maintenance, or end it now. Nodes that it closed are opened again in the next turn."""
    _lock_maintenance(window)
    _refuse_if_over(window, now)
    window.cancelled_at = now
    window.save(update_fields=["cancelled_at"])
    _journal_maintenance("maintenance.cancelled", window, author, why=why)


# --- actions of the loop; each is one transaction that reads the rows again


@transaction.atomic
def close_node_for_maintenance(window: Maintenance, node: Node, now: datetime) -> bool:
    """Drain the node, unless the maintenance was cancelled or the node was drained meanwhile."""
    _lock_maintenance(window)
    if not window.is_in_progress(now) or not window.affected_nodes().filter(pk=node.pk, drain_requested=False).exists():
        return False
    if window.begun_at is None:
        window.begun_at = now
        window.save(update_fields=["begun_at"])
        _journal_maintenance("maintenance.started", window, MAINTENANCE, why=window.reason)
    # Outside mode drive Acme may not stop jobs, so they finish whatever mode was requested
    mode = window.mode if window.cluster.mode == ClusterMode.DRIVE else DrainMode.FINISH
    why = f"maintenance: {window.name}"
    node_actions.drain(node, author=MAINTENANCE, why=why, now=now, mode=mode, maintenance=window)
    return True


@transaction.atomic
def reopen_node_after_maintenance(window: Maintenance, node: Node, now: datetime) -> bool:
    """Open the node, unless the end was moved or an operator has changed the node meanwhile."""
    _lock_maintenance(window)
    if window.is_in_progress(now) or not Node.objects.filter(pk=node.pk, maintenance=window).exists():
        return False
    node_actions.resume(node, author=MAINTENANCE, why=f"The maintenance {window.name} is over.", now=now)
    return True


@transaction.atomic
def finish(window: Maintenance, now: datetime) -> bool:
    """Mark the maintenance as finished when none of its nodes is closed by it any more."""
    _lock_maintenance(window)
    if window.closed_at or window.phase(now) not in ("over", "cancelled"):
        return False
    # Some nodes are still closed by this maintenance; the loop opens them first
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
        raise StateConflict(f"the maintenance {window} is already {phase}")


def _journal_maintenance(what: str, window: Maintenance, author: Author, *, why: str = "", **detail: object) -> None:
    event_detail = {
        "maintenance": window.pk,
        "name": window.name,
        "start": window.start_at.isoformat(),
        "end": window.end_at.isoformat(),
        **detail,
    }
    journal.cluster_event(what, author, window.cluster, why=why, detail=event_detail).save()
    request_turn(window.cluster_id)
    live.publish_on_commit("queue", "nodes")
