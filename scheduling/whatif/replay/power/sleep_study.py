"""Compares forecasts for sleeping nodes on one series: which one is chosen on past days, and what each would have done
on the test days, which nothing was trained or chosen on. Pure.

    days   |------------- training -------------|-- choice --|------- test -------|
           trees for the choice are trained here
           |---------- trees for the test are trained here ---------|

The trees are used on the test days only if their quantile loss on the choice days was lower than that of the recent
maximum. The reserve of each step always follows from the two weeks before it, on the test days too, as it would live.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from acmeweb.common.errors import InvalidInput
from scheduling.power.rules.awake_nodes import (
    STEP_S,
    STEPS_PER_DAY,
    Floats,
    Forecast,
    NodeSeries,
    ReserveSettings,
    maximum_before,
    nodes_needed,
    peak_ahead,
    recent_maximum,
)
from scheduling.whatif.replay.power import demand_trees
from scheduling.whatif.replay.power.demand_trees import DemandTrees
from scheduling.whatif.replay.power.sleeping_nodes import SleepLimits, SleepRun, run_fleet

TEST_SHARE = 0.2
CHOICE_DAYS = 14
TREES, RECENT = "trees", "recent_maximum"
# The simple rule that published figures are compared with: six hours, and 10 of 420 nodes
SIMPLE_RULE_STEPS = 36
SIMPLE_RULE_SHARE = 10 / 420


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    reserve: ReserveSettings = field(default_factory=ReserveSettings)
    limits: SleepLimits = field(default_factory=SleepLimits)
    test_days: int | None = None  # None: a fifth of the days
    forecast: str = "best"  # or RECENT or TREES


@dataclass(frozen=True, kw_only=True)
class Division:
    """Positions in the series at which the choice days and the test days begin."""

    choice: int
    test: int
    end: int


def divide(series: NodeSeries, test_days: int | None) -> Division:
    """The last days are for the test, at most CHOICE_DAYS before them for the choice. A single day is all test."""
    days, starts = np.unique(series.dates, return_index=True)
    count = test_days if test_days is not None else max(1, int(np.ceil(TEST_SHARE * len(days))))
    if count > len(days):
        raise InvalidInput(f"test-days: {count} is more than the {len(days)} days of the series.")
    before = len(days) - count
    test = int(starts[before])
    return Division(choice=int(starts[max(0, before - CHOICE_DAYS)]) if before else test, test=test, end=len(series))


def sleep_study(series: NodeSeries, settings: StudySettings) -> tuple[dict[str, Any], SleepRun]:
    """Return the report, and the run of the chosen forecast over all days."""
    parts = divide(series, settings.test_days)
    forecasts, trained = _forecasts(series, parts, settings)
    losses = {name: _loss(series, forecast, parts, settings) for name, forecast in forecasts["choice"].items()}
    chosen = _chosen(losses, settings.forecast)
    runs = {
        name: run_fleet(series, nodes_needed(series, forecast(series), settings.reserve), settings.limits)
        for name, forecast in forecasts["test"].items()
    }
    compared = {
        "rule": run_fleet(series, simple_rule(series), settings.limits),
        "none": run_fleet(series, series.total.astype(float), settings.limits),
    }
    report = {
        **run_figures(series, runs[chosen], parts.test, parts.end),
        "forecast": chosen,
        **{name: run_figures(series, run, parts.test, parts.end) for name, run in compared.items()},
        "forecasts": {
            name: run_figures(series, run, parts.test, parts.end) | {"quantile_loss_on_choice_days": losses.get(name)}
            for name, run in runs.items()
        },
        "days": _days_document(series, parts, trained),
        "settings": _settings_document(settings),
        "before_test": run_figures(series, runs[chosen], min(STEPS_PER_DAY, parts.test), parts.test),
    }
    return report, runs[chosen]


def _forecasts(
    series: NodeSeries, parts: Division, settings: StudySettings
) -> tuple[dict[str, dict[str, Forecast]], dict[str, list[str]]]:
    """The forecasts for the choice and for the test, and the days on which each was trained."""
    found: dict[str, dict[str, Forecast]] = {"choice": {RECENT: recent_maximum}, "test": {RECENT: recent_maximum}}
    trained: dict[str, list[str]] = {}
    if settings.forecast == RECENT or not _can_train(series, parts, required=settings.forecast == TREES):
        return found, trained
    for use, until in (("choice", parts.choice), ("test", parts.test)):
        found[use][TREES] = DemandTrees.train(series.part(0, until), settings.reserve.lead_steps)
        trained[f"trees_for_{use}"] = _first_and_last(series, 0, until)
    return found, trained


def _can_train(series: NodeSeries, parts: Division, *, required: bool) -> bool:
    enough = parts.choice >= demand_trees.MIN_TRAINING_DAYS * STEPS_PER_DAY
    if required and not demand_trees.is_installed():
        raise InvalidInput("forecast: trees need LightGBM: install acme[prediction].")
    if required and not enough:
        raise InvalidInput(
            f"forecast: trees need {demand_trees.MIN_TRAINING_DAYS} days before the choice days; the series has "
            f"{parts.choice // STEPS_PER_DAY}."
        )
    return enough and demand_trees.is_installed()


def _loss(series: NodeSeries, forecast: Forecast, parts: Division, settings: StudySettings) -> float | None:
    """The loss on the choice days; None without any."""
    if parts.choice == parts.test:
        return None
    past = series.part(0, parts.test)
    needed = nodes_needed(past, forecast(past), settings.reserve)
    return quantile_loss(past.part(parts.choice, parts.test), needed[parts.choice :], settings.reserve)


def _chosen(losses: Mapping[str, float | None], wanted: str) -> str:
    if wanted != "best":
        return wanted
    recent, trees = losses[RECENT], losses.get(TREES)
    return TREES if trees is not None and recent is not None and trees < recent else RECENT


def simple_rule(series: NodeSeries) -> Floats:
    """The simple rule: the maximum of six hours and a fixed reserve."""
    recent = maximum_before(series.active, SIMPLE_RULE_STEPS)
    return np.asarray(np.minimum(recent + np.ceil(SIMPLE_RULE_SHARE * series.total), series.total))


def quantile_loss(series: NodeSeries, needed: Floats, settings: ReserveSettings) -> float:
    """The mean loss of these numbers of awake nodes: an idle node costs little, a missing one as much as the accepted
    number of unplanned wake-ups says. The lowest loss has the true quantile."""
    missing = peak_ahead(series, settings.lead_steps) - needed
    return float(np.mean(np.where(missing > 0, settings.quantile * missing, (settings.quantile - 1) * missing)))


def run_figures(series: NodeSeries, run: SleepRun, low: int, high: int) -> dict[str, float | None]:
    """The figures of the steps from `low` to before `high`. `in_use`: node-hours with jobs of the node-hours awake."""
    cut = slice(low, high)
    days, awake = (high - low) / STEPS_PER_DAY, int(run.awake[cut].sum())
    if high <= low:
        return {}
    return {
        "in_use": float(series.active[cut].sum() / awake) if awake else None,
        "unplanned_wakes_per_day": float(run.unplanned[cut].sum() / days),
        "asleep_mean": float((series.total[cut] - run.awake[cut]).mean()),
        "awake_mean": float(run.awake[cut].mean()),
        "node_wakes_per_day": float(run.woken[cut].sum() / days),
        "nodes_short_mean": _mean_shortage(series, run, cut),
    }


def _mean_shortage(series: NodeSeries, run: SleepRun, cut: slice) -> float:
    """How many nodes were woken up in a step with an unplanned wake-up, on average."""
    woken = run.woken[cut][run.unplanned[cut]]
    return float(woken.mean()) if len(woken) else 0.0


def _days_document(series: NodeSeries, parts: Division, trained: Mapping[str, list[str]]) -> dict[str, Any]:
    gaps = int((np.diff(series.steps) > 1).sum())
    return {
        "all": _first_and_last(series, 0, parts.end),
        "count": len(series.days),
        "rows": series.rows,
        "steps_of_ten_minutes": len(series),
        "gaps": gaps,
        "test": _first_and_last(series, parts.test, parts.end),
        "choice": _first_and_last(series, parts.choice, parts.test),
        "trained": dict(trained),
        "reserve": "from the 14 days before each step, also on test days",
    }


def _first_and_last(series: NodeSeries, low: int, high: int) -> list[str]:
    """The first and the last day of these steps; empty without steps."""
    return [date_of_step(int(series.steps[low])), date_of_step(int(series.steps[high - 1]))] if low < high else []


def _settings_document(settings: StudySettings) -> dict[str, Any]:
    minutes = STEP_S // 60
    return {
        "accepted_unplanned_per_day": settings.reserve.unplanned_per_day,
        "min_reserve_nodes": settings.reserve.min_nodes,
        "boot_minutes": settings.limits.boot * minutes,
        "min_awake_minutes": settings.limits.min_awake * minutes,
        "min_asleep_minutes": settings.limits.min_asleep * minutes,
        "max_wakes_of_a_node_per_day": settings.limits.max_wakes_per_day,
    }


def date_of_step(step: int) -> str:
    return f"{datetime.fromtimestamp(step * STEP_S, UTC):%F}"


def step_rows(series: NodeSeries, run: SleepRun) -> list[tuple[str, int, int, int, int]]:
    """One row per step, to check the figures: time, demand, nodes awake, nodes woken up, unplanned."""
    times = (series.steps * STEP_S).astype("datetime64[s]").astype(str).tolist()
    columns = (series.active, run.awake, run.woken, run.unplanned.astype(int))
    return list(zip(times, *(column.tolist() for column in columns), strict=True))
