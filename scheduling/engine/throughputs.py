"""How fast jobs run on each GPU model: given by a user, measured in earlier attempts, or unknown.

Equal jobs share a name. A given speed takes precedence over measured ones, because it says what the job should reach;
measured ones are weighted by their time. A speed is never derived from that on another model: which model is faster
depends on the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MIN_MEASURED_S = 60.0  # shorter runs have hardly left their warm-up


class ThroughputSource(StrEnum):
    GIVEN = "given"
    MEASURED = "measured"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Steps per second of a job on a GPU model; 0 if unknown."""

    steps_per_s: float = 0.0
    source: ThroughputSource = ThroughputSource.UNKNOWN


@dataclass(frozen=True, kw_only=True)
class MeasuredSteps:
    """What one attempt did: this many steps in this time, on GPUs of one model."""

    name: str
    gpu_model: str
    steps: float
    seconds: float


UNKNOWN = Throughput()


@dataclass(frozen=True, kw_only=True)
class ThroughputTable:
    """Speeds by job name and GPU model."""

    given: Mapping[tuple[str, str], float] = field(default_factory=dict)
    measured: Mapping[tuple[str, str], float] = field(default_factory=dict)

    @staticmethod
    def of(given: Mapping[tuple[str, str], float], attempts: Iterable[MeasuredSteps]) -> ThroughputTable:
        steps: dict[tuple[str, str], float] = {}
        seconds: dict[tuple[str, str], float] = {}
        for attempt in attempts:
            if attempt.seconds >= MIN_MEASURED_S and attempt.steps > 0:
                key = attempt.name, attempt.gpu_model
                steps[key] = steps.get(key, 0.0) + attempt.steps
                seconds[key] = seconds.get(key, 0.0) + attempt.seconds
        return ThroughputTable(given=given, measured={key: steps[key] / seconds[key] for key in steps})

    def speed(self, name: str, gpu_model: str) -> Throughput:
        key = name, gpu_model
        if (steps_per_s := self.given.get(key)) is not None:
            return Throughput(steps_per_s=steps_per_s, source=ThroughputSource.GIVEN)
        if (steps_per_s := self.measured.get(key)) is not None:
            return Throughput(steps_per_s=steps_per_s, source=ThroughputSource.MEASURED)
        return UNKNOWN
