"""Power and speed of a GPU by its clock. Power falls faster than speed, because much of the work waits for memory and
network, which keep their clocks. Pure.

Sources, for the A100 with 400 W: idle GPUs draw 60 W (AcmeTrace, InternLM/AcmeTrace, CC-BY-4.0); POLCA (Patel et al.,
ASPLOS'24) measured that lower clocks save up to 20% of the peak power for at most 7% of the speed, and uses 1410 MHz
without a cap, 1275, 1110 and 1305 MHz as caps and 288 MHz in emergencies. The curve between these clocks is ours: power
above idle falls with a power of the clock, and a part of the time is in proportion to the clock. 20% and 7% are taken
as those of 1110 MHz.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from jobs.traces.trace import Floats
from scheduling.power.energy import MODEL_WORD

MAX_MHZ, MIN_MHZ = 1410, 288
MEASURED_MHZ, MEASURED_POWER, MEASURED_SPEED = 1110, 0.80, 0.93
IDLE_W, FULL_W = 60.0, 400.0
# Highest SM clocks by GPU model, from the vendors' data sheets
MODEL_MAX_MHZ = {"a100": 1410, "a800": 1410, "h100": 1980, "h800": 1980, "h200": 1980, "v100": 1530, "l40s": 2520}


@dataclass(frozen=True, kw_only=True)
class GpuClocks:
    """The curves of one GPU model."""

    max_mhz: int = MAX_MHZ
    idle_w: float = IDLE_W
    # of the power above idle, as an exponent of the clock
    power_exponent: float = math.log((MEASURED_POWER * FULL_W - IDLE_W) / (FULL_W - IDLE_W)) / math.log(
        MEASURED_MHZ / MAX_MHZ
    )
    # of the time at the highest clock, the part that is in proportion to the clock
    clock_bound: float = (1 / MEASURED_SPEED - 1) / (MAX_MHZ / MEASURED_MHZ - 1)

    def power_w(self, watts: Floats, mhz: Floats) -> Floats:
        """What a GPU draws at this clock, if it draws `watts` at the highest."""
        idle = np.minimum(watts, self.idle_w)
        drawn: Floats = idle + (watts - idle) * (mhz / self.max_mhz) ** self.power_exponent
        return drawn

    def speed(self, mhz: Floats) -> Floats:
        """The speed at this clock, 1 at the highest."""
        relative: Floats = 1 / (1 - self.clock_bound + self.clock_bound * self.max_mhz / mhz)
        return relative


@dataclass(frozen=True, kw_only=True)
class PowerFleet:
    """Equal nodes. The line from the power of the GPUs to that of their node fits the percentiles that AcmeTrace gives
    for both: 1.5 kW with idle GPUs, 5.0 kW at the 95th percentile (408 W per GPU), 6.5 kW at most (558 W).
    """

    nodes: int
    gpus_per_node: int = 8
    host_w: float = 920.0
    supply_factor: float = 1.25  # power supplies and fans
    clocks: GpuClocks = GpuClocks()

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    def watts_above_idle(self, gpu_w: Floats) -> Floats:
        """What a node draws more for a GPU at this power than for an idle one."""
        more: Floats = self.supply_factor * np.maximum(0.0, gpu_w - self.clocks.idle_w)
        return more

    def power_w(self, busy_gpus: float, busy_w: float) -> float:
        """The power of all nodes, of which `busy_gpus` draw `busy_w` together and the others are idle."""
        idle_w = max(0.0, self.gpus - busy_gpus) * self.clocks.idle_w
        return self.nodes * self.host_w + self.supply_factor * (busy_w + idle_w)


def model_mhz(mhz: int, model: str) -> int:
    """The clock of this GPU model that is the same share of its highest one. An unknown model counts as an A100."""
    return round(mhz * _model_max_mhz(model) / MAX_MHZ)


def model_speed(mhz: int, model: str) -> float:
    """The speed of this GPU model at one of its clocks, 1 at the highest."""
    share = min(1.0, mhz / _model_max_mhz(model))
    return float(GpuClocks().speed(np.array(max(MIN_MHZ / MAX_MHZ, share) * MAX_MHZ)))


def _model_max_mhz(model: str) -> int:
    words = MODEL_WORD.findall(model.lower())
    return next((MODEL_MAX_MHZ[word] for word in words if word in MODEL_MAX_MHZ), MAX_MHZ)
