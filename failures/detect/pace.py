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

from failures.detect.findings import Finding, Symptom

LOUD, LOUD_STEPS = 0.25, 8
QUIET, QUIET_STEPS = 0.12, 64
BEYOND_NOISE = 8.0  # standard errors of the median
USUAL = 0.10  # what still counts as predicted
FIRST = 5
ENOUGH = 32
WINDOW = 256
REFIT = 32
PASSES = 12
MAKE = 1.25  # how far outside of the known batches a prediction is trusted
STEADY = 0.035  # noise of a job whose batches are alike
ALIKE = 1.02  # the largest of them by the smallest, in tokens

Columns = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class Step:
    at: float
    seconds: float
    tokens: float = 1.0
    squares: float = 0.0  # sum of the squared lengths of its sequences


@dataclass(frozen=True, kw_only=True)
class Baseline:
    alpha: float
    beta: float
    noise: float  # relative, as a standard deviation

    def predicted(self, step: Step) -> float:
        return self.alpha * step.tokens + self.beta * step.squares


def fit(steps: Sequence[Step]) -> Baseline:
    """Robust: up to a third of the steps may be anything."""
    took = np.array([step.seconds for step in steps])
    work = np.array([(step.tokens, step.squares) for step in steps]) / took[:, None]
    scale = np.abs(work).max(axis=0)
    scale[scale == 0] = 1
    work /= scale
    weights = np.ones(len(steps))
    for _ in range(PASSES):
        found = _least_squares(work, weights)
        weights = 1 / np.maximum(np.abs(work @ found - 1), 0.01)
    off = np.abs(work @ found - 1)
    alpha, beta = found / scale
    return Baseline(alpha=float(alpha), beta=float(beta), noise=float(1.4826 * np.median(off)))


def _least_squares(work: Columns, weights: Columns) -> Columns:
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


def _make(step: Step) -> float:
    """The mean length of its sequences, by their tokens; where that is not told, its tokens."""
    return step.squares / step.tokens if step.squares and step.tokens > 0 else step.tokens


def fits(steps: Sequence[Step], baseline: Baseline) -> bool:
    """Whether what a job tells of its batches is enough to tell a longer batch from a slower machine."""
    if all(step.squares > 0 for step in steps):
        return True
    sizes, edge = sorted(step.tokens for step in steps), len(steps) // 20
    return baseline.noise <= STEADY and sizes[-1 - edge] <= ALIKE * sizes[edge]


class Watch:
    """One attempt, step by step. Values in, a finding out: it knows no clock and no database."""

    def __init__(self) -> None:
        self.baseline: Baseline | None = None
        self._seen = 0
        self._known: deque[Step] = deque(maxlen=WINDOW)
        self._over: deque[float] = deque(maxlen=QUIET_STEPS)
        self._since_fit = 0
        self._makes = 0.0, 0.0
        self._told = False
        self._fits = False

    @property
    def can_tell(self) -> bool:
        """Its steps explain themselves well enough to be judged."""
        return self._fits

    @property
    def is_slow(self) -> bool:
        """It was said, and has not passed."""
        return self._told

    @property
    def excess(self) -> float:
        """By which part the newest steps took longer than predicted."""
        return median(list(self._over)[-LOUD_STEPS:]) if self._over else 0.0

    def see(self, step: Step) -> Finding | None:
        self._seen += 1
        if self._seen <= FIRST or step.seconds <= 0:
            return None
        if self.baseline is None:
            self._learn(step, ENOUGH)
            return None
        predicted = self.baseline.predicted(step)
        if predicted <= 0:
            return None
        if not (self._fits and self._known_make(step)):
            if not self._told:
                self._learn(step, REFIT)
            return None
        over = step.seconds / predicted - 1
        self._over.append(over)
        if abs(over) < max(USUAL, 3 * self.baseline.noise) and not self._told:
            self._learn(step, REFIT)
        return self._judge(step, predicted)

    def _known_make(self, step: Step) -> bool:
        low, high = self._makes
        return low / MAKE <= _make(step) <= high * MAKE

    def _learn(self, step: Step, every: int) -> None:
        self._known.append(step)
        self._since_fit += 1
        if self._since_fit >= every:
            known = list(self._known)
            self.baseline, self._since_fit = fit(known), 0
            self._fits = fits(known, self.baseline)
            makes = sorted(_make(one) for one in self._known)
            self._makes = makes[len(makes) // 20], makes[-1 - len(makes) // 20]

    def _judge(self, step: Step, predicted: float) -> Finding | None:
        how_much = self._how_slow()
        if how_much is None:
            self._told = self._told and median(list(self._over)[-LOUD_STEPS:]) > USUAL
            return None
        if self._told:
            return None
        self._told = True
        return Finding(
            symptom=Symptom.SLOW,
            since=step.at,
            observed=step.seconds,
            expected=predicted,
            why=_longer(how_much),
        )

    def _how_slow(self) -> float | None:
        over = list(self._over)
        if len(over) >= LOUD_STEPS and (loud := median(over[-LOUD_STEPS:])) > LOUD:
            return loud
        noise = self.baseline.noise if self.baseline else 0.0
        sure = BEYOND_NOISE * 1.2533 * noise / QUIET_STEPS**0.5
        if len(over) == QUIET_STEPS and (quiet := median(over)) > max(QUIET, sure):
            return quiet
        return None


@dataclass(frozen=True, kw_only=True)
class Judged:
    finding: Finding | None
    can_tell: bool  # False: its steps say nothing either way


def judged(steps: Iterable[Step]) -> Judged:
    """The finding that still holds at the end of a series, since the first of the steps that showed it."""
    watch, found, recent = Watch(), None, deque[float](maxlen=LOUD_STEPS)
    for step in steps:
        recent.append(step.at)
        if one := watch.see(step):
            found = replace(one, since=recent[0])
    lasts = replace(found, why=_longer(watch.excess)) if found and watch.is_slow else None
    return Judged(finding=lasts, can_tell=watch.can_tell)


def _longer(part: float) -> str:
    return f"Its steps take {part:.0%} longer than their batches explain."


def slow(steps: Iterable[Step]) -> list[Finding]:
    """All findings of a series."""
    watch = Watch()
    return [found for step in steps if (found := watch.see(step))]
