"""Predictions of run times as Helios makes them (SC'21): a tenth of the rolling estimate, nine tenths of trees.

The gradient-boosted trees are trained on jobs that have ended, again whenever their number has doubled, and never on
the future. Differences: names are compared as they are, not clustered by edit distance; the trees learn the logarithm,
or the longest jobs would be all they see; and they look at the last hundred thousand jobs.

LightGBM is imported when it first trains (`pip install acme[prediction]`): nothing else needs it.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from scheduling.engine.engine import Job
from scheduling.engine.predicting import Predictor, Rolling
from scheduling.engine.settings import Missing

MODEL_PART = 0.9
FIRST_LESSON = 1_000  # jobs that must have ended
MOST_ROWS = 100_000
TREES = {
    "objective": "regression_l1",  # the median: one job of a month among a hundred of a minute is not the rule
    "num_leaves": 31,
    "learning_rate": 0.1,
    "min_data_in_leaf": 20,
    "min_data_per_group": 20,
    "num_threads": 1,
    "seed": 0,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}
ROUNDS = 100
Row = tuple[int, int, int, int, int]


class Blended(Predictor):
    def __init__(self) -> None:
        if find_spec("lightgbm") is None:
            raise Missing("The policy qssf-ml needs LightGBM: install acme[prediction].")
        self._rolling = Rolling()
        self._trees: Any = None
        self._known: dict[Row, float] = {}  # what the trees say of it
        self._rows: list[Row] = []
        self._ran: list[float] = []
        self._seen, self._learn_at = 0, FIRST_LESSON

    def predict(self, job: Job) -> float:
        rolling = self._rolling.predict(job)
        if self._trees is None:
            return rolling
        row = _row(job)
        if (said := self._known.get(row)) is None:
            # Asking costs much, asking for a whole day little more; one thread, or threads that wait eat the machine
            day = [(*row[:4], hour) for hour in range(24)]
            logs = self._trees.predict(np.array(day, dtype=float), num_threads=1)
            self._known.update(zip(day, np.expm1(logs).tolist(), strict=True))
            said = self._known[row]
        return (1 - MODEL_PART) * rolling + MODEL_PART * said if said > 0 else rolling

    def learn(self, job: Job, ran_s: float) -> None:
        self._rolling.learn(job, ran_s)
        self._rows.append(_row(job))
        self._ran.append(ran_s)
        self._seen += 1
        if self._seen >= self._learn_at:
            del self._rows[:-MOST_ROWS], self._ran[:-MOST_ROWS]
            self._learn_at = self._seen + min(self._seen, MOST_ROWS)
            self._trees, self._known = _trained(self._rows, self._ran), {}


def _row(job: Job) -> Row:
    hours = int(job.submitted // 3600)
    return job.user, job.name, job.ask.gpus, hours // 24 % 7, hours % 24


def _trained(rows: list[Row], ran_s: list[float]) -> Any:
    import lightgbm

    lesson = lightgbm.Dataset(
        np.array(rows, dtype=float),
        np.log1p(ran_s),
        feature_name=["user", "name", "gpus", "weekday", "hour"],
        categorical_feature=["user", "name"],
        params={"verbosity": -1},
    )
    return lightgbm.train(TREES, lesson, num_boost_round=ROUNDS)
