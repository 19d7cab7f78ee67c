"""The only code that changes the caps of power budgets and the clocks of nodes. Changes are guarded by the expected
state, and those that users may notice write an Event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite

from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Greatest

from acmeweb.common import live
from acmeweb.common.errors import InvalidField
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.models import Allocation, Attempt, Cluster, Event, NodeClock
from scheduling.models import PowerBudget, PowerCap, PowerCapMode
from scheduling.power.reads.caps import act_refusal
from scheduling.power.rules.caps import CapSettings, CapState
from scheduling.power.rules.clock_curves import MAX_MHZ
from scheduling.power.rules.measured_power import MeasuredPower

CAPPER = Author(by="power caps")
MAX_ERROR_LENGTH = 2_000


# Modes


@transaction.atomic
def set_mode(budget: PowerBudget, mode: str, *, author: Author, now: datetime) -> None:
    """Change what happens when the measured power approaches the budget. Raises InvalidField. Caps of another mode
    end; the loop releases their clocks."""
    row = PowerBudget.objects.select_for_update(of=("self",)).select_related("cluster").get(pk=budget.pk)
    if mode == PowerCapMode.ACT and (refusal := act_refusal(row.cluster)):
        raise InvalidField("cap_mode", refusal)
    if row.mode == mode:
        return
    before, row.mode = row.mode, mode
    row.level, row.level_since, row.commanded_at, row.above_at = 0, None, None, None
    row.reading_at, row.measured_w, row.unread_nodes, row.command_error = None, None, 0, ""
    row.save()
    _end_cap(row, now)
    change = {"from_state": before, "to_state": mode, "detail": {"budget": row.pk}}
    journal.cluster_event("power.mode_changed", author, row.cluster, why=_budget_text(row), **change).save()
    budget.refresh_from_db()
    _publish(row)


# Thresholds


def set_percents(budget: PowerBudget, percents: Sequence[int]) -> bool:
    """Change the thresholds of the caps. The next reading uses them. Return whether they were others."""
    low, all_jobs, lowest = percents
    columns = {"low_cap_percent": low, "all_cap_percent": all_jobs, "lowest_clock_percent": lowest}
    changed = PowerBudget.objects.filter(pk=budget.pk).exclude(**columns).update(**columns) > 0
    for name, value in columns.items():
        setattr(budget, name, value)
    return changed


# Readings


@dataclass(frozen=True, kw_only=True)
class CapDecision:
    """What the rule makes of a reading."""

    budget: PowerBudget
    before: CapState
    after: CapState
    power: MeasuredPower

    @property
    def changes_clocks(self) -> bool:
        return self.after.command != self.before.command


READINGS_SQL = """
UPDATE scheduling_powerbudget b
SET reading_at = to_timestamp(v.at), measured_w = v.watts, unread_nodes = v.unread, above_at = v.above_at
FROM unnest(
  %s::bigint[], %s::float[], %s::float[], %s::int[], %s::timestamptz[], %s::text[], %s::bigint[], %s::bigint[]
) AS v (id, at, watts, unread, above_at, mode, limit_w, command)
WHERE b.id = v.id AND b.mode = v.mode AND b.limit_w = v.limit_w AND b.command = v.command
  AND (b.reading_at IS NULL OR b.reading_at < to_timestamp(v.at))
"""
PEAKS_SQL = """
UPDATE scheduling_powercap c SET peak_share = v.share FROM unnest(%s::bigint[], %s::float[]) AS v (budget, share)
WHERE c.budget_id = v.budget AND c.ended_at IS NULL AND c.peak_share < v.share
"""


def record_readings(decisions: Sequence[CapDecision]) -> int:
    """Record readings that change no clock, with two statements for all budgets. Return how many were recorded.
    Budgets that have changed since they were loaded are left out."""
    if not decisions:
        return 0
    rows = [
        (
            *(one.budget.pk, one.power.at_s, one.power.watts, one.power.unread, _time(one.after.above_s)),
            *(one.budget.mode, one.budget.limit_w, one.before.command),
        )
        for one in decisions
    ]
    peaks = [(one.budget.pk, one.power.watts / one.budget.limit_w) for one in decisions if one.after.level]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(READINGS_SQL, [list(column) for column in zip(*rows, strict=True)])
        recorded: int = cursor.rowcount
        if peaks:
            cursor.execute(PEAKS_SQL, [list(column) for column in zip(*peaks, strict=True)])
    return recorded


@transaction.atomic
def record_decision(decision: CapDecision, settings: CapSettings) -> bool:
    """Record a reading and the level that follows. False if the budget has changed since it was loaded."""
    budget, power, after = decision.budget, decision.power, decision.after
    at = _time(power.at_s)
    unchanged = PowerBudget.objects.filter(
        pk=budget.pk, mode=budget.mode, limit_w=budget.limit_w, command=budget.command, reading_at=budget.reading_at
    )
    columns = {
        "level": after.level,
        "level_since": _time(after.since_s),
        "command": after.command,
        "commanded_at": _time(after.commanded_s),
        "above_at": _time(after.above_s),
        "reading_at": at,
        "measured_w": power.watts,
        "unread_nodes": power.unread,
    }
    if at is None or not unchanged.update(**columns):
        return False
    for name, value in columns.items():
        setattr(budget, name, value)
    if after.level != decision.before.level:
        _change_level(budget, decision.before.level, settings, at)
    elif after.level:
        share = power.watts / budget.limit_w
        PowerCap.objects.filter(budget=budget, ended_at=None, peak_share__lt=share).update(peak_share=share)
    return True


def _change_level(budget: PowerBudget, before: int, settings: CapSettings, at: datetime) -> None:
    _end_cap(budget, at)
    low, high = settings.clocks(budget.level)
    if budget.level:
        PowerCap.objects.create(
            budget=budget,
            level=budget.level,
            low_mhz=low,
            high_mhz=high,
            is_observed=not budget.is_acting,
            began_at=at,
            peak_share=budget.share or 0.0,
        )
    type = "power.cap_raised" if budget.level > before else "power.cap_released"
    detail = {"budget": budget.pk, "low_mhz": low, "high_mhz": high, "observed": not budget.is_acting}
    levels = {"from_state": str(before), "to_state": str(budget.level)}
    journal.cluster_event(
        type, CAPPER, budget.cluster, why=_level_text(budget, low, high), detail=detail, **levels
    ).save()
    _publish(budget)


def _end_cap(budget: PowerBudget, at: datetime) -> None:
    PowerCap.objects.filter(budget=budget, ended_at=None).update(ended_at=Greatest("began_at", at))


def _level_text(budget: PowerBudget, low: int, high: int) -> str:
    if not budget.level:
        clocks = "clocks are not capped any more"
    elif high == MAX_MHZ:
        clocks = f"evaluation and debug jobs run at {_percent(low)} of the highest clock"
    else:
        clocks = f"evaluation and debug jobs run at {_percent(low)} of the highest clock, others at {_percent(high)}"
    would = "" if budget.is_acting else "observed only: "
    return f"{_budget_text(budget)} Measured: {100 * (budget.share or 0.0):.0f}%; {would}{clocks}."


def _percent(mhz: int) -> str:
    return f"{100 * mhz / MAX_MHZ:.0f}%"


def _budget_text(budget: PowerBudget) -> str:
    return f"Power budget of {budget.title}: {budget.limit_w / 1000:,.3g} kW."


def _time(seconds: float) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if isfinite(seconds) else None


# Clocks of nodes


@transaction.atomic
def request_clocks(clocks: Mapping[int, int | None], now: datetime) -> int:
    """Record which nodes shall run at which clock; None is the highest. Return how many of them change."""
    rows = NodeClock.objects.open().select_for_update().filter(node__in=clocks)
    open_rows = {row.node_id: row for row in rows.order_by("node_id")}
    changed = [
        node for node, mhz in clocks.items() if (open_rows[node].mhz != mhz if node in open_rows else mhz is not None)
    ]
    replaced = [open_rows[node].pk for node in changed if node in open_rows]
    NodeClock.objects.filter(pk__in=replaced).update(ended_at=Greatest("began_at", now))
    NodeClock.objects.bulk_create([NodeClock(node_id=node, mhz=clocks[node], began_at=now) for node in changed])
    return len(changed)


def forget_confirmations(nodes: Iterable[int]) -> int:
    """The clocks of these nodes are unknown: they boot with the highest. The next command includes them."""
    rows = NodeClock.objects.open().filter(node__in=list(nodes), confirmed_at__isnull=False)
    return rows.update(confirmed_at=None)


@transaction.atomic
def confirm_clocks(rows: Sequence[NodeClock], at: datetime) -> int:
    """Record that the command was done. Rows that were replaced meanwhile are left out. Return how many nodes changed.

    Jobs on nodes that are newly capped or not capped any more get an Event.
    """
    expected = NodeClock.objects.open().select_for_update().filter(pk__in=[row.pk for row in rows], confirmed_at=None)
    confirmed = list(expected.order_by("node_id"))
    keys = [row.pk for row in confirmed]
    NodeClock.objects.filter(pk__in=keys).update(confirmed_at=Greatest("began_at", at))
    NodeClock.objects.filter(pk__in=keys, mhz=None).update(ended_at=F("confirmed_at"))
    before = _caps_before(confirmed)
    capped = {row.node_id: row.mhz for row in confirmed if row.mhz and (row.node_id, row.began_at) not in before}
    released = {row.node_id: None for row in confirmed if row.mhz is None}
    Event.objects.bulk_create(
        [*_job_events("job.clocks_capped", capped), *_job_events("job.clocks_released", released)]
    )
    live.publish_on_commit(*(f"node:{row.node_id}" for row in confirmed))
    return len(confirmed)


def _caps_before(rows: Sequence[NodeClock]) -> set[tuple[int, datetime]]:
    """The nodes that had another cap until one of these rows began, and when."""
    nodes, ends = [row.node_id for row in rows], {row.began_at for row in rows}
    caps = NodeClock.objects.caps().filter(node__in=nodes, ended_at__in=ends).order_by()
    return set(caps.values_list("node", "ended_at"))


def _job_events(type: str, nodes: Mapping[int, int | None]) -> list[Event]:
    held = Allocation.objects.live().filter(node__in=nodes).order_by()
    attempts: dict[int, list[int]] = {}
    for attempt, node in held.values_list("attempt", "node").distinct():
        attempts.setdefault(attempt, []).append(node)
    rows = Attempt.objects.filter(pk__in=attempts, ended_at=None).select_related("job").order_by("pk")
    return [
        journal.job_event(type, CAPPER, row.job, attempt=row, why=_clock_text([nodes[n] for n in attempts[row.pk]]))
        for row in rows
    ]


def _clock_text(clocks: Sequence[int | None]) -> str:
    lowest = min((mhz for mhz in clocks if mhz), default=None)
    if lowest is None:
        return "The GPUs run at their highest clock again."
    return f"The power is close to its budget, so GPUs of the job run at {lowest} MHz."


@transaction.atomic
def record_command_error(cluster: Cluster, error: str) -> None:
    """Record that the clocks of some nodes could not be set, or that they could (an empty text)."""
    text = error[-MAX_ERROR_LENGTH:]
    rows = PowerBudget.objects.filter(cluster=cluster).exclude(command_error=text)
    if text and rows.filter(command_error="").exists():
        journal.cluster_event("power.command_failed", CAPPER, cluster, why=text).save()
    if rows.update(command_error=text):
        live.publish_on_commit("nodes")


def record_command(cluster: Cluster, at: datetime) -> None:
    """The clocks of nodes changed now, so readings show it some seconds later."""
    PowerBudget.objects.filter(cluster=cluster, mode=PowerCapMode.ACT, level__gt=0, commanded_at__lt=at).update(
        commanded_at=at
    )


def _publish(budget: PowerBudget) -> None:
    live.publish_on_commit("nodes")
