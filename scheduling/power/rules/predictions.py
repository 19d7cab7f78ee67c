"""What attempts drew, what jobs are predicted to draw, and the idle power of live nodes. Pure.

**Peaks of attempts**, from samples of telemetry: the highest power per GPU. All GPUs of a gang reach their peaks
together or not, so the peak is that of the sum over its GPUs at one time, divided by their number. A share of a GPU
counts like the whole GPU, because the exporter measures whole GPUs. The peak of a MIG slice is scaled to a whole GPU.
An attempt whose GPUs are not known by index, as on Kubernetes, counts with the highest of those that nobody else holds.

**Predictions** are the 99th percentile of what similar jobs drew: those of the same user, name and kind, else of the
same kind, if enough of them have ended. Without those it is the limit of the GPU model. Watts are counted in classes,
so a prediction is the upper end of a class.

**Idle power**: the power of hosts is that of `PowerFleet`. An idle GPU draws 15% of the power limit of its model, which
is 60 W of 400 W. A node without GPUs counts with 300 W, whatever runs on it. Both are assumptions.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np

from jobs.core.gpu_shares import WHOLE_GPU
from scheduling.power.rules.clock_curves import FULL_W
from scheduling.power.rules.energy import IDLE_SHARE, MAX_GPU_POWER_W, GpuHold, PowerSample, model_power_w
from scheduling.power.rules.gpu_clocks import GpuClocks, PowerFleet

CLASS_W = 25
CLASSES = 40  # the last one contains everything above
MIN_SIMILAR = 20
PERCENTILE = 0.99
MAX_COUNTED = 2_000  # of a scope, in what is stored
CPU_NODE_W = 300
Reading = tuple[int, float, float]  # attempt, time, watts of one GPU


def attempt_peaks(nodes: Iterable[tuple[Sequence[PowerSample], Sequence[GpuHold]]]) -> dict[int, float]:
    """The highest power per GPU by attempt, from the samples and the holds of each node. Attempts without a measured
    GPU are missing.
    """
    sums: dict[tuple[int, float], list[float]] = defaultdict(lambda: [0.0, 0])
    for samples, holds in nodes:
        for attempt, at_s, watts in _readings(samples, holds):
            together = sums[attempt, at_s]
            together[0] += watts
            together[1] += 1
    peaks: dict[int, float] = {}
    for (attempt, _), (watts, gpus) in sums.items():
        peaks[attempt] = max(peaks.get(attempt, 0.0), watts / gpus)
    return peaks


def _readings(samples: Sequence[PowerSample], holds: Sequence[GpuHold]) -> Iterator[Reading]:
    for sample in samples:
        held = [hold for hold in holds if hold.start_s <= sample.at_s < hold.end_s]
        watts = {gpu: value for gpu, value in enumerate(sample.power_w) if value is not None and _is_believed(value)}
        for hold in held:
            if hold.gpu is not None and hold.gpu in watts:
                yield hold.attempt, sample.at_s, watts[hold.gpu] / hold.part
        others = sorted((watts[gpu] for gpu in watts.keys() - {hold.gpu for hold in held}), reverse=True)
        for hold in held:
            if hold.gpu is None:
                yield from ((hold.attempt, sample.at_s, value) for value in others[: hold.gpus])


def _is_believed(watts: float) -> bool:
    return 0 <= watts <= MAX_GPU_POWER_W


def peak_scopes(user: str, name: str, kind: str) -> tuple[str, str]:
    """The keys of the jobs that are similar, the narrowest first."""
    return json.dumps([user, name, kind]), json.dumps([kind])


class PeakHistory:
    """The peaks of jobs that ended, by any key."""

    def __init__(self, counts: Mapping[str, Sequence[int]] | None = None) -> None:
        """`counts` are those of an earlier history."""
        self._counts: defaultdict[object, list[int]] = defaultdict(lambda: [0] * CLASSES)
        self._counts.update({key: list(found) for key, found in (counts or {}).items()})

    def add(self, keys: Iterable[object], watts: float) -> None:
        watts_class = min(CLASSES - 1, max(0, math.ceil(watts / CLASS_W) - 1))
        for key in keys:
            self._counts[key][watts_class] += 1

    def counts(self) -> dict[str, list[int]]:
        """The counts by key. With more than `MAX_COUNTED` jobs they are halved, so that newer jobs count more."""
        return {
            str(key): [(count + 1) // 2 for count in counts] if sum(counts) > MAX_COUNTED else counts
            for key, counts in self._counts.items()
        }

    def predicted_w(self, keys: Iterable[object], limit_w: float = FULL_W) -> float:
        """The percentile of the first key with enough jobs."""
        for key in keys:
            counts = self._counts.get(key)
            if counts is not None and (total := sum(counts)) >= MIN_SIMILAR:
                return _percentile_w(counts, math.ceil(PERCENTILE * total))
        return limit_w


def class_end_w(watts: float) -> float:
    """The upper end of the class of these watts."""
    return float(CLASS_W * max(1, math.ceil(watts / CLASS_W)))


def _percentile_w(counts: list[int], rank: int) -> float:
    watts_class = bisect_left(list(accumulate(counts)), rank)
    return float(CLASS_W * (watts_class + 1))


@lru_cache(maxsize=256)
def idle_node_w(gpus: int, gpu_model: str) -> int:
    """What a node draws that is awake and idle."""
    if not gpus:
        return CPU_NODE_W
    fleet = PowerFleet(nodes=1, gpus_per_node=gpus, clocks=GpuClocks(idle_w=IDLE_SHARE * _limit_w(gpu_model)))
    return math.ceil(fleet.power_w(0, 0))


def _limit_w(gpu_model: str) -> float:
    return model_power_w(gpu_model) or FULL_W


@lru_cache(maxsize=1024)
def _above_idle_w(gpu_w: float, idle_w: float) -> float:
    """What a node draws more for a GPU at this power than for an idle one."""
    fleet = PowerFleet(nodes=1, clocks=GpuClocks(idle_w=idle_w))
    return float(fleet.watts_above_idle(np.array(gpu_w)))


class PowerForecast:
    """What jobs are predicted to need at their peak above idle GPUs, in watts."""

    def __init__(self, history: PeakHistory) -> None:
        self._history = history

    def job_w(
        self,
        scopes: Sequence[object],
        *,
        gpus: int,
        gpu_milli: int = 0,
        models: Iterable[str] = (),
        measured_w: float = 0.0,
    ) -> int:
        """At least 1, so that a job without GPUs counts if it wakes up a node. `models` are those of the GPUs that it
        has or may get; without a prediction it may reach their highest limit. `measured_w` is the highest power per GPU
        so far, which counts in classes too, so that many jobs have equal requests.
        """
        limits = [_limit_w(model) for model in models] or [FULL_W]
        peak_w = max(class_end_w(measured_w), self._history.predicted_w(scopes, max(limits)))
        return max(1, math.ceil((gpus + gpu_milli / WHOLE_GPU) * _above_idle_w(peak_w, IDLE_SHARE * min(limits))))
