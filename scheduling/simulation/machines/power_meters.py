"""Power and energy of simulated machines: counters that agree with the power that their exporter shows. Pure.

A GPU's counter grows by its power times the time, from one reading to the next, and starts at zero when its node boots
or the simulator starts, as a real one does when the driver is loaded. The clock of the cluster reads the meters every
few seconds, so a counter is right however rarely the exporter is asked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from .dcgm_exporter import GpuSample

HOST_POWER_W = 560.0  # CPUs, memory and fans of a node with idle CPUs, as in the Acme study
SUPPLY_EFFICIENCY = 0.904  # its power supplies lose 9.6 %


@dataclass
class EnergyMeter:
    """The counter of one GPU. `at` and `power_w` are those of the last reading."""

    booted: float
    at: float
    power_w: float
    energy_j: float = 0.0

    def advance(self, now: float, power_w: float) -> None:
        self.energy_j += self.power_w * max(0.0, now - self.at)
        self.at, self.power_w = max(self.at, now), power_w


@dataclass
class PowerMeters:
    """The meters of all GPUs of a cluster."""

    _meters: dict[tuple[str, int], EnergyMeter] = field(default_factory=dict)

    def read(self, samples: Iterable[GpuSample], boot_times: Mapping[str, float], now: float) -> list[GpuSample]:
        """Return the samples with their counters at this time. The power since the last reading was that reading's."""
        return [self._with_counter(sample, boot_times.get(sample.node, 0.0), now) for sample in samples]

    def _with_counter(self, sample: GpuSample, booted: float, now: float) -> GpuSample:
        place = sample.node, sample.gpu
        meter = self._meters.get(place)
        if meter is None or meter.booted != booted:
            meter = self._meters[place] = EnergyMeter(booted=booted, at=now, power_w=sample.power_w)
        meter.advance(now, sample.power_w)
        return replace(sample, energy_mj=round(meter.energy_j * 1000))


def node_power_w(samples: Iterable[GpuSample]) -> dict[str, float]:
    """The power of each node at its supplies: its GPUs, the rest of the node, and the losses."""
    sums: dict[str, float] = defaultdict(float)
    for sample in samples:
        sums[sample.node] += sample.power_w
    return {node: round(supply_power_w(gpus_w), 1) for node, gpus_w in sums.items()}


def supply_power_w(gpus_w: float) -> float:
    """The power at the supplies of a node whose GPUs use so much."""
    return (HOST_POWER_W + gpus_w) / SUPPLY_EFFICIENCY
