"""Facts for the caps of power budgets: the newest readings of their nodes, and which nodes have low-priority jobs.

A reading is one of the power page, which is read every second, else the newest sample of the telemetry.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import inf
from typing import Any

from django.db import connection
from django.db.models import F, Q

from jobs.core.lifecycle import USABLE_NODE_STATES, NodeFlag
from jobs.models import Allocation, Cluster, ClusterMode, Node, NodeClock, Resolution
from jobs.queries.busy_nodes import nodes_with_jobs
from scheduling.backends.power_page import NodePower, PowerPage
from scheduling.clusters.node_clocks import missing_means
from scheduling.models import PowerBudget
from scheduling.power.reads.budgets import nodes_by_place
from scheduling.power.rules.caps import (
    LOW_PRIORITY_KINDS,
    CapSettings,
    CapState,
    CapTime,
    NodeCap,
    cap_times,
    polca_steps,
)
from scheduling.power.rules.clock_curves import model_speed
from scheduling.power.rules.measured_power import NodeReading

READING_AGE = timedelta(hours=1)  # older ones are not looked for
MAX_CAP_ROWS = 500  # of one job
LEAD_S = 2.0  # the next reading and a command
STALE_AFTER = timedelta(minutes=1)  # without a newer reading, nothing is decided

NEWEST_SQL = """
SELECT n.id, extract(epoch FROM s.at)::float, s.gpu_power_w, s.gpu_util, s.node_power_w
FROM unnest(%(nodes)s::bigint[]) AS n (id) CROSS JOIN LATERAL (
  SELECT * FROM jobs_sample WHERE node_id = n.id AND resolution = %(raw)s AND at > %(oldest)s AND at <= %(now)s
  ORDER BY at DESC LIMIT 1) AS s
"""


def clusters_with_caps() -> list[int]:
    """The clusters of which power is compared with a budget, or nodes still have a clock of Acme."""
    watched = PowerBudget.objects.watched().values_list("cluster", flat=True)
    capped = NodeClock.objects.open().values_list("node__cluster", flat=True)
    return sorted({*watched.order_by().distinct(), *capped.order_by().distinct()})


def budget_nodes(budgets: Collection[PowerBudget]) -> dict[int, list[Node]]:
    """The nodes with GPUs to which each budget of a cluster applies, by key of the budget. Nodes without GPUs have no
    telemetry and are not counted."""
    clusters = {budget.cluster_id for budget in budgets}
    places = nodes_by_place(Node.objects.filter(cluster__in=clusters, gpus__gt=0).order_by("pk"))
    return {budget.pk: places[budget.scope, budget.place] for budget in budgets}


def node_readings(nodes: Collection[Node], now: datetime, page: PowerPage | None = None) -> dict[int, NodeReading]:
    """The newest reading of each node, by its key. Nodes that are not on the page have that of their samples."""
    page, now_s = page or {}, now.timestamp()
    busy = set(nodes_with_jobs().filter(pk__in=[node.pk for node in nodes]).values_list("pk", flat=True))
    samples = _newest_samples([node.pk for node in nodes if node.name not in page], now)
    return {
        node.pk: _page_reading(node, page[node.name], node.pk in busy, now_s)
        if node.name in page
        else _sample_reading(node, samples.get(node.pk), node.pk in busy)
        for node in nodes
    }


def _newest_samples(keys: list[int], now: datetime) -> dict[int, tuple[Any, ...]]:
    if not keys:
        return {}
    params = {"nodes": keys, "raw": int(Resolution.RAW), "oldest": now - READING_AGE, "now": now}
    with connection.cursor() as cursor:
        cursor.execute(NEWEST_SQL, params)
        return {row[0]: row[1:] for row in cursor.fetchall()}


def _page_reading(node: Node, power: NodePower, has_jobs: bool, now_s: float) -> NodeReading:
    """The page has the power of whole GPUs, also of those that are divided into MIG slices. A clock of Prometheus that
    is ahead must not make later readings look old."""
    gpus = max(node.physical_gpus, 1 + max(power.gpu_w, default=-1))
    return NodeReading(
        gpus=gpus,
        model=node.gpu_model,
        has_jobs=has_jobs,
        is_asleep=node.is_asleep,
        at_s=now_s if power.at_s is None else min(now_s, power.at_s),
        gpu_power_w=[power.gpu_w.get(index) for index in range(gpus)],
        node_power_w=power.current_node_w,
    )


def _sample_reading(node: Node, found: tuple[Any, ...] | None, has_jobs: bool) -> NodeReading:
    """Samples have the power of each device: a MIG slice has its part of that of its GPU."""
    at_s, power, util, node_power = found or (None, (), (), None)
    return NodeReading(
        gpus=node.physical_gpus,
        parts=node.device_parts,
        model=node.gpu_model,
        has_jobs=has_jobs,
        is_asleep=node.is_asleep,
        at_s=at_s,
        gpu_power_w=power or (),
        gpu_util=util or (),
        node_power_w=node_power,
    )


def low_priority_nodes(nodes: Collection[int]) -> set[int]:
    """Those on which all jobs have low priority. Jobs from outside Acme count as high, and so does an idle node, on
    which any job may start."""
    rows = Allocation.objects.live().filter(node__in=nodes).order_by()
    kinds: dict[int, set[str]] = {}
    for node, kind in rows.values_list("node", "attempt__job__kind").distinct():
        kinds.setdefault(node, set()).add(kind)
    foreign = set(Node.objects.filter(pk__in=nodes).exclude(foreign_gpus=[]).values_list("pk", flat=True))
    return {node for node, found in kinds.items() if found <= LOW_PRIORITY_KINDS} - foreign


def can_be_commanded(node: Node) -> bool:
    """Whether the node runs, so that its clocks can be set. A node that boots has its highest clock."""
    return node.state in USABLE_NODE_STATES and not node.is_asleep and NodeFlag.NOT_RESPONDING not in node.flags


def cap_settings(budget: PowerBudget) -> CapSettings:
    return _cap_settings(budget.cap_percents)


@lru_cache(maxsize=256)
def _cap_settings(percents: tuple[int, int, int]) -> CapSettings:
    return CapSettings(steps=polca_steps(percents), lead_s=LEAD_S)


def cap_state(budget: PowerBudget) -> CapState:
    """What the rule remembers of the readings before."""
    return CapState(
        level=min(budget.level, len(cap_settings(budget).steps)),
        since_s=_seconds(budget.level_since),
        command=budget.command,
        commanded_s=_seconds(budget.commanded_at),
        above_s=_seconds(budget.above_at),
    )


def _seconds(at: datetime | None) -> float:
    return at.timestamp() if at else -inf


def job_cap_times(attempts: Collection[int], now: datetime) -> list[CapTime]:
    """When GPUs of these attempts were capped, newest first. Commands that were not confirmed are left out."""
    rows = NodeClock.objects.caps().filter(
        Q(ended_at=None) | Q(ended_at__gt=F("node__allocations__held_at")),
        Q(node__allocations__released_at=None) | Q(began_at__lt=F("node__allocations__released_at")),
        confirmed_at__isnull=False,
        node__allocations__attempt__in=attempts,
    )
    columns = ("began_at", "ended_at", "mhz", "node__gpu_model", "node__allocations__held_at")
    found = rows.order_by("-began_at").values_list(*columns, "node__allocations__released_at").distinct()[:MAX_CAP_ROWS]
    caps = [
        NodeCap(max(began, held), min(one for one in (ended, released, now) if one), model_speed(mhz, model))
        for began, ended, mhz, model, held, released in found
    ]
    return cap_times(caps, now)[::-1]


def act_refusal(cluster: Cluster) -> str:
    """Why the mode act is refused; empty if it is not. A cluster that has not reported its product yet may turn out to
    be simulated, so it is not refused: clocks are capped as soon as that is known."""
    is_unknown = cluster.mode == ClusterMode.DRIVE and not cluster.product
    return "" if is_unknown else cap_obstacle(cluster)


def cap_obstacle(cluster: Cluster) -> str:
    """Why Acme cannot cap clocks of this cluster now; empty if it can. A sentence without its period."""
    if cluster.mode != ClusterMode.DRIVE:
        return f"Acme only watches the cluster {cluster}, so it may not cap clocks there"
    return missing_means(cluster)


def cap_status(budget: PowerBudget, now: datetime) -> str:
    """What the caps of a budget do now, as a sentence; empty in mode off."""
    if not budget.is_watched:
        return "Clocks may not be released yet." if budget.command_error else ""
    if budget.is_acting and (obstacle := cap_obstacle(budget.cluster)):
        return f"Clocks are not capped: {obstacle}."
    if budget.reading_at is None:
        return "Waiting for the first power readings of its nodes."
    if now - budget.reading_at > STALE_AFTER:
        caps = "Caps stay as they are" if budget.level else "No clocks are capped"
        return f"No power readings since {budget.reading_at.astimezone(UTC):%H:%M:%S} UTC. {caps}."
    return _level_status(budget)


def _level_status(budget: PowerBudget) -> str:
    unread = f" {budget.unread_nodes} nodes without readings are estimated." if budget.unread_nodes else ""
    if not budget.level:
        return f"Within its budget.{unread}"
    verb = "Clocks are capped" if budget.is_acting else "Clocks would be capped"
    return f"{verb}: level {budget.level} of {len(cap_settings(budget).steps)}.{unread}"
