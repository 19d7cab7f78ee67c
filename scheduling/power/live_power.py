"""Idle power of live nodes, and the power that live jobs are predicted to need. Pure.

The power of hosts is that of `PowerFleet`. An idle GPU draws 15% of the power limit of its model, which is 60 W of
400 W. A node without GPUs counts with 300 W, whatever runs on it. Both are assumptions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from jobs.core.gpu_shares import WHOLE_GPU
from scheduling.power.clock_curves import FULL_W
from scheduling.power.energy import IDLE_SHARE, model_power_w
from scheduling.power.gpu_clocks import GpuClocks, PowerFleet
from scheduling.power.power_predictions import PeakHistory, class_end_w

CPU_NODE_W = 300


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
