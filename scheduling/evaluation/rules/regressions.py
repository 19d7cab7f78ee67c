"""Finds scores that fell by more than the sampling error of their benchmark. Pure.

A score is the mean over the samples of a dataset. If every sample scores between 0 and 1, its standard error is at most
sqrt(p (1 - p) / n); for right or wrong answers it is exactly that. The error of a difference of two scores is taken as
if their samples were independent. Checkpoints answer the same samples, so the true error is smaller, and a drop that
exceeds this one is no artifact of the sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

MIN_ERRORS = 2.0  # standard errors by which a score must fall; by chance this happens to about 1 in 40 equal scores
PROPORTIONS = frozenset(
    {
        "score",
        "accuracy",
        "acc",
        "acc_norm",
        "exact_match",
        "em",
        "pass@1",
        "f1",
        "naive_average",
        "correct",
        "mc1",
        "mc2",
    }
)


@dataclass(frozen=True, kw_only=True)
class Score:
    """The score of a checkpoint on a dataset of `samples`."""

    step: int
    value: float
    samples: int


@dataclass(frozen=True, kw_only=True)
class Regression:
    """A drop since the score of the step before, and the drop that sampling alone could explain."""

    since_step: int
    drop: float
    margin: float


def score_scale(metric: str, values: Sequence[float]) -> float | None:
    """1 for scores from 0 to 1, 100 for percent; None if the metric is no mean of samples, as a perplexity."""
    # lm-evaluation-harness writes the filter behind the name: exact_match,strict-match
    if metric.lower().partition(",")[0] not in PROPORTIONS or not values or min(values) < 0:
        return None
    return 1.0 if max(values) <= 1 else 100.0 if max(values) <= 100 else None


def standard_error(score: Score, scale: float) -> float:
    share = score.value / scale
    return scale * sqrt(max(share * (1 - share), 0.0) / score.samples)


def find_regressions(scores: Sequence[Score], scale: float | None) -> dict[int, Regression]:
    """The regressions by step. `scores` is sorted by step. Empty if the sampling error is unknown."""
    if scale is None:
        return {}
    found = {}
    for before, after in pairwise(scores):
        margin = MIN_ERRORS * sqrt(standard_error(before, scale) ** 2 + standard_error(after, scale) ** 2)
        if before.value - after.value > margin:
            found[after.step] = Regression(since_step=before.step, drop=before.value - after.value, margin=margin)
    return found
