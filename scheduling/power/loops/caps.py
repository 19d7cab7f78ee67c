"""Power caps: keep the measured power of each budget within its limit by lower clocks of GPUs.

Eligible rows     Clusters with a power budget in mode observe or act, and those of which nodes still have a clock that
                  Acme set.
What a turn does  Reads the power of the cluster's nodes from its telemetry, and adds the newest readings of the nodes
                  of each budget up. A new sum goes through the rule of `power.rules.caps`, and the level that follows
                  is recorded. Then compares the clocks that the levels
                  of all acting budgets ask of each node, the lowest of several, with those in `NodeClock`: nodes of
                  which all jobs have low priority get the clock of these, other nodes that of all others. Nodes that
                  differ, and those whose last command is not confirmed, are in one command. Nodes that no budget caps
                  any more get their highest clock. `delete_old_caps` deletes rows after the retention time.
Failure story     The level is recorded before the clocks, and the clocks before the command, so a turn that is killed
                  anywhere is finished by the next one, which repeats an unconfirmed command: clocks are absolute. Run
                  twice: the second turn finds the same reading and decides nothing. Two workers: every
                  change is guarded by the row as it was loaded. Late: a reading
                  older than a minute decides nothing, so caps stay, and the status says so. Telemetry that does not
                  answer, or an answer without a node: the newest samples take its place; nodes without a fresh
                  reading count by an estimate, and where they are many, no cap is released. A command that fails on any
                  node counts as failed: the rule goes to its next step, and each turn repeats it for these nodes. A
                  node that does not respond is left out until it does, and then gets its clock again, because a boot
                  resets it. A worker that was suspended past its claim may command old clocks once; the next turn of
                  the other one sees them in the rows and corrects them. An error in one budget is logged, and the
                  others go on. A cluster whose telemetry and command hang blocks a process of the group `power` for up
                  to 45 s; as many such clusters as it has processes (`acmeweb.loops.table`) stop the caps of all
                  others for that time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from math import inf

from jobs.actions.one_row import skip_row_on_error
from jobs.actions.retention import delete_all
from jobs.models import NODE_CLOCK_RETENTION, Cluster, Node, NodeClock, clock
from scheduling.backends.power_page import PowerPage
from scheduling.clusters.clock_command import ClocksNotSet
from scheduling.clusters.node_clocks import SetClocks
from scheduling.clusters.telemetry_page import ReadTelemetry, telemetry_page
from scheduling.models import POWER_CAP_RETENTION, PowerBudget, PowerCap
from scheduling.power.actions import caps as cap_actions
from scheduling.power.actions.caps import CapDecision
from scheduling.power.reads.caps import (
    STALE_AFTER,
    budget_nodes,
    can_be_commanded,
    cap_obstacle,
    cap_settings,
    cap_state,
    low_priority_nodes,
    node_readings,
)
from scheduling.power.rules.caps import PowerReading, next_state
from scheduling.power.rules.clock_curves import MAX_MHZ, model_mhz
from scheduling.power.rules.measured_power import MeasuredPower, measured_power

log = logging.getLogger(__name__)


def read_and_cap_once(cluster: Cluster, set_clocks: SetClocks, read: ReadTelemetry[PowerPage]) -> int:
    """Read the power, if it is compared with a budget, then decide on caps and apply them."""
    is_read = cluster.metrics_address and PowerBudget.objects.watched().filter(cluster=cluster).exists()
    page = telemetry_page(cluster, read) if is_read else None
    return cap_power_once(cluster, set_clocks, clock.now(), page)


def cap_power_once(cluster: Cluster, set_clocks: SetClocks, now: datetime, page: PowerPage | None = None) -> int:
    """`page` was read just now. Return how many levels and clocks changed."""
    budgets = list(PowerBudget.objects.watched().filter(cluster=cluster).select_related("cluster").order_by("pk"))
    nodes = budget_nodes(budgets)
    changed = _decide_levels(budgets, nodes, page, now) if budgets else 0
    wanted = _wanted_clocks([(budget, nodes[budget.pk]) for budget in budgets if _caps(budget)])
    return changed + _apply(cluster, wanted, set_clocks, now)


# Levels


def _decide_levels(
    budgets: Sequence[PowerBudget], nodes: Mapping[int, Sequence[Node]], page: PowerPage | None, now: datetime
) -> int:
    """Record what follows from new readings. Return how many levels changed."""
    failed, changed = _nodes_with_failed_commands(budgets[0].cluster), 0
    readings = node_readings({node for inside in nodes.values() for node in inside}, now, page)
    same_clocks: list[CapDecision] = []
    for budget in budgets:
        with skip_row_on_error(budget):
            inside = nodes[budget.pk]
            power = measured_power(readings[node.pk] for node in inside)
            if power is None or not _is_new(budget, power, now):
                continue
            decision = _decision(budget, power, any(node.pk in failed for node in inside))
            if not decision.changes_clocks:
                same_clocks.append(decision)
            elif cap_actions.record_decision(decision, cap_settings(budget)):
                changed += decision.after.level != decision.before.level
    with skip_row_on_error(f"readings of {budgets[0].cluster}"):
        cap_actions.record_readings(same_clocks)
    return changed


def _nodes_with_failed_commands(cluster: Cluster) -> set[int]:
    rows = NodeClock.objects.open().filter(node__cluster=cluster, confirmed_at=None).select_related("node")
    return {row.node_id for row in rows if can_be_commanded(row.node)}


def _is_new(budget: PowerBudget, power: MeasuredPower, now: datetime) -> bool:
    if now.timestamp() - power.at_s > STALE_AFTER.total_seconds():
        return False
    known = budget.reading_at is not None and budget.measured_w is not None
    return not known or power.is_newer(budget.reading_at.timestamp(), budget.measured_w)  # type: ignore[union-attr, arg-type]


def _decision(budget: PowerBudget, power: MeasuredPower, has_failed: bool) -> CapDecision:
    before, settings, share = cap_state(budget), cap_settings(budget), power.watts / budget.limit_w
    elapsed_s = power.at_s - budget.reading_at.timestamp() if budget.reading_at else inf
    reading = PowerReading(
        at_s=power.at_s,
        share=share,
        command_failed=budget.is_acting and has_failed,
        expected_share=settings.expected_share(share, budget.share, elapsed_s),
    )
    after = next_state(before, reading, settings)
    is_held = after.level < before.level and not power.is_certain
    return CapDecision(budget=budget, before=before, after=before if is_held else after, power=power)


# Clocks


def _caps(budget: PowerBudget) -> bool:
    return budget.is_acting and budget.level > 0 and not cap_obstacle(budget.cluster)


def _wanted_clocks(budgets: Iterable[tuple[PowerBudget, Sequence[Node]]]) -> dict[int, int]:
    """The clock of each capped node."""
    wanted: dict[int, int] = {}
    for budget, nodes in budgets:
        low_mhz, high_mhz = cap_settings(budget).clocks(cap_state(budget).level)
        low = low_priority_nodes([node.pk for node in nodes])
        for node in nodes:
            mhz = low_mhz if node.pk in low else high_mhz
            if mhz < MAX_MHZ:
                of_model = model_mhz(mhz, node.gpu_model)
                wanted[node.pk] = min(of_model, wanted.get(node.pk, of_model))
    return wanted


def _apply(cluster: Cluster, wanted: Mapping[int, int], set_clocks: SetClocks, now: datetime) -> int:
    """Record the wanted clocks, then command what is not confirmed. Return how many clocks changed."""
    kept = NodeClock.objects.open().filter(node__cluster=cluster).values_list("node", flat=True)
    changed = cap_actions.request_clocks({**dict.fromkeys(kept), **wanted}, now)
    rows = list(NodeClock.objects.open().filter(node__cluster=cluster).select_related("node").order_by("node"))
    cap_actions.forget_confirmations(row.node_id for row in rows if not can_be_commanded(row.node))
    due = [row for row in rows if row.confirmed_at is None and can_be_commanded(row.node)]
    if due:
        _command(cluster, due, set_clocks, now)
    return changed


def _command(cluster: Cluster, rows: Sequence[NodeClock], set_clocks: SetClocks, now: datetime) -> None:
    began, error = time.monotonic(), None
    try:
        set_clocks(cluster, {row.node.name: row.mhz for row in rows})
    except ClocksNotSet as caught:
        error = caught
        log.warning("clocks of %s were not set: %s", cluster, error)
    at = now + timedelta(seconds=time.monotonic() - began)
    if done := [row for row in rows if not (error and error.concerns(row.node.name))]:
        cap_actions.confirm_clocks(done, at)
        cap_actions.record_command(cluster, at)
    cap_actions.record_command_error(cluster, str(error or ""))


def delete_old_caps(now: datetime) -> int:
    old_clocks = NodeClock.objects.filter(ended_at__lt=now - NODE_CLOCK_RETENTION)
    return delete_all(old_clocks) + delete_all(PowerCap.objects.filter(ended_at__lt=now - POWER_CAP_RETENTION))
