"""What a replay draws: energy, cost, peak power, and what sleeping nodes would save. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from acmeweb.common.errors import InvalidField
from jobs.traces.trace import Floats
from scheduling.power.rules.awake_nodes import STEP_S, NodeSeries, ReserveSettings, nodes_needed, recent_maximum
from scheduling.power.rules.caps import LOW_PRIORITY_KINDS
from scheduling.power.rules.energy import kwh
from scheduling.power.rules.gpu_clocks import PowerFleet
from scheduling.whatif.replay.power.budget_run import PowerJobs
from scheduling.whatif.replay.power.power_over_time import PowerOverTime, power_over_time
from scheduling.whatif.replay.power.setting import PowerSetting, gpus_of_jobs
from scheduling.whatif.replay.power.sleeping_nodes import SleepLimits, run_fleet
from scheduling.whatif.replay.run import PolicyRun
from scheduling.whatif.replay.usage_over_time import MAX_SERIES_POINTS


def power_figures(run: PolicyRun, on_progress: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """The figures from the first start to the last end; sleeping saves energy, peak and cost are those without it.

    Raises `InvalidField` if jobs were stopped, because a run does not say when they ran.
    """
    setting, fleet = run.setting.power, run.setting.power_fleet
    assert setting is not None
    drawn = power_over_time(power_jobs(run), fleet, on_progress)
    budget_w = None if setting.budget_kw is None else setting.budget_kw * 1000
    figures: dict[str, Any] = {
        "kwh": drawn.energy_kwh,
        "peak_kw": drawn.peak_w / 1000,
        "interval_s": drawn.interval_s,
        "budget_kw": setting.budget_kw,
        "above_budget_s": None if budget_w is None else drawn.above_s(budget_w),
        "longest_excursion_s": None if budget_w is None else drawn.longest_above_s(budget_w),
        "cost": _cost(drawn.energy_kwh, setting),
        "curve": _curve(drawn, run),
    }
    if setting.has_sleep:
        figures["sleep"] = _sleep_figures(run, fleet, drawn.energy_kwh, setting)
    return figures


def _curve(drawn: PowerOverTime, run: PolicyRun) -> dict[str, list[float]]:
    """Seconds since the first submission, and the highest power from then to the next point."""
    at_s, highest_w = drawn.highest_w(MAX_SERIES_POINTS)
    first_s = float(run.trace.submit_s[0]) if len(run.trace) else 0.0
    return {"at_s": (at_s - first_s).round(0).tolist(), "kw": (highest_w / 1000).round(1).tolist()}


def _cost(energy_kwh: float, setting: PowerSetting) -> float | None:
    return None if setting.price_per_kwh is None else energy_kwh * setting.price_per_kwh


def _sleep_figures(run: PolicyRun, fleet: PowerFleet, energy_kwh: float, setting: PowerSetting) -> dict[str, Any]:
    """What the rule for sleeping nodes would have done. A node that sleeps draws nothing; boots delay no job here."""
    series = active_node_series(run.active_nodes, fleet.nodes)
    slept = run_fleet(series, nodes_needed(series, recent_maximum(series), ReserveSettings()), SleepLimits())
    asleep_h = float((fleet.nodes - slept.awake).sum()) * STEP_S / 3600
    idle_w = fleet.power_w(0, 0) / fleet.nodes
    saved_kwh = min(energy_kwh, kwh(asleep_h * 3600 * idle_w))
    return {
        "kwh": energy_kwh - saved_kwh,
        "cost": _cost(energy_kwh - saved_kwh, setting),
        "asleep_node_hours": asleep_h,
        "node_wakes": int(slept.woken.sum()),
        "unplanned_wakes": int(slept.unplanned.sum()),
    }


def active_node_series(changes: Floats, nodes: int) -> NodeSeries:
    """Rows of (time, nodes with jobs from then on), in order of time, as the maximum of each ten minutes."""
    if not len(changes):
        changes = np.zeros((1, 2))
    at, active = changes[:, 0], changes[:, 1].astype(np.int64)
    first, last = int(at[0] // STEP_S), int(at[-1] // STEP_S)
    steps = np.arange(first, last + 1)
    before = np.searchsorted(at, steps * STEP_S, side="right") - 1
    highest = np.where(before < 0, 0, active[np.maximum(before, 0)])
    np.maximum.at(highest, (at // STEP_S).astype(np.int64) - first, active)
    return NodeSeries(steps=steps, active=highest, total=np.full(len(steps), nodes, dtype=np.int64), rows=len(at))


def power_jobs(run: PolicyRun) -> PowerJobs:
    """The jobs that ran, in order of their starts, as a schedule for `budget_run`. The run must have the power of its
    jobs (`ReplaySetting.power`). Raise InvalidField if jobs were stopped.
    """
    assert run.power is not None
    if run.stops.any():
        raise InvalidField("policy", f"{run.policy} stopped jobs. Use one without preemption, such as fifo-skip.")
    ran = np.flatnonzero(np.isfinite(run.ended_s))
    rows = ran[np.argsort(run.started_s[ran], kind="stable")]
    trace = run.trace.rows(rows)
    return PowerJobs(
        start_s=run.started_s[rows],
        work_s=run.held_s[rows],
        gpus=gpus_of_jobs(trace),
        is_low=np.isin(np.array(list(trace.kinds)), sorted(LOW_PRIORITY_KINDS)),
        profiles=run.power.profiles.rows(rows),
    )
