"""Detects steps that take longer than their batch explains. Pure.

A step of N tokens in sequences of lengths l is predicted to take alpha x N + beta x sum(l^2), so that long sequences do
not raise alarms. Both are fitted on the job's own steps, on relative errors and robustly (least absolute deviations by
reweighting), over a window of steps that were as predicted. The fit therefore follows slow drift but never learns a
slowdown as the new baseline. A job that does not report its batches is predicted by its median step.

Without reported lengths, a batch of longer sequences looks exactly like a slower machine. Such a job is judged only
while its batches are alike in tokens and in time (`is_baseline_reliable`). A job with sequences of one length is
judged; a job that packs documents and does not report their squared lengths is left to the comparison of its ranks
(`slow_ranks`). A smooth past is no proof: of the jobs whose tokens vary, one in eight met longer sequences later and
was reported wrongly.

There are two thresholds, and a single pause (a save, a garbage collection) reaches neither:
  large   more than 25% over the prediction, as the median of the last 8 steps
  small   more than 12% and far beyond the job's own noise, as the median of the last 64 steps
A batch whose mean length is far outside the known range is learned from and not judged, because equal batches cannot
separate alpha from beta; a slowdown that begins together with such batches is found late. After a finding, the next one
is possible only after the pace was as predicted again.

Cost: one comparison with two short medians per step; every 32 steps, 12 passes over at most 256 rows of two columns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from failures.detection.findings import DetectorFinding, SymptomType

LARGE_EXCESS, LARGE_EXCESS_STEPS = 0.25, 8
SMALL_EXCESS, SMALL_EXCESS_STEPS = 0.12, 64
NOISE_FACTOR = 8.0  # in standard errors of the median
NORMAL_EXCESS = 0.10  # up to here a step counts as predicted
WARMUP_STEPS = 5
MIN_FIT_STEPS = 32
FIT_WINDOW = 256
REFIT_EVERY_STEPS = 32
FIT_ITERATIONS = 12
SEQUENCE_LENGTH_TOLERANCE = 1.25  # how far outside the known batches a prediction is trusted
MAX_STEADY_NOISE = 0.035  # above this the batches of a job are not alike
MAX_TOKEN_RATIO = 1.02  # largest batch by smallest batch, in tokens

FloatColumns = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class StepTiming:
    at: float
    seconds: float
    tokens: float = 1.0
    squares: float = 0.0  # sum of the squared sequence lengths; 0 means not reported


def steps_outside(steps: Iterable[StepTiming], times: Sequence[tuple[float, float]]) -> list[StepTiming]:
    """The steps that do not overlap any of these times, in which they were slowed down on purpose."""
    return [
        step
        for step in steps
        if not any(began <= step.at and step.at - step.seconds <= ended for began, ended in times)
    ]


@dataclass(frozen=True, kw_only=True)
class StepTimeBaseline:
    alpha: float
    beta: float
    noise: float  # standard deviation of the relative error

    def predict_seconds(self, step: StepTiming) -> float:
        return self.alpha * step.tokens + self.beta * step.squares


def fit(steps: Sequence[StepTiming]) -> StepTimeBaseline:
    """A robust fit of alpha and beta: up to a third of the steps may be outliers."""
    took = np.array([step.seconds for step in steps])
    work = np.array([(step.tokens, step.squares) for step in steps]) / took[:, None]
    scale = np.abs(work).max(axis=0)
    scale[scale == 0] = 1
    work /= scale
    weights = np.ones(len(steps))
    for _ in range(FIT_ITERATIONS):
        coefficients = _least_squares(work, weights)
        weights = 1 / np.maximum(np.abs(work @ coefficients - 1), 0.01)
    errors = np.abs(work @ coefficients - 1)
    alpha, beta = coefficients / scale
    return StepTimeBaseline(alpha=float(alpha), beta=float(beta), noise=float(1.4826 * np.median(errors)))


def _least_squares(work: FloatColumns, weights: FloatColumns) -> FloatColumns:
    """Non-negative coefficients that best explain 1 by the two columns: no batch makes a step shorter."""
    root = np.sqrt(weights)
    coefficients = np.linalg.lstsq(work * root[:, None], root, rcond=None)[0]
    if coefficients.min() >= 0:
        return coefficients
    keep = int(np.argmax(coefficients))  # the other column would be negative: fit this one alone
    column = work[:, keep]
    alone = np.zeros(2)
    alone[keep] = (weights * column).sum() / (weights * column * column).sum()
    return alone


def _mean_sequence_length(step: StepTiming) -> float:
    """The token-weighted mean length of its sequences; its tokens if the lengths are not reported."""
    return step.squares / step.tokens if step.squares and step.tokens > 0 else step.tokens


def is_baseline_reliable(steps: Sequence[StepTiming], baseline: StepTimeBaseline) -> bool:
    """Whether the reported batches are enough to distinguish a longer batch from a slower machine."""
    if all(step.squares > 0 for step in steps):
        return True
    sizes, edge = sorted(step.tokens for step in steps), len(steps) // 20  # without the outer 5% on each side
    return baseline.noise <= MAX_STEADY_NOISE and sizes[-1 - edge] <= MAX_TOKEN_RATIO * sizes[edge]


class SlowStepDetector:
    """Judges the steps of one attempt as they come. Independent of clock and database."""

    def __init__(self) -> None:
        self.baseline: StepTimeBaseline | None = None
        self._step_count = 0
        self._known: deque[StepTiming] = deque(maxlen=FIT_WINDOW)
        self._excess: deque[float] = deque(maxlen=SMALL_EXCESS_STEPS)
        self._since_fit = 0
        self._length_range = 0.0, 0.0
        self._is_slow = False
        self._is_reliable = False

    @property
    def is_predictable(self) -> bool:
        """Whether its steps can be judged at all."""
        return self._is_reliable

    @property
    def is_slow(self) -> bool:
        """Whether the last reported slowdown still persists."""
        return self._is_slow

    @property
    def recent_excess(self) -> float:
        """The fraction by which the newest steps exceed the prediction."""
        return median(list(self._excess)[-LARGE_EXCESS_STEPS:]) if self._excess else 0.0

    def see(self, step: StepTiming) -> DetectorFinding | None:
        """Add a step. Returns a finding once per slowdown."""
        self._step_count += 1
        if self._step_count <= WARMUP_STEPS or step.seconds <= 0:
            return None
        if self.baseline is None:
            self._update_baseline(step, MIN_FIT_STEPS)
            return None
        predicted = self.baseline.predict_seconds(step)
        if predicted <= 0:
            return None
        if not (self._is_reliable and self._is_known_batch_shape(step)):
            if not self._is_slow:
                self._update_baseline(step, REFIT_EVERY_STEPS)
            return None
        excess = step.seconds / predicted - 1
        self._excess.append(excess)
        if abs(excess) < max(NORMAL_EXCESS, 3 * self.baseline.noise) and not self._is_slow:
            self._update_baseline(step, REFIT_EVERY_STEPS)
        return self._new_finding(step, predicted)

    def _is_known_batch_shape(self, step: StepTiming) -> bool:
        low, high = self._length_range
        return low / SEQUENCE_LENGTH_TOLERANCE <= _mean_sequence_length(step) <= high * SEQUENCE_LENGTH_TOLERANCE

    def _update_baseline(self, step: StepTiming, every: int) -> None:
        self._known.append(step)
        self._since_fit += 1
        if self._since_fit >= every:
            known = list(self._known)
            self.baseline, self._since_fit = fit(known), 0
            self._is_reliable = is_baseline_reliable(known, self.baseline)
            lengths = sorted(_mean_sequence_length(past) for past in self._known)
            self._length_range = lengths[len(lengths) // 20], lengths[-1 - len(lengths) // 20]

    def _new_finding(self, step: StepTiming, predicted: float) -> DetectorFinding | None:
        slowdown = self._significant_slowdown()
        if slowdown is None:
            self._is_slow = self._is_slow and median(list(self._excess)[-LARGE_EXCESS_STEPS:]) > NORMAL_EXCESS
            return None
        if self._is_slow:
            return None
        self._is_slow = True
        return DetectorFinding(
            symptom=SymptomType.SLOW,
            since=step.at,
            observed=step.seconds,
            expected=predicted,
            why=_slowdown_message(slowdown),
        )

    def _significant_slowdown(self) -> float | None:
        """The excess as a fraction if one of the two thresholds is reached."""
        excess = list(self._excess)
        if len(excess) >= LARGE_EXCESS_STEPS and (recent := median(excess[-LARGE_EXCESS_STEPS:])) > LARGE_EXCESS:
            return recent
        noise = self.baseline.noise if self.baseline else 0.0
        significant = NOISE_FACTOR * 1.2533 * noise / SMALL_EXCESS_STEPS**0.5  # 1.2533: standard error of a median
        if len(excess) == SMALL_EXCESS_STEPS and (overall := median(excess)) > max(SMALL_EXCESS, significant):
            return overall
        return None


@dataclass(frozen=True, kw_only=True)
class SlowStepResult:
    finding: DetectorFinding | None
    can_tell: bool  # False: the steps prove nothing either way


def evaluate_steps(steps: Iterable[StepTiming]) -> SlowStepResult:
    """The finding that still holds at the end of a series, dated to the first of the steps that showed it."""
    detector, latest, recent = SlowStepDetector(), None, deque[float](maxlen=LARGE_EXCESS_STEPS)
    for step in steps:
        recent.append(step.at)
        if finding := detector.see(step):
            latest = replace(finding, since=recent[0])
    current = replace(latest, why=_slowdown_message(detector.recent_excess)) if latest and detector.is_slow else None
    return SlowStepResult(finding=current, can_tell=detector.is_predictable)


def _slowdown_message(part: float) -> str:
    return f"Steps take {part:.0%} longer than expected for their batches."
