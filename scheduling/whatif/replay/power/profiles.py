"""How the power of jobs changes over time at the highest clock, drawn by kind of work. Pure and seeded.

Each job alternates between two levels: compute, and waiting for network, storage or processors. All its GPUs change at
the same time, as the iterations of a gang do. Positions are counted in work, so a slower job has longer phases.

Sources: watts of compute are percentiles of Seren's GPU samples (AcmeTrace, CC-BY-4.0): 290 W (75th) to 437 W (99th).
Ends of training iterations draw 20% to 75% of 400 W (POLCA, ASPLOS'24). An evaluation loads for 29.5% of its time and
computes metrics without GPUs in the last 19% (Acme, NSDI'24); a GPU with loaded memory that does not compute draws 96 W
(median). The lengths of iterations and of breaks in debugging are assumptions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from jobs.core.lifecycle import JobKind
from jobs.traces.trace import Floats

LOADING, METRICS = 0.295, 0.19
SHORTEST_CYCLE_S = 1.0  # a job may have run for no time at all


@dataclass(frozen=True, kw_only=True)
class KindPower:
    """Ranges from which the levels and the cycle of a job are drawn."""

    high_w: tuple[float, float]
    low_w: tuple[float, float]
    high_share: tuple[float, float]  # of the cycle
    period_s: tuple[float, float] | None  # None: one cycle per job


TRAINING = KindPower(high_w=(290, 437), low_w=(80, 300), high_share=(0.75, 0.9), period_s=(5, 30))
KIND_POWER: Mapping[str, KindPower] = {
    JobKind.EVALUATION.value: KindPower(
        high_w=(212, 395), low_w=(66, 96), high_share=(1 - LOADING - METRICS,) * 2, period_s=None
    ),
    JobKind.DEBUG.value: KindPower(high_w=(290, 437), low_w=(66, 96), high_share=(0.3, 0.7), period_s=(60, 600)),
}


@dataclass(frozen=True, kw_only=True)
class PowerProfiles:
    """One row per job. Compute begins at position 0 of each cycle; a job begins at `offset_s` of its first."""

    high_w: Floats
    low_w: Floats
    high_share: Floats
    period_s: Floats
    offset_s: Floats

    def __len__(self) -> int:
        return len(self.high_w)

    def rows(self, chosen: npt.NDArray[np.intp]) -> PowerProfiles:
        return PowerProfiles(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})

    @property
    def peak_w(self) -> Floats:
        peaks: Floats = np.maximum(self.high_w, self.low_w)
        return peaks

    def high_s(self, work_s: Floats) -> Floats:
        """The time of compute before this position of the work, up to a constant of the job."""
        at = work_s + self.offset_s
        cycles = np.floor(at / self.period_s)
        high_s: Floats = self.high_share * self.period_s
        return cycles * high_s + np.minimum(at - cycles * self.period_s, high_s)


def draw_profiles(kinds: Sequence[str], work_s: Floats, seed: int = 0) -> PowerProfiles:
    """A profile for each job of these kinds; kinds that are not in `KIND_POWER` train."""
    dice = np.random.default_rng(seed)
    drawn = PowerProfiles(**{field.name: np.empty(len(kinds)) for field in fields(PowerProfiles)})
    words = np.array(kinds, dtype=np.str_)
    for kind in sorted(set(kinds)):
        rows, power = np.flatnonzero(words == kind), KIND_POWER.get(kind, TRAINING)
        drawn.high_w[rows] = dice.uniform(*power.high_w, size=len(rows))
        drawn.low_w[rows] = dice.uniform(*power.low_w, size=len(rows))
        drawn.high_share[rows] = dice.uniform(*power.high_share, size=len(rows))
        if power.period_s is None:
            drawn.period_s[rows] = np.maximum(work_s[rows], SHORTEST_CYCLE_S)
            drawn.offset_s[rows] = -LOADING * drawn.period_s[rows]
        else:
            drawn.period_s[rows] = dice.uniform(*power.period_s, size=len(rows))
            drawn.offset_s[rows] = dice.uniform(0, drawn.period_s[rows])
    return drawn
