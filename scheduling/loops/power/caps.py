"""Power caps: keep the measured power of each budget within its limit by lower clocks of GPUs.

Eligible rows     Clusters with a power budget in mode observe or act, and those of which nodes still have a clock that
                  Acme set.
What a turn does  Adds the newest readings of the nodes of each budget up. A new sum goes through the rule of
                  `power.cap_rules`, and the level that follows is recorded. Then compares the clocks that the levels
                  of all acting budgets ask of each node, the lowest of several, with those in `NodeClock`: nodes of
                  which all jobs have low priority get the clock of these, other nodes that of all others. Nodes that
                  differ, and those whose last command is not confirmed, are in one command. Nodes that no budget caps
                  any more get their highest clock. `delete_old_caps` deletes rows after the retention time.
Failure story     The level is recorded before the clocks, and the clocks before the command, so a turn that is killed
                  anywhere is finished by the next one, which repeats an unconfirmed command: clocks are absolute. Run
                  twice: the second turn finds the same reading and decides nothing. Two workers: a lease, and every
                  change is guarded by the row as it was loaded; a command ends before the lease does. Late: a reading
                  older than a minute decides nothing, so caps stay, and the status says so; nodes without a fresh
                  reading count by an estimate, and where they are many, no cap is released. A command that fails on any
                  node counts as failed: the rule goes to its next step, and each turn repeats it for these nodes. A
                  node that does not respond is left out until it does, and then gets its clock again, because a boot
                  resets it. A worker that was suspended past its lease may command old clocks once; the next turn of
                  the other one sees them in the rows and corrects them. An error in one budget is logged, and the
                  others go on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from jobs.actions.one_row import skip_row_on_error
from jobs.actions.retention import delete_all
from jobs.models import NODE_CLOCK_RETENTION, Cluster, Node, NodeClock, clock
from scheduling.actions import power_caps as cap_actions
from scheduling.actions.power_caps import CapDecision
from scheduling.clusters.clock_command import ClocksNotSet
from scheduling.clusters.node_clocks import SetClocks
from scheduling.models import POWER_CAP_RETENTION, Lease, PowerBudget, PowerCap
from scheduling.power.cap_rules import CapState, PowerReading, next_state
from scheduling.power.clock_curves import MAX_MHZ, model_mhz
from scheduling.power.measured_power import MeasuredPower, measured_power
from scheduling.queries.power.caps import (
    CAP_SETTINGS,
    STALE_AFTER,
    budget_nodes,
    can_be_commanded,
    cap_state,
    low_priority_nodes,
    node_readings,
)

log = logging.getLogger(__name__)

CAP_LEASE = timedelta(minutes=1)


def cap_with_lease(cluster_id: int, holder: str, set_clocks: SetClocks) -> int:
    """Run one turn under a lease. Return 0 if another worker holds it."""
    with Lease.held(f"power caps:{cluster_id}", holder, CAP_LEASE) as lease:
        return cap_power_once(Cluster.objects.get(pk=cluster_id), set_clocks, clock.now()) if lease else 0


def cap_power_once(cluster: Cluster, set_clocks: SetClocks, now: datetime) -> int:
    """Return how many levels and clocks changed."""
    budgets = list(PowerBudget.objects.watched().filter(cluster=cluster).select_related("cluster").order_by("pk"))
    nodes = {budget.pk: budget_nodes(budget) for budget in budgets}
    failed, changed = _nodes_with_failed_commands(cluster), 0
    for budget in budgets:
        with skip_row_on_error(budget):
            changed += _decide(budget, nodes[budget.pk], failed, now)
    wanted = _wanted_clocks([(budget, nodes[budget.pk]) for budget in budgets if _caps(budget)])
    return changed + _apply(cluster, wanted, set_clocks, now)


# Levels


def _nodes_with_failed_commands(cluster: Cluster) -> set[int]:
    rows = NodeClock.objects.open().filter(node__cluster=cluster, confirmed_at=None).select_related("node")
    return {row.node_id for row in rows if can_be_commanded(row.node)}


def _decide(budget: PowerBudget, nodes: Sequence[Node], failed: Collection[int], now: datetime) -> bool:
    """Record what follows from a new reading. Return whether the level changed."""
    power = measured_power(node_readings(nodes, now))
    if power is None or _is_known(budget, power) or now.timestamp() - power.at_s > STALE_AFTER.total_seconds():
        return False
    before = cap_state(budget)
    has_failed = budget.is_acting and any(node.pk in failed for node in nodes)
    after = _after(before, power, budget.limit_w, has_failed)
    decision = CapDecision(before=before, after=after, power=power)
    return cap_actions.record_decision(budget, decision, CAP_SETTINGS) and after.level != before.level


def _is_known(budget: PowerBudget, power: MeasuredPower) -> bool:
    return budget.reading_at is not None and power.at_s <= budget.reading_at.timestamp()


def _after(before: CapState, power: MeasuredPower, limit_w: int, has_failed: bool) -> CapState:
    reading = PowerReading(at_s=power.at_s, share=power.watts / limit_w, command_failed=has_failed)
    after = next_state(before, reading, CAP_SETTINGS)
    return before if after.level < before.level and not power.is_certain else after


# Clocks


def _caps(budget: PowerBudget) -> bool:
    return budget.is_acting and budget.level > 0 and not cap_actions.act_refusal(budget.cluster)


def _wanted_clocks(budgets: Iterable[tuple[PowerBudget, Sequence[Node]]]) -> dict[int, int]:
    """The clock of each capped node."""
    wanted: dict[int, int] = {}
    for budget, nodes in budgets:
        low_mhz, high_mhz = CAP_SETTINGS.clocks(cap_state(budget).level)
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
