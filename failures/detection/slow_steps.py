"""Steps that take longer than their batch explains. Pure.

A step of N tokens in sequences of lengths l is predicted as alpha x N + beta x sum(l^2), so that long sequences raise
no alarm. Both are fitted on the job's own steps, in relative errors and without trust in outliers (least absolute
deviations by reweighting), over a window of steps that were as predicted: it follows slow drift, and never learns a
slowdown as the new usual. A job that tells nothing of its batches is predicted by its median.

Where the lengths are not told, a batch of longer sequences looks exactly like a slower machine. So of such a job
something is said only while its batches are alike, by their tokens and by the time they take (`fits`): who trains on
sequences of one length is judged, who packs documents and does not tell their squares is left to the comparison of his
ranks. A smooth past proves nothing: of jobs whose tokens vary, one in eight met longer sequences later, and was blamed.

Two ways to be slow, both of which a single pause (a save, a collection of garbage) leaves alone:
  loud   more than 25 % over the prediction, the median of the last 8 steps
  quiet  more than 12 % and far beyond the job's own noise, the median of the last 64
A batch of another make than those known (the mean length far outside of theirs) is learned from and not judged: from
equal batches nobody can tell alpha from beta; so a slowdown that begins together with such batches is found late.
After a finding the next one comes only when the pace had been as predicted again.

A step costs one comparison with two short medians; every 32 steps 12 passes over at most 256 rows of two columns.
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
NOISE_FACTOR = 8.0  # standard errors of the median
NORMAL_EXCESS = 0.10  # what still counts as predicted
WARMUP_STEPS = 5
MIN_FIT_STEPS = 32
FIT_WINDOW = 256
REFIT_EVERY_STEPS = 32
FIT_ITERATIONS = 12
SEQUENCE_LENGTH_TOLERANCE = 1.25  # how far outside of the known batches a prediction is trusted
MAX_STEADY_NOISE = 0.035  # noise of a job whose batches are alike
MAX_TOKEN_RATIO = 1.02  # the largest of them by the smallest, in tokens

FloatColumns = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class StepTiming:
    at: float
    seconds: float
    tokens: float = 1.0
    squares: float = 0.0  # sum of the squared lengths of its sequences


@dataclass(frozen=True, kw_only=True)
class StepTimeBaseline:
    alpha: float
    beta: float
    noise: float  # relative, as a standard deviation

    def predict_seconds(self, step: StepTiming) -> float:
        return self.alpha * step.tokens + self.beta * step.squares


def fit(steps: Sequence[StepTiming]) -> StepTimeBaseline:
    """Robust: up to a third of the steps may be anything."""
    took = np.array([step.seconds for step in steps])
    work = np.array([(step.tokens, step.squares) for step in steps]) / took[:, None]
    scale = np.abs(work).max(axis=0)
    scale[scale == 0] = 1
    work /= scale
    weights = np.ones(len(steps))
    for _ in range(FIT_ITERATIONS):
        found = _least_squares(work, weights)
        weights = 1 / np.maximum(np.abs(work @ found - 1), 0.01)
    off = np.abs(work @ found - 1)
    alpha, beta = found / scale
    return StepTimeBaseline(alpha=float(alpha), beta=float(beta), noise=float(1.4826 * np.median(off)))


def _least_squares(work: FloatColumns, weights: FloatColumns) -> FloatColumns:
    """Of 1 by the columns, with coefficients that are not negative: no batch makes a step shorter."""
    root = np.sqrt(weights)
    found = np.linalg.lstsq(work * root[:, None], root, rcond=None)[0]
    if found.min() >= 0:
        return found
    keep = int(np.argmax(found))
    column = work[:, keep]
    alone = np.zeros(2)
    alone[keep] = (weights * column).sum() / (weights * column * column).sum()
    return alone


def _mean_sequence_length(step: StepTiming) -> float:
    """The mean length of its sequences, by their tokens; where that is not told, its tokens."""
    return step.squares / step.tokens if step.squares and step.tokens > 0 else step.tokens


def is_baseline_reliable(steps: Sequence[StepTiming], baseline: StepTimeBaseline) -> bool:
    """Whether what a job tells of its batches is enough to tell a longer batch from a slower machine."""
    if all(step.squares > 0 for step in steps):
        return True
    sizes, edge = sorted(step.tokens for step in steps), len(steps) // 20
    return baseline.noise <= MAX_STEADY_NOISE and sizes[-1 - edge] <= MAX_TOKEN_RATIO * sizes[edge]


class SlowStepDetector:
    """One attempt, step by step. Values in, a finding out: it knows no clock and no database."""

    def __init__(self) -> None:
        self.baseline: StepTimeBaseline | None = None
        self._seen = 0
        self._known: deque[StepTiming] = deque(maxlen=FIT_WINDOW)
        self._over: deque[float] = deque(maxlen=SMALL_EXCESS_STEPS)
        self._since_fit = 0
        self._makes = 0.0, 0.0
        self._told = False
        self._fits = False

    @property
    def is_predictable(self) -> bool:
        """Its steps explain themselves well enough to be judged."""
        return self._fits

    @property
    def is_slow(self) -> bool:
        """It was said, and has not passed."""
        return self._told

    @property
    def recent_excess(self) -> float:
        """By which part the newest steps took longer than predicted."""
        return median(list(self._over)[-LARGE_EXCESS_STEPS:]) if self._over else 0.0

    def see(self, step: StepTiming) -> DetectorFinding | None:
        self._seen += 1
        if self._seen <= WARMUP_STEPS or step.seconds <= 0:
            return None
        if self.baseline is None:
            self._update_baseline(step, MIN_FIT_STEPS)
            return None
        predicted = self.baseline.predict_seconds(step)
        if predicted <= 0:
            return None
        if not (self._fits and self._is_known_batch_shape(step)):
            if not self._told:
                self._update_baseline(step, REFIT_EVERY_STEPS)
            return None
        over = step.seconds / predicted - 1
        self._over.append(over)
        if abs(over) < max(NORMAL_EXCESS, 3 * self.baseline.noise) and not self._told:
            self._update_baseline(step, REFIT_EVERY_STEPS)
        return self._new_finding(step, predicted)

    def _is_known_batch_shape(self, step: StepTiming) -> bool:
        low, high = self._makes
        return low / SEQUENCE_LENGTH_TOLERANCE <= _mean_sequence_length(step) <= high * SEQUENCE_LENGTH_TOLERANCE

    def _update_baseline(self, step: StepTiming, every: int) -> None:
        self._known.append(step)
        self._since_fit += 1
        if self._since_fit >= every:
            known = list(self._known)
            self.baseline, self._since_fit = fit(known), 0
            self._fits = is_baseline_reliable(known, self.baseline)
            makes = sorted(_mean_sequence_length(one) for one in self._known)
            self._makes = makes[len(makes) // 20], makes[-1 - len(makes) // 20]

    def _new_finding(self, step: StepTiming, predicted: float) -> DetectorFinding | None:
        how_much = self._significant_slowdown()
        if how_much is None:
            self._told = self._told and median(list(self._over)[-LARGE_EXCESS_STEPS:]) > NORMAL_EXCESS
            return None
        if self._told:
            return None
        self._told = True
        return DetectorFinding(
            symptom=SymptomType.SLOW,
            since=step.at,
            observed=step.seconds,
            expected=predicted,
            why=_slowdown_message(how_much),
        )

    def _significant_slowdown(self) -> float | None:
        over = list(self._over)
        if len(over) >= LARGE_EXCESS_STEPS and (loud := median(over[-LARGE_EXCESS_STEPS:])) > LARGE_EXCESS:
            return loud
        noise = self.baseline.noise if self.baseline else 0.0
        sure = NOISE_FACTOR * 1.2533 * noise / SMALL_EXCESS_STEPS**0.5
        if len(over) == SMALL_EXCESS_STEPS and (quiet := median(over)) > max(SMALL_EXCESS, sure):
            return quiet
        return None


@dataclass(frozen=True, kw_only=True)
class SlowStepResult:
    finding: DetectorFinding | None
    can_tell: bool  # False: its steps say nothing either way


def evaluate_steps(steps: Iterable[StepTiming]) -> SlowStepResult:
    """The finding that still holds at the end of a series, since the first of the steps that showed it."""
    watch, found, recent = SlowStepDetector(), None, deque[float](maxlen=LARGE_EXCESS_STEPS)
    for step in steps:
        recent.append(step.at)
        if one := watch.see(step):
            found = replace(one, since=recent[0])
    lasts = replace(found, why=_slowdown_message(watch.recent_excess)) if found and watch.is_slow else None
    return SlowStepResult(finding=lasts, can_tell=watch.is_predictable)


def _slowdown_message(part: float) -> str:
    return f"Its steps take {part:.0%} longer than their batches explain."


def slow_step_findings(steps: Iterable[StepTiming]) -> list[DetectorFinding]:
    """All findings of a series."""
    watch = SlowStepDetector()
    return [found for step in steps if (found := watch.see(step))]
