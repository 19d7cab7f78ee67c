"""Power and speed of many GPUs by their clocks, and of nodes with such GPUs. Power falls faster than speed, because
much of the work waits for memory and network, which keep their clocks. `clock_curves` has the sources. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jobs.traces.trace import Floats
from scheduling.power.rules.clock_curves import CLOCK_BOUND, IDLE_W, MAX_MHZ, POWER_EXPONENT


@dataclass(frozen=True, kw_only=True)
class GpuClocks:
    """The curves of one GPU model."""

    max_mhz: int = MAX_MHZ
    idle_w: float = IDLE_W
    power_exponent: float = POWER_EXPONENT
    clock_bound: float = CLOCK_BOUND

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
