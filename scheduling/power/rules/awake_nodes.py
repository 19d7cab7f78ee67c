"""How many nodes to keep awake: the recent maximum of the demand and a reserve. Pure.

Demand is a series: the maximum of each ten minutes. The reserve follows from the past: it is the shortfall that the
forecast alone exceeded only as often as unplanned wake-ups are accepted, over the last two weeks. Shortfalls are
measured in units of the recent fluctuation, so that the reserve grows within an hour when the demand becomes restless.
Every value for a step uses earlier steps only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STEP_S = 600
STEPS_PER_DAY = 144
RECENT_STEPS = 3  # 30 min: a node that was needed within this time stays awake
RESERVE_DAYS = 14
RESERVE_STEPS = 6  # steps between two computations of the reserve
FIRST_RESERVE_SHARE = 0.05  # of all nodes, until a day has passed
FLUCTUATION_STEPS = 12
LARGEST_CHANGE_SHARE = 0.1  # larger changes, as when a cluster is restarted, say nothing about the next hour
UNIT_SHARE = 0.005  # of all nodes: the fluctuation of a calm cluster


@dataclass(frozen=True, kw_only=True)
class NodeSeries:
    """One value per ten minutes. Steps without a row are absent, so two neighbors may be further apart."""

    steps: Ints  # number of the step since 1970
    active: Ints  # the largest number of nodes with jobs
    total: Ints  # all nodes, asleep or awake
    rows: int

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def days(self) -> list[str]:
        """The dates (UTC) with values."""
        return [str(day) for day in np.unique(self.dates)]

    @property
    def dates(self) -> NDArray[np.datetime64]:
        return (self.steps * STEP_S).astype("datetime64[s]").astype("datetime64[D]")

    def part(self, low: int, high: int) -> NodeSeries:
        """The steps from position `low` to before `high`."""
        cut = slice(low, high)
        return NodeSeries(steps=self.steps[cut], active=self.active[cut], total=self.total[cut], rows=self.rows)


Forecast = Callable[[NodeSeries], Floats]


@dataclass(frozen=True, kw_only=True)
class ReserveSettings:
    """`unplanned_per_day`: how often demand may exceed the awake nodes. `lead_steps`: how long a node boots."""

    unplanned_per_day: float = 1.0
    min_nodes: int = 1
    lead_steps: int = 0

    @property
    def quantile(self) -> float:
        return 1 - self.unplanned_per_day / STEPS_PER_DAY


def maximum_before(values: NDArray[np.int64], steps: int) -> Floats:
    """The maximum of the `steps` values before each value. The first one is its own."""
    padded = np.concatenate([np.full(steps, values[0]), values[:-1]]).astype(float)
    return np.asarray(sliding_window_view(padded, steps).max(axis=1)[: len(values)])


def recent_maximum(series: NodeSeries) -> Floats:
    """The forecast without learning."""
    return maximum_before(series.active, RECENT_STEPS)


def fluctuation(series: NodeSeries, steps: int = FLUCTUATION_STEPS) -> Floats:
    """The mean change from step to step before each step, forgetting older ones; at least a unit."""
    largest = LARGEST_CHANGE_SHARE * series.total
    changes = np.minimum(np.abs(np.diff(series.active, prepend=series.active[0])), largest)
    means, mean = np.empty(len(series)), 0.0
    for at, change in enumerate(changes.tolist()):
        means[at] = mean
        mean += (change - mean) / steps
    return np.asarray(np.maximum(1.0, UNIT_SHARE * series.total) + means)


def peak_ahead(series: NodeSeries, lead_steps: int) -> NDArray[np.int64]:
    """The largest demand of each step and of the `lead_steps` after it, in which a node that wakes up boots."""
    padded = np.concatenate([series.active, np.full(lead_steps, series.active[-1])])
    return np.asarray(sliding_window_view(padded, lead_steps + 1).max(axis=1))


def nodes_needed(series: NodeSeries, forecast: Floats, settings: ReserveSettings) -> Floats:
    """How many nodes are to be awake in each step, at most all of them."""
    units = fluctuation(series)
    shortfalls = (peak_ahead(series, settings.lead_steps) - forecast) / units
    reserve, needed = 0.0, np.empty(len(series))
    for at in range(len(series)):
        known = at - settings.lead_steps  # the peaks after a step are known only later
        if known < STEPS_PER_DAY:
            reserve = FIRST_RESERVE_SHARE * float(series.total[at])
        else:
            if at % RESERVE_STEPS == 0 or known == STEPS_PER_DAY:
                factor = _quantile(shortfalls[max(0, known - RESERVE_DAYS * STEPS_PER_DAY) : known], settings)
            reserve = factor * float(units[at])
        needed[at] = forecast[at] + max(reserve, settings.min_nodes)
    return np.asarray(np.minimum(np.ceil(needed), series.total))


def _quantile(shortfalls: Floats, settings: ReserveSettings) -> float:
    return float(np.quantile(shortfalls, settings.quantile))
