"""Goodput: the progress per second of a training job, from its step time and what a step of its batch size is worth.

A step with a larger batch makes more progress, but less than in proportion: the more the gradients of single examples
agree, the less a further example says. The gain of a step is 1 at the initial batch size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduling.research.widths.step_times import StepModel
from scheduling.research.widths.values import Floats, Ints

SIZES_TRIED = 50
ROUNDING = 1e-8


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """`initial` is the batch size that the user tuned the job for."""

    initial: int
    largest: int
    smallest_per_gpu: int
    largest_per_gpu: int


@dataclass(frozen=True)
class BatchSplit:
    """How a batch is computed: `rounds` times `per_gpu` examples on each GPU before gradients are summed."""

    per_gpu: int
    rounds: int

    def batch(self, gpus: int) -> int:
        return self.per_gpu * self.rounds * gpus


@dataclass(frozen=True)
class GradientNoise:
    """Statistics of the gradient at the initial batch size: its squared norm and its variance."""

    squared_norm: float
    variance: float

    def gain(self, scale: Floats | float) -> Floats:
        """Progress of a step whose batch is `scale` times the initial one."""
        return np.asarray((self.variance + self.squared_norm) / (self.variance / scale + self.squared_norm))


def split_of(batch: float, gpus: int, limits: BatchLimits) -> BatchSplit:
    """The split of a batch size that a job keeps, whatever its width."""
    per_gpu, rounds = _splits(np.array([batch]), np.array([gpus]), limits)
    most = limits.largest // (gpus * int(rounds[0]))
    return BatchSplit(min(int(per_gpu[0]), most), int(rounds[0]))


def _splits(batches: Floats, gpus: Ints, limits: BatchLimits) -> tuple[Ints, Ints]:
    """Examples per GPU and rounds. A single GPU computes larger batches in two rounds or more, because the noise
    cannot be estimated from one gradient.
    """
    local = np.ceil(batches / gpus - ROUNDING)
    rounds = np.ceil(local / limits.largest_per_gpu - ROUNDING)
    alone = (gpus == 1) & (batches > limits.initial + ROUNDING)
    rounds = np.where(alone, np.maximum(rounds, 2), rounds)
    return np.ceil(local / rounds - ROUNDING).astype(np.int64), rounds.astype(np.int64)


@dataclass(frozen=True)
class Goodput:
    """The expected progress per second, in steps of the initial batch size."""

    steps: StepModel
    noise: GradientNoise
    limits: BatchLimits

    def best(self, gpus: Ints, nodes: Ints) -> tuple[Floats, Ints, Ints]:
        """For each width the highest goodput, and the examples per GPU and the rounds that reach it."""
        smallest = np.maximum(self.limits.initial, self.limits.smallest_per_gpu * gpus)
        batches = np.geomspace(smallest, np.maximum(smallest, self.limits.largest), SIZES_TRIED)
        per_gpu, rounds = _splits(batches, gpus, self.limits)
        fits = (per_gpu >= self.limits.smallest_per_gpu) & (per_gpu <= self.limits.largest_per_gpu)
        fits &= smallest <= self.limits.largest
        goodputs = np.where(fits, self.at(gpus, nodes, per_gpu, rounds), 0.0)
        found = goodputs.argmax(axis=0), np.arange(len(gpus))
        return goodputs[found], per_gpu[found], rounds[found]

    def at(self, gpus: Ints, nodes: Ints, per_gpu: Ints, rounds: Ints) -> Floats:
        took = self.steps.step_times(gpus, nodes, per_gpu) + (rounds - 1) * self.steps.compute_times(per_gpu)
        goodputs: Floats = self.noise.gain(gpus * per_gpu * rounds / self.limits.initial) / took
        return goodputs

    def best_split(self, gpus: int, nodes: int) -> BatchSplit:
        _, per_gpu, rounds = self.best(np.array([gpus]), np.array([nodes]))
        most = self.limits.largest // (gpus * int(rounds[0]))
        return BatchSplit(min(int(per_gpu[0]), most), int(rounds[0]))
