"""Power in a replay: the budget that jobs start under, and what the report adds. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jobs.core.gpu_shares import WHOLE_GPU
from jobs.traces.trace import Ints, Trace
from scheduling.engine.cluster import PowerBudget
from scheduling.power.gpu_clocks import PowerFleet
from scheduling.power.power_predictions import predicted_peaks_w
from scheduling.power.power_profiles import PowerProfiles, draw_profiles


@dataclass(frozen=True, kw_only=True)
class PowerSetting:
    """The nodes are those of `PowerFleet`; how the power of jobs changes is drawn from published figures."""

    budget_kw: float | None = None  # of all nodes; None: only measured
    price_per_kwh: float | None = None
    has_sleep: bool = False  # report what sleeping nodes would save
    name: str = "cluster"

    def budget(self, fleet: PowerFleet) -> PowerBudget | None:
        """What the budget leaves for jobs above idle nodes; None without one."""
        if self.budget_kw is None:
            return None
        return PowerBudget(name=self.name, watts=max(0, int(self.budget_kw * 1000 - fleet.power_w(0, 0))))


def trace_profiles(trace: Trace, seed: int) -> PowerProfiles:
    return draw_profiles(list(trace.kinds), trace.runtime_s, seed)


def predicted_watts(trace: Trace, fleet: PowerFleet, seed: int) -> Ints:
    """For each job the watts above idle GPUs that it is expected to need at its peak."""
    columns = np.stack([trace.users.codes, trace.names.codes, trace.kinds.codes])
    _, similar = np.unique(columns, axis=1, return_inverse=True)
    peaks_w = predicted_peaks_w(
        trace_profiles(trace, seed).peak_w,
        trace.submit_s,
        trace.runtime_s,
        similar.ravel().astype(np.int32),
        trace.kinds.codes,
    )
    gpus = trace.gpus + trace.gpu_milli / WHOLE_GPU
    return np.ceil(gpus * fleet.watts_above_idle(peaks_w)).astype(np.int32)
