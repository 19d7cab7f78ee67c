"""Detects a loss that jumps and stays high, or that becomes NaN or infinite. Pure.

The baseline is the median of the last accepted values, with the median absolute deviation as spread. A value far above
it is counted but not accepted, so a spike never becomes the baseline. A loss that returns within `PATIENCE_STEPS` was a
data spike and not a failure. Mixed precision skips a step whose gradients overflow, so an infinite gradient norm is a
failure only if it persists (`MIN_OVERFLOW_STEPS`); a non-finite loss is one on its second step.
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
MIN_RELATIVE_JUMP = 0.05  # of the baseline, so that a very steady loss does not raise alarms at tiny changes
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
    """One metric: its baseline, and how many values in a row were far above it."""

    def __init__(self) -> None:
        self._baseline: deque[float] = deque(maxlen=BASELINE_WINDOW)
        self.first: LossPoint | None = None
        self.above = 0
        self.limit = math.inf

    def see(self, value: float, point: LossPoint) -> None:
        if len(self._baseline) >= MIN_BASELINE_VALUES:
            middle = median(self._baseline)
            # 1.4826 turns the median absolute deviation into a standard deviation of normal noise
            spread = 1.4826 * median(abs(known - middle) for known in self._baseline)
            self.limit = middle + max(SPREAD_FACTOR * spread, MIN_RELATIVE_JUMP * abs(middle))
        if value <= self.limit:
            self.above, self.first = 0, None
            self._baseline.append(value)
        else:
            self.first = self.first or point
            self.above += 1


class LossDetector:
    def __init__(self) -> None:
        self._loss, self._norm = MetricSeries(), MetricSeries()
        self._nans: list[LossPoint] = []
        self._overflows: list[LossPoint] = []
        self._has_open_finding = False

    def see(self, point: LossPoint) -> DetectorFinding | None:
        """Add a point. Returns a finding once per episode; the next one only after the metric has recovered."""
        finding = self._current_finding(point)
        was_open, self._has_open_finding = self._has_open_finding, finding is not None
        return None if was_open else finding

    @property
    def has_open_finding(self) -> bool:
        """Whether the last reported problem still persists."""
        return self._has_open_finding

    def _current_finding(self, point: LossPoint) -> DetectorFinding | None:
        self._nans = _nonfinite_run(self._nans, point, point.loss)
        self._overflows = _nonfinite_run(self._overflows, point, point.grad_norm)
        for series, value in ((self._loss, point.loss), (self._norm, point.grad_norm)):
            if value is not None and math.isfinite(value):
                series.see(value, point)
        if len(self._nans) >= MIN_NAN_STEPS:
            return _loss_finding(SymptomType.NAN, self._nans[0], point, "The loss is NaN or infinite")
        if len(self._overflows) >= MIN_OVERFLOW_STEPS:
            return _loss_finding(SymptomType.NAN, self._overflows[0], point, "The gradient norm is NaN or infinite")
        # A high gradient norm alone is not a failure; it only halves the patience with a high loss
        patience = PATIENCE_STEPS // 2 if self._norm.above >= PATIENCE_STEPS // 2 else PATIENCE_STEPS
        if self._loss.first and self._loss.above >= patience:
            first, limit = self._loss.first, self._loss.limit
            return _loss_finding(SymptomType.LOSS_SPIKE, first, point, f"The loss has stayed above {limit:.4g}")
        return None


def _nonfinite_run(before: list[LossPoint], point: LossPoint, value: float | None) -> list[LossPoint]:
    """The points of the current run of non-finite values; empty after a finite one."""
    if value is None:
        return before
    return [] if math.isfinite(value) else [*before[: MIN_OVERFLOW_STEPS - 1], point]


def _loss_finding(symptom: SymptomType, first: LossPoint, last: LossPoint, why: str) -> DetectorFinding:
    steps = f"{first.step}-{last.step}"
    return DetectorFinding(symptom=symptom, since=first.at, subject=steps, why=f"{why} since step {first.step}.")


def loss_findings(points: Iterable[LossPoint]) -> list[DetectorFinding]:
    """All findings of a series."""
    detector = LossDetector()
    return [finding for point in points if (finding := detector.see(point))]
