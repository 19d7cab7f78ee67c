"""Run time predictions of Helios (SC'21): one tenth rolling estimate, nine tenths gradient-boosted trees.

The trees are trained on jobs that have ended, again whenever their number has doubled, and never on the future.
Differences: names are compared as they are, not clustered by edit distance; the trees learn the logarithm, because
otherwise the longest jobs would dominate; and only the last hundred thousand jobs are used.

LightGBM is imported at the first training (`pip install acme[prediction]`), because nothing else needs it.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from scheduling.engine.job import EngineJob
from scheduling.engine.predicting import Predictor, RollingPredictor
from scheduling.engine.settings import MissingLibrary

MODEL_WEIGHT = 0.9
MIN_TRAINING_JOBS = 1_000  # ended jobs needed before the first training
MAX_TRAINING_JOBS = 100_000
TREE_PARAMETERS = {
    "objective": "regression_l1",  # the median, so one month-long job among short ones does not dominate
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
BOOSTING_ROUNDS = 100
FeatureRow = tuple[int, int, int, int, int]


class BlendedPredictor(Predictor):
    """The rolling estimate, combined with trees as soon as enough jobs have ended."""

    def __init__(self) -> None:
        if find_spec("lightgbm") is None:
            raise MissingLibrary("The policy qssf-ml needs LightGBM: install acme[prediction].")
        self._rolling = RollingPredictor()
        self._trees: Any = None
        self._known: dict[FeatureRow, float] = {}  # cached predictions of the trees
        self._rows: list[FeatureRow] = []
        self._ran: list[float] = []
        self._seen, self._learn_at = 0, MIN_TRAINING_JOBS

    def predict(self, job: EngineJob) -> float:
        rolling = self._rolling.predict(job)
        if self._trees is None:
            return rolling
        row = _feature_row(job)
        if (trees_s := self._known.get(row)) is None:
            # One call is expensive, a call for all hours of the day costs little more. One thread, because idle
            # LightGBM threads would spin on all cores
            day = [(*row[:4], hour) for hour in range(24)]
            logs = self._trees.predict(np.array(day, dtype=float), num_threads=1)
            self._known.update(zip(day, np.expm1(logs).tolist(), strict=True))
            trees_s = self._known[row]
        return (1 - MODEL_WEIGHT) * rolling + MODEL_WEIGHT * trees_s if trees_s > 0 else rolling

    def learn(self, job: EngineJob, ran_s: float) -> None:
        self._rolling.learn(job, ran_s)
        self._rows.append(_feature_row(job))
        self._ran.append(ran_s)
        self._seen += 1
        if self._seen >= self._learn_at:
            del self._rows[:-MAX_TRAINING_JOBS], self._ran[:-MAX_TRAINING_JOBS]
            self._learn_at = self._seen + min(self._seen, MAX_TRAINING_JOBS)
            self._trees, self._known = _train_trees(self._rows, self._ran), {}


def _feature_row(job: EngineJob) -> FeatureRow:
    hours = int(job.submitted // 3600)
    return job.user, job.name, job.group.gpus, hours // 24 % 7, hours % 24


def _train_trees(rows: list[FeatureRow], ran_s: list[float]) -> Any:
    import lightgbm

    dataset = lightgbm.Dataset(
        np.array(rows, dtype=float),
        np.log1p(ran_s),
        feature_name=["user", "name", "gpus", "weekday", "hour"],
        categorical_feature=["user", "name"],
        params={"verbosity": -1},
    )
    return lightgbm.train(TREE_PARAMETERS, dataset, num_boost_round=BOOSTING_ROUNDS)
