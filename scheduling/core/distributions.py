"""Distributions of times as weighted values, and what past predictions say about the error of a new one. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

NEAREST = 256  # past predictions that are compared with a new one; fewer would often be of one busy hour
LEVELS = [(level + 0.5) / 40 for level in range(40)]
P90_SIGMAS = NormalDist().inv_cdf(0.9)


@dataclass(frozen=True, eq=False)
class Distribution:
    """Values in ascending order, and the probability of each. All are seconds."""

    values: Floats
    weights: Floats

    @staticmethod
    def of(values: ArrayLike, weights: ArrayLike | None = None) -> Distribution:
        """Equally likely values, or values with weights of any sum."""
        unordered = np.asarray(values, dtype=np.float64)
        order = np.argsort(unordered, kind="stable")
        shares = np.ones(len(unordered)) if weights is None else np.asarray(weights, dtype=np.float64)[order]
        return Distribution(unordered[order], shares / shares.sum())

    @staticmethod
    def mixture(parts: Iterable[tuple[Distribution, float]]) -> Distribution:
        """One of the distributions, with probabilities in proportion to the weights."""
        known = [(part, weight) for part, weight in parts if weight > 0]
        values = np.concatenate([part.values for part, _ in known])
        return Distribution.of(values, np.concatenate([part.weights * weight for part, weight in known]))

    @staticmethod
    def log_normal(median: float, sigma: float) -> Distribution:
        normal = NormalDist(math.log(max(1.0, median)), max(1e-6, sigma))
        return Distribution.of([math.exp(min(60.0, normal.inv_cdf(level))) for level in LEVELS])

    def at_most(self, limits: ArrayLike) -> Floats:
        """The probability that the value is at most each of the limits."""
        sums = np.concatenate(([0.0], np.cumsum(self.weights)))
        shares: Floats = np.minimum(1.0, sums[np.searchsorted(self.values, limits, side="right")])
        return shares

    def quantile(self, level: float) -> float:
        """The smallest value that is not exceeded with this probability."""
        at = int(np.searchsorted(np.cumsum(self.weights), level - 1e-9))
        return float(self.values[min(at, len(self.values) - 1)])

    def scaled(self, factor: float) -> Distribution:
        return self if factor == 1.0 else Distribution(self.values * factor, self.weights)

    def bounded(self, limit: float) -> Distribution:
        return Distribution(np.minimum(self.values, limit), self.weights)

    def remaining_after(self, past: float) -> Distribution | None:
        """What remains after this time, given that the value is longer; None if it cannot be."""
        longer = self.values > past
        if not longer.any():
            return None
        return Distribution(self.values[longer] - past, self.weights[longer] / self.weights[longer].sum())


def chance_of_sum(first: Distribution, second: Distribution, limit: float) -> float:
    """The probability that the sum of two independent values is at most the limit."""
    return float(first.weights @ second.at_most(limit - first.values))


class PastPredictions:
    """Predictions whose outcome is known. The error of a new one is expected to be that of the past ones nearest to it.

    Times are compared as ratios, after `floor_s` is added to both: near zero, seconds count and not factors. Nearest in
    the predicted time, because long predictions are more often too long than short ones, and in size, if it is given.
    """

    def __init__(self, pairs: Sequence[tuple[float, float]], floor_s: float, sizes: Sequence[float] = ()) -> None:
        """`pairs` are predicted and actual times. Sizes are compared as ratios too."""
        table = np.array(pairs, dtype=np.float64).reshape(-1, 2) + floor_s
        self._floor_s = floor_s
        self._ratios = table[:, 1] / table[:, 0]
        self._logs = np.log(table[:, 0])
        self._size_logs = np.log(np.maximum(1.0, sizes)) if len(sizes) else np.zeros(len(table))

    def __len__(self) -> int:
        return len(self._ratios)

    def actual_times(self, predicted_s: float, size: float = 1.0) -> Floats:
        """What the predicted time would turn out to be with the error of each of the nearest past predictions."""
        scaled = max(0.0, predicted_s) + self._floor_s
        distance = np.hypot(self._logs - math.log(scaled), self._size_logs - math.log(max(1.0, size)))
        nearest = np.argsort(distance, kind="stable")[:NEAREST]
        times: Floats = np.maximum(0.0, self._ratios[nearest] * scaled - self._floor_s)
        return times
