"""What is known of jobs that may share GPUs: how busy they keep a GPU alone, its memory, and how fast pairs run.

Speeds are relative to a job that has its GPUs to itself: 0.8 takes 25 % longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

SMALL: Final = 0.95  # Lucid's classes of jobs, by the mean speed of their measured pairs
MEDIUM: Final = 0.85


class JobProfile:
    """How one kind of job uses the GPUs that it has to itself."""

    __slots__ = ("gpu_percent", "memory_mb", "name", "number", "score")

    def __init__(self, number: int, name: str, gpu_percent: float, memory_mb: float, score: int) -> None:
        self.number = number
        self.name = name
        self.gpu_percent = gpu_percent  # utilization of its GPUs
        self.memory_mb = memory_mb  # of each GPU
        self.score = score  # how little it tolerates another job: 0 tiny, 1 medium, 2 jumbo


def score_of_speed(mean_speed: float) -> int:
    """Lucid's class of a job whose measured pairs run at this mean speed."""
    return 0 if mean_speed >= SMALL else 1 if mean_speed >= MEDIUM else 2


def speeds_by_utilization(percents: Sequence[float]) -> list[float]:
    """An estimate for jobs that were not measured together: nobody slows down until the GPU is fully utilized."""
    total = sum(percents)
    return [1.0 if total <= 100.0 else 100.0 / total] * len(percents)


class SharingProfiles:
    """The profiles of the jobs in a trace, and the measured speeds of pairs of profiles."""

    def __init__(
        self, profiles: Sequence[JobProfile], pairs: Mapping[tuple[int, int], tuple[float, float]], of_job: list[int]
    ) -> None:
        self.profiles = list(profiles)
        self.pairs = dict(pairs)  # by the numbers of both profiles, in both orders
        self.of_job = of_job  # by job: the number of its profile, -1 without one

    def of(self, job: int) -> JobProfile | None:
        """The profile of the job with this number; None if it is not known, so the job never shares GPUs."""
        number = self.of_job[job] if job < len(self.of_job) else -1
        return self.profiles[number] if number >= 0 else None

    def speeds(self, together: Sequence[JobProfile]) -> list[float]:
        """The speed of each job on the same GPUs: measured for a pair if it was, else estimated."""
        if len(together) == 2:
            measured = self.pairs.get((together[0].number, together[1].number))
            if measured is not None:
                return list(measured)
        return speeds_by_utilization([profile.gpu_percent for profile in together])
