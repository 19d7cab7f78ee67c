"""A learned forecast: gradient-boosted trees (LightGBM, `pip install acme[prediction]`) that predict how far the demand
rises above its recent maximum. Pure; LightGBM is imported at the training, because nothing else needs it.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from scheduling.power.rules.awake_nodes import (
    STEPS_PER_DAY,
    Floats,
    NodeSeries,
    fluctuation,
    maximum_before,
    peak_ahead,
    recent_maximum,
)

MIN_TRAINING_DAYS = 14
WEEK_STEPS = 7 * STEPS_PER_DAY
CHANGE_STEPS = (1, 2, 3, 5, 8, 11, 17, 35, 71, 143, 287)
WINDOW_STEPS = (6, 18, 36, STEPS_PER_DAY)
SAME_TIME_STEPS = (STEPS_PER_DAY, WEEK_STEPS)
SAME_TIME_RISE_STEPS = 3
LARGEST_RISE_SHARE = 0.15
TREE_PARAMETERS = {
    "objective": "quantile",
    "alpha": 0.97,  # the reserve adds the rest
    "learning_rate": 0.05,
    "num_leaves": 15,
    "min_data_in_leaf": 60,
    "num_threads": 1,
    "seed": 0,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}
BOOSTING_ROUNDS = 150


def is_installed() -> bool:
    return find_spec("lightgbm") is not None


class DemandTrees:
    """Trees trained on the days of one series, for the days after them."""

    def __init__(self, booster: Any) -> None:
        self._booster = booster

    @classmethod
    def train(cls, series: NodeSeries, lead_steps: int) -> DemandTrees:
        """Train on a series. Its last steps, whose peaks are not over, are left out."""
        import lightgbm

        largest = LARGEST_RISE_SHARE * series.total
        rises = np.clip(peak_ahead(series, lead_steps) - recent_maximum(series), -largest, largest)
        used = slice(STEPS_PER_DAY, len(series) - lead_steps)
        dataset = lightgbm.Dataset(features(series)[used], rises[used], params={"verbosity": -1})
        return cls(lightgbm.train(TREE_PARAMETERS, dataset, num_boost_round=BOOSTING_ROUNDS))

    def __call__(self, series: NodeSeries) -> Floats:
        rises = self._booster.predict(features(series), num_threads=1)
        return np.asarray(recent_maximum(series) + rises)


def features(series: NodeSeries) -> Floats:
    """One row per step, from earlier steps and the clock only."""
    last = maximum_before(series.active, 1)
    columns = [last - _shifted(last, steps) for steps in CHANGE_STEPS]
    columns += [maximum_before(series.active, steps) - last for steps in WINDOW_STEPS]
    columns += [fluctuation(series, steps) for steps in WINDOW_STEPS]
    columns += [_rise_at_same_time(series, steps) for steps in SAME_TIME_STEPS]
    steps = series.steps.astype(float)
    columns += [last, steps % STEPS_PER_DAY, steps // STEPS_PER_DAY % 7]
    return np.column_stack(columns)


def _shifted(values: Floats, steps: int) -> Floats:
    """The values of so many steps before; the first one where there is none."""
    steps = min(steps, len(values))
    return np.concatenate([np.full(steps, values[0]), values[: len(values) - steps]])


def _rise_at_same_time(series: NodeSeries, steps: int) -> Floats:
    """How much the demand rose at this time a day or a week ago; 0 where the series is shorter."""
    before = _shifted(series.active.astype(float), steps)
    after = _shifted(series.active.astype(float), steps - SAME_TIME_RISE_STEPS)
    return after - before
