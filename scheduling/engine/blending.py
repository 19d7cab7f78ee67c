"""Run time predictions of Helios (SC'21): one tenth rolling estimate, nine tenths gradient-boosted trees.

The trees are trained on jobs that have ended and never on the future: again whenever their number has doubled, and with
the knowledge of a live cluster also once a day. Differences: names that differ only in their numbers count as equal,
instead of being clustered by edit distance; the trees learn the logarithm, because otherwise the longest jobs would
dominate; and only the last hundred thousand jobs are used.

LightGBM is imported at the first training (`pip install acme[prediction]`), because nothing else needs it.
"""

from __future__ import annotations

import json
import zlib
from collections import deque
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

import numpy as np

from scheduling.engine.job import EngineJob
from scheduling.engine.predicting import DAY_S, RollingPredictor
from scheduling.engine.settings import MissingLibrary

MODEL_WEIGHT: Final = 0.9
MIN_TRAINING_JOBS: Final = 1_000  # ended jobs needed before the first training
MAX_TRAINING_JOBS: Final = 100_000
MAX_DOCUMENT_BYTES: Final = 64 * 2**20
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
UNKNOWN_CODE = -1
Label = int | str  # a number in a trace, a text on a live cluster
CodedRow = tuple[int, int, int, int, int, int]


class JobFeatures(NamedTuple):
    """What the trees know of a job. `name` is the name without its numbers."""

    user: Label
    name: Label
    kind: Label
    gpus: int
    submitted_s: float


def check_lightgbm() -> None:
    """Raise `MissingLibrary` if LightGBM is not installed."""
    if find_spec("lightgbm") is None:
        raise MissingLibrary("The policy qssf-ml needs LightGBM: install acme[prediction].")


def training_is_due(ended: int, trained: int, min_jobs: int, age_s: float = 0.0) -> bool:
    """Whether to train. `ended` jobs have ended by now, `trained` before the last training, which is `age_s` old."""
    if ended < min_jobs:
        return False
    return ended >= trained + min(trained, MAX_TRAINING_JOBS) or (age_s >= DAY_S and ended > trained)


def blended_run_time(rolling_s: float, trees_s: float) -> float:
    return (1 - MODEL_WEIGHT) * rolling_s + MODEL_WEIGHT * trees_s if trees_s > 0 else rolling_s


class RunTimeTrees:
    """Trained trees, and the numbers of the users, names and kinds that they know, in order of appearance."""

    def __init__(self, booster: Any, codes: Sequence[dict[Label, int]]) -> None:
        self._booster = booster
        self._users, self._names, self._kinds = codes
        self._known: dict[CodedRow, float] = {}  # cached run times

    @classmethod
    def train(cls, jobs: Sequence[JobFeatures], ran_s: Sequence[float]) -> RunTimeTrees:
        """Train on ended jobs, in the order of their ends."""
        check_lightgbm()
        import lightgbm

        codes: list[dict[Label, int]] = [{}, {}, {}]
        for job in jobs:
            for known, label in zip(codes, job[:3], strict=True):
                known.setdefault(label, len(known))
        trees = cls(None, codes)
        dataset = lightgbm.Dataset(
            np.array([trees._coded_row(job) for job in jobs], dtype=float),
            np.log1p(ran_s),
            feature_name=["user", "name", "kind", "gpus", "weekday", "hour"],
            categorical_feature=["user", "name", "kind"],
            params={"verbosity": -1},
        )
        trees._booster = lightgbm.train(TREE_PARAMETERS, dataset, num_boost_round=BOOSTING_ROUNDS)
        return trees

    def run_time_s(self, job: JobFeatures) -> float:
        """The run time that the trees expect. Cached, with those at all hours of the day: one call is expensive, a call
        for 24 rows costs little more.
        """
        row = self._coded_row(job)
        if (trees_s := self._known.get(row)) is None:
            day = [(*row[:5], hour) for hour in range(24)]
            # One thread, because idle LightGBM threads would spin on all cores
            logs = self._booster.predict(np.array(day, dtype=float), num_threads=1)
            self._known.update(zip(day, np.expm1(logs).tolist(), strict=True))
            trees_s = self._known[row]
        return trees_s

    def _coded_row(self, job: JobFeatures) -> CodedRow:
        hours = int(job.submitted_s // 3600)
        return (
            self._users.get(job.user, UNKNOWN_CODE),
            self._names.get(job.name, UNKNOWN_CODE),
            self._kinds.get(job.kind, UNKNOWN_CODE),
            job.gpus,
            hours // 24 % 7,
            hours % 24,
        )

    def dumps(self) -> bytes:
        """The trees as a compressed document."""
        labels = [list(known) for known in (self._users, self._names, self._kinds)]
        document = {"labels": labels, "trees": self._booster.model_to_string()}
        return zlib.compress(json.dumps(document).encode())

    @classmethod
    def loads(cls, document: bytes) -> RunTimeTrees:
        """The trees of a document. Raises `ValueError` if it cannot be read."""
        check_lightgbm()
        import lightgbm

        try:
            unpacked = zlib.decompressobj().decompress(document, MAX_DOCUMENT_BYTES)
            content = json.loads(unpacked)
            booster = lightgbm.Booster(model_str=content["trees"])
            codes = [{label: code for code, label in enumerate(labels)} for labels in content["labels"]]
            return cls(booster, codes)
        except (zlib.error, KeyError, TypeError, lightgbm.basic.LightGBMError) as error:
            raise ValueError(f"not a document of trees: {error}") from error


class BlendedPredictor(RollingPredictor):
    """The rolling estimate, combined with trees as soon as enough jobs have ended."""

    def __init__(self, *, daily: bool = False, min_jobs: int = MIN_TRAINING_JOBS) -> None:
        """`daily`: also train once a day, as a live cluster does."""
        check_lightgbm()
        super().__init__()
        self._daily, self._min_jobs = daily, min_jobs
        self._trees: RunTimeTrees | None = None
        self._jobs: deque[JobFeatures] = deque(maxlen=MAX_TRAINING_JOBS)
        self._ran_s: deque[float] = deque(maxlen=MAX_TRAINING_JOBS)
        self._ended = self._trained = 0
        self._trained_at = 0.0

    def expected_mean(self, job: EngineJob) -> float | None:
        rolling = super().expected_mean(job)
        self._train_if_due(job.submitted)
        if rolling is None or self._trees is None:
            return rolling
        return blended_run_time(rolling, self._trees.run_time_s(_features(job)))

    def learn(self, job: EngineJob, ran_s: float) -> None:
        super().learn(job, ran_s)
        self._jobs.append(_features(job))
        self._ran_s.append(ran_s)
        self._ended += 1

    def _train_if_due(self, now: float) -> None:
        """Train before a prediction and not after an end, so that jobs that end together are learned together."""
        age_s = now - self._trained_at if self._daily else 0.0
        if training_is_due(self._ended, self._trained, self._min_jobs, age_s):
            self._trees = RunTimeTrees.train(list(self._jobs), list(self._ran_s))
            self._trained, self._trained_at = self._ended, now


def _features(job: EngineJob) -> JobFeatures:
    return JobFeatures(job.user, job.similar, job.kind, job.group.gpus, job.submitted)
