"""A loss that jumps and does not come back, or is no number any more. Pure.

The usual is the median of the last accepted values, and their spread the median deviation; a value far above it is
counted and never accepted, so a spike does not become the usual. One that comes back within `PATIENCE` steps was a
spike of the data, and no failure. Mixed precision skips a step whose gradients overflow: an infinite norm alone is a
failure only when it stays; a loss that is no number, when it is not one twice.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from failures.detection.findings import DetectorFinding, SymptomType

BASELINE_WINDOW = 128
MIN_BASELINE_VALUES = 32
SPREAD_FACTOR = 8.0
MIN_RELATIVE_JUMP = 0.05  # of the usual: a very steady loss is not held to its own steadiness
PATIENCE_STEPS = 32
MIN_NAN_STEPS = 2
MIN_OVERFLOW_STEPS = 20


@dataclass(frozen=True, kw_only=True)
class LossPoint:
    step: int
    at: float
    loss: float | None = None
    grad_norm: float | None = None


class MetricSeries:
    """One measure: how many values in a row were far above the usual."""

    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=BASELINE_WINDOW)
        self.first: LossPoint | None = None
        self.above = 0
        self.limit = math.inf

    def see(self, value: float, point: LossPoint) -> None:
        if len(self._usual) >= MIN_BASELINE_VALUES:
            middle = median(self._usual)
            spread = 1.4826 * median(abs(one - middle) for one in self._usual)
            self.limit = middle + max(SPREAD_FACTOR * spread, MIN_RELATIVE_JUMP * abs(middle))
        if value <= self.limit:
            self.above, self.first = 0, None
            self._usual.append(value)
        else:
            self.first = self.first or point
            self.above += 1


class LossDetector:
    def __init__(self) -> None:
        self._loss, self._norm = MetricSeries(), MetricSeries()
        self._nans: list[LossPoint] = []
        self._overflows: list[LossPoint] = []
        self._told = False

    def see(self, point: LossPoint) -> DetectorFinding | None:
        """One finding until the measure is back."""
        found = self._current_finding(point)
        told, self._told = self._told, found is not None
        return None if told else found

    @property
    def has_open_finding(self) -> bool:
        """What was told last has not passed."""
        return self._told

    def _current_finding(self, point: LossPoint) -> DetectorFinding | None:
        self._nans = _nonfinite_run(self._nans, point, point.loss)
        self._overflows = _nonfinite_run(self._overflows, point, point.grad_norm)
        for series, value in ((self._loss, point.loss), (self._norm, point.grad_norm)):
            if value is not None and math.isfinite(value):
                series.see(value, point)
        if len(self._nans) >= MIN_NAN_STEPS:
            return _loss_finding(SymptomType.NAN, self._nans[0], point, "The loss is not a number")
        if len(self._overflows) >= MIN_OVERFLOW_STEPS:
            return _loss_finding(SymptomType.NAN, self._overflows[0], point, "The norm of the gradients is not finite")
        # The norm alone may wander; it only shortens the patience with a loss that is high
        patience = PATIENCE_STEPS // 2 if self._norm.above >= PATIENCE_STEPS // 2 else PATIENCE_STEPS
        if self._loss.first and self._loss.above >= patience:
            first, limit = self._loss.first, self._loss.limit
            return _loss_finding(
                SymptomType.LOSS_SPIKE, first, point, f"The loss is above {limit:.4g} and does not come back"
            )
        return None


def _nonfinite_run(before: list[LossPoint], point: LossPoint, value: float | None) -> list[LossPoint]:
    if value is None:
        return before
    return [] if math.isfinite(value) else [*before[: MIN_OVERFLOW_STEPS - 1], point]


def _loss_finding(symptom: SymptomType, first: LossPoint, last: LossPoint, why: str) -> DetectorFinding:
    steps = f"{first.step}-{last.step}"
    return DetectorFinding(symptom=symptom, since=first.at, subject=steps, why=f"{why}, from step {first.step} on.")


def loss_findings(points: Iterable[LossPoint]) -> list[DetectorFinding]:
    watch = LossDetector()
    return [found for point in points if (found := watch.see(point))]
