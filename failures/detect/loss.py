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

from failures.detect.findings import Finding, Symptom

WINDOW = 128
ENOUGH = 32
SPREADS = 8.0
LEAST = 0.05  # of the usual: a very steady loss is not held to its own steadiness
PATIENCE = 32
NANS = 2
OVERFLOWS = 20


@dataclass(frozen=True, kw_only=True)
class Point:
    step: int
    at: float
    loss: float | None = None
    grad_norm: float | None = None


class Series:
    """One measure: how many values in a row were far above the usual."""

    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=WINDOW)
        self.first: Point | None = None
        self.above = 0
        self.limit = math.inf

    def see(self, value: float, point: Point) -> None:
        if len(self._usual) >= ENOUGH:
            middle = median(self._usual)
            spread = 1.4826 * median(abs(one - middle) for one in self._usual)
            self.limit = middle + max(SPREADS * spread, LEAST * abs(middle))
        if value <= self.limit:
            self.above, self.first = 0, None
            self._usual.append(value)
        else:
            self.first = self.first or point
            self.above += 1


class Watch:
    def __init__(self) -> None:
        self._loss, self._norm = Series(), Series()
        self._nans: list[Point] = []
        self._overflows: list[Point] = []
        self._told = False

    def see(self, point: Point) -> Finding | None:
        """One finding until the measure is back."""
        found = self._judge(point)
        told, self._told = self._told, found is not None
        return None if told else found

    @property
    def is_in_trouble(self) -> bool:
        """What was told last has not passed."""
        return self._told

    def _judge(self, point: Point) -> Finding | None:
        self._nans = _in_a_row(self._nans, point, point.loss)
        self._overflows = _in_a_row(self._overflows, point, point.grad_norm)
        for series, value in ((self._loss, point.loss), (self._norm, point.grad_norm)):
            if value is not None and math.isfinite(value):
                series.see(value, point)
        if len(self._nans) >= NANS:
            return _finding(Symptom.NAN, self._nans[0], point, "The loss is not a number")
        if len(self._overflows) >= OVERFLOWS:
            return _finding(Symptom.NAN, self._overflows[0], point, "The norm of the gradients is not finite")
        # The norm alone may wander; it only shortens the patience with a loss that is high
        patience = PATIENCE // 2 if self._norm.above >= PATIENCE // 2 else PATIENCE
        if self._loss.first and self._loss.above >= patience:
            first, limit = self._loss.first, self._loss.limit
            return _finding(Symptom.LOSS_SPIKE, first, point, f"The loss is above {limit:.4g} and does not come back")
        return None


def _in_a_row(before: list[Point], point: Point, value: float | None) -> list[Point]:
    if value is None:
        return before
    return [] if math.isfinite(value) else [*before[: OVERFLOWS - 1], point]


def _finding(symptom: Symptom, first: Point, last: Point, why: str) -> Finding:
    steps = f"{first.step}-{last.step}"
    return Finding(symptom=symptom, since=first.at, subject=steps, why=f"{why}, from step {first.step} on.")


def trouble(points: Iterable[Point]) -> list[Finding]:
    watch = Watch()
    return [found for point in points if (found := watch.see(point))]
