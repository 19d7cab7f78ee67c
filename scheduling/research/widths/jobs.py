"""Jobs of a replay with elastic widths: how fast they are, and what a policy may forecast about them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scheduling.research.widths.goodput import BatchLimits, BatchSplit, Goodput, GradientNoise, split_of
from scheduling.research.widths.step_times import StepMeasurement, StepModel, fitted_model
from scheduling.research.widths.values import Floats, Ints, WidthForecast

Spread = tuple[int, ...]  # GPUs on each node
StepTimes = Callable[[Spread, int], tuple[float, float]]  # (spread, per GPU) -> seconds to compute, and of the step


class ElasticModel:
    """One job. Progress is counted in steps of its initial batch size."""

    work: float  # the progress at which it ends

    def speed(self, spread: Spread, progress: float) -> float:
        """The progress per second. The job measures its steps."""
        raise NotImplementedError

    def next_change(self, progress: float) -> float:
        """The progress at which the speed changes next; at most `work`."""
        raise NotImplementedError

    def forecast(self, progress: float) -> WidthForecast:
        raise NotImplementedError

    @property
    def widest(self) -> int:
        raise NotImplementedError


@dataclass(frozen=True)
class Training:
    """Measured training runs of one application: its epochs, as progress, and the gradient noise in each of them.

    The noise is measured with several batch sizes. Between two of them it is interpolated.
    """

    ends: tuple[float, ...]  # the progress at the end of each epoch
    batches: tuple[int, ...]
    squared_norms: Floats  # batch × epoch
    variances: Floats
    limits: BatchLimits
    step_times: StepTimes

    def epoch(self, progress: float) -> int:
        return min(bisect_right(self.ends, progress), len(self.ends) - 1)

    def noise(self, batch: float, epoch: int) -> GradientNoise:
        columns = self.squared_norms[:, epoch], self.variances[:, epoch]
        return GradientNoise(*(float(np.interp(batch, self.batches, column)) for column in columns))

    def step_s(self, spread: Spread, split: BatchSplit) -> float:
        compute_s, step_s = self.step_times(spread, split.per_gpu)
        return step_s + (split.rounds - 1) * compute_s

    def gain(self, batch: int, epoch: int) -> float:
        return float(self.noise(batch, epoch).gain(batch / self.limits.initial))


class TrainingModel(ElasticModel):
    def __init__(self, training: Training) -> None:
        self.training = training
        self.work = training.ends[-1]

    def next_change(self, progress: float) -> float:
        return self.training.ends[self.training.epoch(progress)]


class FixedBatchJob(TrainingModel):
    """Keeps its batch size at every width. Its speeds are known, as with the oracle of Pollux' comparison."""

    def __init__(self, training: Training, batch: int, widest: int | None = None) -> None:
        super().__init__(training)
        self._batch = batch
        self._widest = widest or batch // training.limits.smallest_per_gpu
        epochs = range(len(training.ends))
        lengths = np.diff(np.array((0.0, *training.ends)))
        gains = np.array([training.gain(batch, epoch) for epoch in epochs])
        self._steps_after = np.append(np.cumsum((lengths / gains)[::-1])[::-1], 0.0)

    @property
    def widest(self) -> int:
        return self._widest

    def speed(self, spread: Spread, progress: float) -> float:
        split = split_of(self._batch, sum(spread), self.training.limits)
        gain = self.training.gain(split.batch(sum(spread)), self.training.epoch(progress))
        return gain / self.training.step_s(spread, split)

    def forecast(self, progress: float) -> WidthForecast:
        return KnownSpeed(self, progress)

    def steps_left(self, progress: float) -> float:
        epoch = self.training.epoch(progress)
        gain = self.training.gain(self._batch, epoch)
        return float(self._steps_after[epoch + 1] + (self.training.ends[epoch] - progress) / gain)

    def step_s(self, gpus: int, nodes: int) -> float:
        return self.training.step_s(packed(gpus, nodes), split_of(self._batch, gpus, self.training.limits))


class KnownSpeed(WidthForecast):
    def __init__(self, job: FixedBatchJob, progress: float) -> None:
        self._job, self._progress = job, progress

    def speeds(self, gpus: Ints, nodes: Ints) -> Floats:
        widths = zip(gpus.tolist(), nodes.tolist(), strict=True)
        return np.array([self._job.speed(packed(*width), self._progress) for width in widths])

    def seconds_left(self, gpus: int, nodes: int) -> float:
        return self._job.steps_left(self._progress) * self._job.step_s(gpus, nodes)


def packed(gpus: int, nodes: int) -> Spread:
    """Equally many GPUs on all nodes but the last."""
    each = math.ceil(gpus / nodes)
    full, rest = divmod(gpus, each)
    return (each,) * full + ((rest,) if rest else ())


class AdaptiveBatchJob(TrainingModel):
    """Chooses its batch size itself, as jobs with Pollux' agent do: the one with the highest expected goodput.

    It expects the step times of a model that it fits to the steps so far, and the gradient noise that it measured last.
    It starts with the initial batch size. Up to twice the widest width that it has tried may be of use.
    """

    def __init__(self, training: Training, most_gpus: int, batch: int | None = None) -> None:
        super().__init__(training)
        self._most_gpus = most_gpus
        self._batch = batch  # a batch size that it keeps
        self._measured: dict[tuple[int, int, int], StepMeasurement] = {}
        self._noise = GradientNoise(1.0, 0.0)
        self._steps: StepModel | None = None

    @property
    def widest(self) -> int:
        tried = max((gpus for gpus, _, _ in self._measured), default=0)
        useful = self.training.limits.largest // self.training.limits.smallest_per_gpu
        return min(max(2 * tried, 1), self._most_gpus, useful)

    def speed(self, spread: Spread, progress: float) -> float:
        training, epoch, split = self.training, self.training.epoch(progress), self._split(spread)
        batch = split.batch(sum(spread))
        self._note_step(spread, split)
        self._noise = training.noise(batch, epoch)
        return training.gain(batch, epoch) / training.step_s(spread, split)

    def forecast(self, progress: float) -> WidthForecast:
        goodput = self._goodput(self.training.limits)
        return UnmeasuredForecast() if goodput is None else FittedForecast(goodput, self.work - progress)

    def limits_on(self, spread: Spread) -> BatchLimits:
        """The batch sizes that the job may use on these GPUs."""
        return self.training.limits

    def _split(self, spread: Spread) -> BatchSplit:
        limits, gpus = self.limits_on(spread), sum(spread)
        goodput = self._goodput(limits)
        if self._batch is not None:
            return split_of(self._batch, gpus, limits)
        if goodput is None:
            return split_of(max(limits.initial, limits.smallest_per_gpu * gpus), gpus, limits)
        return goodput.best_split(gpus, len(spread))

    def _goodput(self, limits: BatchLimits) -> Goodput | None:
        if self._measured and self._steps is None:
            self._steps = fitted_model(list(self._measured.values()))
        return Goodput(self._steps, self._noise, limits) if self._steps else None

    def _note_step(self, spread: Spread, split: BatchSplit) -> None:
        key = sum(spread), len(spread), split.per_gpu
        if key not in self._measured:
            self._measured[key] = StepMeasurement(*key, *self.training.step_times(spread, split.per_gpu))
            self._steps = None


class UnmeasuredForecast(WidthForecast):
    """Nothing has been measured: twice the GPUs are believed to be twice as fast."""

    def speeds(self, gpus: Ints, nodes: Ints) -> Floats:
        return gpus.astype(float)

    def seconds_left(self, gpus: int, nodes: int) -> float:
        return math.inf


@dataclass(frozen=True)
class FittedForecast(WidthForecast):
    goodput: Goodput
    left: float

    def speeds(self, gpus: Ints, nodes: Ints) -> Floats:
        return self.goodput.best(gpus, nodes)[0]

    def seconds_left(self, gpus: int, nodes: int) -> float:
        speed = float(self.speeds(np.array([gpus]), np.array([nodes]))[0])
        return self.left / speed if speed > 0 else math.inf
