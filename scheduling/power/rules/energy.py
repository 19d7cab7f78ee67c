"""Energy of GPUs and nodes from samples of telemetry, by hour and by the attempt that held the GPU. Pure.

Between two samples of a GPU, its energy is the difference of its counter. Without a counter it is the power between
them, and without power an estimate: the power of the model at its utilization. Each joule of the time between two
samples is in exactly one attempt, or in none, in proportion to the time; so the sums equal the counters.

- A counter that became smaller began again at zero: the node booted. What it shows was used since then.
- Missing samples: a counter continues, so the difference covers them. Without a counter, gaps are left out.
- A difference that no GPU can use, as after an exchange of cards, is not believed.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

HOUR_S = 3600
J_PER_KWH = 3_600_000.0
MAX_POWER_GAP_S = 120.0  # power is not integrated over longer gaps
MAX_GPU_POWER_W = 3_000.0  # more is not believed
IDLE_SHARE = 0.15  # of the model's power, at no utilization
MODEL_POWER_W = {
    "a100": 400.0,
    "a800": 400.0,
    "h100": 700.0,
    "h800": 700.0,
    "h200": 700.0,
    "h20": 500.0,
    "b200": 1000.0,
    "v100": 300.0,
    "p100": 250.0,
    "l40s": 350.0,
    "l40": 300.0,
    "a40": 300.0,
    "a30": 165.0,
    "a10": 150.0,
    "l4": 72.0,
    "t4": 70.0,
    "mi300x": 750.0,
    "mi250x": 560.0,
}
MODEL_WORD = re.compile(r"[a-z]+\d+[a-z]?")


class EnergyBasis(Enum):
    """What a value was computed from, the best first."""

    COUNTER = "counter"
    POWER = "power"
    ESTIMATE = "estimate"


class GpuHold(NamedTuple):
    """A GPU of a node that an attempt held, or a part of it (`share`). `gpu` is None if its index is unknown; then
    `gpus` are held.
    """

    attempt: int
    gpu: int | None
    start_s: float
    end_s: float
    gpus: int = 1
    share: float = 1.0
    part: float = 1.0  # of a GPU that this one is; less for a MIG slice


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSample:
    """One node at one time. Values are None where the exporter has none."""

    at_s: float
    energy_mj: Sequence[float | None] = ()
    power_w: Sequence[float | None] = ()
    util_percent: Sequence[float | None] = ()
    node_power_w: float | None = None

    @property
    def gpus(self) -> int:
        return max(len(self.energy_mj), len(self.power_w), len(self.util_percent))


@dataclass(slots=True)
class EnergySums:
    """Joules of one attempt in one hour. `host_j` is what the nodes used beside their GPUs, as a share."""

    counter_j: float = 0.0
    power_j: float = 0.0
    estimate_j: float = 0.0
    host_j: float = 0.0
    gpu_s: float = 0.0  # GPU time that the values cover

    def add(self, basis: EnergyBasis, joules: float, host_j: float, seconds: float) -> None:
        if basis is EnergyBasis.COUNTER:
            self.counter_j += joules
        elif basis is EnergyBasis.POWER:
            self.power_j += joules
        else:
            self.estimate_j += joules
        self.host_j += host_j
        self.gpu_s += seconds


EnergyKey = tuple[int, int | None]  # start of the hour, attempt


def model_power_w(model: str) -> float | None:
    """The power limit of a GPU model by its name; None if it is unknown. Variants with another limit count as this."""
    words = MODEL_WORD.findall(model.lower())
    return next((MODEL_POWER_W[word] for word in words if word in MODEL_POWER_W), None)


def add_node(
    sums: dict[EnergyKey, EnergySums],
    samples: Sequence[PowerSample],
    holds: Iterable[GpuHold],
    model: str,
    gpus: int,
    parts: Sequence[float] = (),
) -> None:
    """Add the energy of one node between its first and its last sample. The samples are in order of time. `parts`:
    which part of a GPU each of its devices is; without it, all are whole GPUs."""
    owners, limit_w = _GpuOwners(holds, gpus, parts), model_power_w(model)
    for before, after in pairwise(samples):
        used = [_gpu_energy(before, after, gpu, limit_w) for gpu in range(after.gpus)]
        host_j = _host_energy(before, after, [part[1] for part in used if part])
        for gpu, part in enumerate(used):
            if part is not None:
                owners.add(sums, gpu, before.at_s, after.at_s, part, host_j / max(1, after.gpus))


Used = tuple[EnergyBasis, float]


def _gpu_energy(before: PowerSample, after: PowerSample, gpu: int, limit_w: float | None) -> Used | None:
    """The energy of a GPU between two samples, in joules; None if it is not known."""
    seconds = after.at_s - before.at_s
    counted = _counted(_at(before.energy_mj, gpu), _at(after.energy_mj, gpu), seconds)
    if counted is not None:
        return EnergyBasis.COUNTER, counted
    if seconds > MAX_POWER_GAP_S:
        return None
    if (watts := _mean(_at(before.power_w, gpu), _at(after.power_w, gpu))) is not None and watts <= MAX_GPU_POWER_W:
        return EnergyBasis.POWER, watts * seconds
    util = _mean(_at(before.util_percent, gpu), _at(after.util_percent, gpu))
    if util is None or limit_w is None:
        return None
    return EnergyBasis.ESTIMATE, power_estimate_w(limit_w, util) * seconds


def power_estimate_w(limit_w: float, util_percent: float) -> float:
    """The power of a GPU with this limit at this utilization."""
    return limit_w * (IDLE_SHARE + (1 - IDLE_SHARE) * min(max(util_percent, 0.0), 100.0) / 100)


def _counted(before: float | None, after: float | None, seconds: float) -> float | None:
    """The difference of a counter in joules. After a restart at zero: its value; the time before is not in it."""
    if before is None or after is None:
        return None
    joules = (after - before if after >= before else after) / 1000
    return joules if joules <= MAX_GPU_POWER_W * seconds else None


def _host_energy(before: PowerSample, after: PowerSample, gpus_j: Sequence[float]) -> float:
    """What the node used beside its GPUs; 0 if its power is not known or a gap is long."""
    seconds, watts = after.at_s - before.at_s, _mean(before.node_power_w, after.node_power_w)
    if watts is None or seconds > MAX_POWER_GAP_S or len(gpus_j) < after.gpus:
        return 0.0
    return max(0.0, watts * seconds - sum(gpus_j))


def _at(values: Sequence[float | None], gpu: int) -> float | None:
    return values[gpu] if gpu < len(values) else None


def _mean(before: float | None, after: float | None) -> float | None:
    if before is None or after is None:
        return None
    return (before + after) / 2


class _GpuOwners:
    """Which attempts held the GPUs of a node. GPUs without an index are shared by those whose index is unknown."""

    def __init__(self, holds: Iterable[GpuHold], gpus: int, parts: Sequence[float] = ()) -> None:
        self._gpus = max(1, gpus)
        self._placed: dict[int, list[GpuHold]] = defaultdict(list)
        self._unplaced: list[GpuHold] = []
        for hold in sorted(holds, key=lambda one: one.start_s):
            (self._unplaced if hold.gpu is None else self._placed[hold.gpu]).append(hold)
        self._starts = {gpu: [hold.start_s for hold in held] for gpu, held in self._placed.items()}
        self._parts = dict(enumerate(parts)) | {gpu: held[-1].part for gpu, held in self._placed.items()}
        self._with_shares = {gpu for gpu, held in self._placed.items() if any(hold.share < 1.0 for hold in held)}

    def add(
        self, sums: dict[EnergyKey, EnergySums], gpu: int, start_s: float, end_s: float, used: Used, host_j: float
    ) -> None:
        """Divide energy among the owners and the hours, in proportion to the time."""
        basis, joules = used
        length, size = end_s - start_s, self._parts.get(gpu, 1.0)
        for low, high, attempt, share in self._pieces(gpu, start_s, end_s):
            for hour, seconds in _by_hour(low, high):
                part = share * seconds / length
                sums[hour, attempt].add(basis, joules * part, host_j * part, share * seconds * size)

    def _pieces(self, gpu: int, start_s: float, end_s: float) -> Iterator[tuple[float, float, int | None, float]]:
        """The time in pieces, as (start, end, attempt, share of the GPU)."""
        if gpu in self._with_shares:
            yield from self._pieces_of_shares(gpu, start_s, end_s)
            return
        now, held = start_s, self._placed.get(gpu, ())
        first = max(0, bisect_right(self._starts.get(gpu, ()), start_s) - 1)
        for hold in held[first:]:
            low, high = max(now, hold.start_s), min(end_s, hold.end_s)
            if low >= end_s:
                break
            if high > low:
                yield from self._shared(now, low)
                yield low, high, hold.attempt, 1.0
                now = high
        yield from self._shared(now, end_s)

    def _pieces_of_shares(
        self, gpu: int, start_s: float, end_s: float
    ) -> Iterator[tuple[float, float, int | None, float]]:
        """The exporter measures whole GPUs, so each attempt gets the part that it holds, and the rest is idle."""
        held = [hold for hold in self._placed[gpu] if hold.start_s < end_s and hold.end_s > start_s]
        edges = {edge for hold in held for edge in (hold.start_s, hold.end_s) if start_s < edge < end_s}
        for low, high in pairwise(sorted({start_s, end_s} | edges)):
            here = [hold for hold in held if hold.start_s <= low and hold.end_s >= high]
            if not here:
                yield from self._shared(low, high)
                continue
            whole = max(1.0, sum(hold.share for hold in here))
            for hold in here:
                yield low, high, hold.attempt, hold.share / whole
            if (rest := 1.0 - sum(hold.share for hold in here) / whole) > 1e-9:
                yield low, high, None, rest

    def _shared(self, start_s: float, end_s: float) -> Iterator[tuple[float, float, int | None, float]]:
        """Time in which no attempt held this GPU by its index."""
        edges = {start_s, end_s} | {
            edge for hold in self._unplaced for edge in (hold.start_s, hold.end_s) if start_s < edge < end_s
        }
        for low, high in pairwise(sorted(edges)):
            here = [hold for hold in self._unplaced if hold.start_s <= low and hold.end_s >= high]
            shares = _shares([hold.gpus for hold in here], self._gpus - self._placed_at(low))
            for hold, share in zip(here, shares, strict=True):
                yield low, high, hold.attempt, share
            if (rest := 1.0 - sum(shares)) > 1e-9:
                yield low, high, None, rest

    def _placed_at(self, at_s: float) -> int:
        return sum(any(hold.start_s <= at_s < hold.end_s for hold in held) for held in self._placed.values())


def _shares(counts: Sequence[int], gpus: int) -> list[float]:
    whole = max(gpus, sum(counts), 1)
    return [count / whole for count in counts]


def _by_hour(start_s: float, end_s: float) -> Iterator[tuple[int, float]]:
    """The seconds of a time by the start of their hour."""
    hour = int(start_s // HOUR_S) * HOUR_S
    while hour < end_s:
        yield hour, min(end_s, hour + HOUR_S) - max(start_s, hour)
        hour += HOUR_S


def kwh(joules: float) -> float:
    return joules / J_PER_KWH
