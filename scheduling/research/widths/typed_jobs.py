"""A job that chooses its batch size and may run on GPUs of several types: one model for each type.

The models share what does not depend on the type: the gradient noise, and the widest width that was tried. On a type on
which it has not run, a job expects the goodput of another type, times the ratio of their speeds on a single GPU. These
speeds are measured before the job starts, as in Sia (SOSP'23).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scheduling.research.widths.goodput import BatchLimits
from scheduling.research.widths.jobs import AdaptiveBatchJob, Spread, Training, UnmeasuredForecast
from scheduling.research.widths.values import Floats, Ints, WidthForecast


@dataclass(frozen=True, kw_only=True)
class TypeTraining:
    """The training of an application on GPUs of one type."""

    training: Training
    node_gpus: int
    examples_per_s: float  # on a single GPU
    largest_per_gpu: Callable[[Spread], int]  # examples that fit on each GPU of a spread


class TypeModel(AdaptiveBatchJob):
    def __init__(self, on_type: TypeTraining, most_gpus: int, family: list[TypeModel]) -> None:
        super().__init__(on_type.training, most_gpus)
        self._on_type, self._family = on_type, family

    @property
    def is_measured(self) -> bool:
        return bool(self._measured)

    @property
    def widest(self) -> int:
        return max(model.widest_here for model in self._family)

    @property
    def widest_here(self) -> int:
        return super().widest

    def limits_on(self, spread: Spread) -> BatchLimits:
        return replace(self.training.limits, largest_per_gpu=self._on_type.largest_per_gpu(spread))

    def speed(self, spread: Spread, progress: float) -> float:
        speed = super().speed(spread, progress)
        for model in self._family:
            model._noise = self._noise
        return speed

    def forecast(self, progress: float) -> WidthForecast:
        if self.is_measured:
            return super().forecast(progress)
        other = next((model for model in self._family if model.is_measured), None)
        return UnmeasuredForecast() if other is None else other.forecast_for(self._on_type, progress)

    def forecast_for(self, other: TypeTraining, progress: float) -> WidthForecast:
        """What this type says about another one."""
        ratio = other.examples_per_s / self._on_type.examples_per_s
        return ScaledForecast(self.forecast(progress), self._on_type.node_gpus, ratio)


@dataclass(frozen=True)
class ScaledForecast(WidthForecast):
    """The forecast of another type, whose nodes have `node_gpus` GPUs, `ratio` times as fast."""

    other: WidthForecast
    node_gpus: int
    ratio: float

    def speeds(self, gpus: Ints, nodes: Ints) -> Floats:
        return self.other.speeds(gpus, -(-gpus // self.node_gpus)) * self.ratio

    def seconds_left(self, gpus: int, nodes: int) -> float:
        return self.other.seconds_left(gpus, math.ceil(gpus / self.node_gpus)) / self.ratio


def typed_models(on_types: Sequence[TypeTraining], most_gpus: int) -> tuple[TypeModel, ...]:
    """The models of one job."""
    family: list[TypeModel] = []
    family += [TypeModel(on_type, most_gpus, family) for on_type in on_types]
    return tuple(family)
