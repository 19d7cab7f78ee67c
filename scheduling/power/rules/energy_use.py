"""Energy with its cost, CO2 and basis, as values that can be added up. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduling.power.rules.energy import J_PER_KWH


@dataclass(frozen=True, kw_only=True)
class EnergyUse:
    """Energy of anything. `gpu_hours` is the GPU time that the values cover. Cost and CO2 are None if they are not
    known for all of it."""

    counter_j: float = 0.0
    power_j: float = 0.0
    estimate_j: float = 0.0
    host_j: float = 0.0
    gpu_hours: float = 0.0
    cost: float | None = None
    co2_kg: float | None = None

    @property
    def kwh(self) -> float:
        return (self.counter_j + self.power_j + self.estimate_j + self.host_j) / J_PER_KWH

    @property
    def estimated_kwh(self) -> float:
        return self.estimate_j / J_PER_KWH

    @property
    def host_kwh(self) -> float:
        return self.host_j / J_PER_KWH

    @property
    def basis(self) -> str:
        """How the values were obtained, for readers."""
        measured = self.counter_j + self.power_j
        if not measured and not self.estimate_j:
            return ""
        if not self.estimate_j:
            return "measured"
        if not measured:
            return "estimated from the GPU model's power and its utilization"
        return "partly estimated from the GPU model's power and its utilization"

    def share(self, part: float) -> EnergyUse:
        """This part of the energy, as if it had been used evenly."""
        return EnergyUse(
            counter_j=self.counter_j * part,
            power_j=self.power_j * part,
            estimate_j=self.estimate_j * part,
            host_j=self.host_j * part,
            gpu_hours=self.gpu_hours * part,
            cost=None if self.cost is None else self.cost * part,
            co2_kg=None if self.co2_kg is None else self.co2_kg * part,
        )


def total_use(uses: Iterable[EnergyUse]) -> EnergyUse | None:
    """The sum; None without energy. A cost is unknown if it is unknown in one of them."""
    chosen = list(uses)
    if not chosen:
        return None
    costs, co2 = [use.cost for use in chosen], [use.co2_kg for use in chosen]
    return EnergyUse(
        counter_j=sum(use.counter_j for use in chosen),
        power_j=sum(use.power_j for use in chosen),
        estimate_j=sum(use.estimate_j for use in chosen),
        host_j=sum(use.host_j for use in chosen),
        gpu_hours=sum(use.gpu_hours for use in chosen),
        cost=_sum_if_known(costs),
        co2_kg=_sum_if_known(co2),
    )


def _sum_if_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
