"""The base class of policies that start jobs on GPUs of others. A policy is a subclass in a file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from mypy_extensions import mypyc_attr

from scheduling.engine.engine import Engine
from scheduling.engine.job import EngineJob
from scheduling.engine.packing.profiles import JobProfile, SharingProfiles
from scheduling.engine.packing.shared_gpus import GpuHolders, PackingEngine
from scheduling.engine.packing.turn import packing_turn
from scheduling.engine.rules import PolicyRules
from scheduling.engine.settings import positive_number, reject_unknown

GPU_MEMORY_MB = 24_576.0  # of the GPUs on which the authors of Lucid measured


@mypyc_attr(allow_interpreted_subclasses=True)
class PackingRules(PolicyRules):
    """A queue order, and which sets of GPUs a job may join.

    max_jobs      the maximum number of jobs on the same GPUs
    shares_first  a job joins others even if it could have free GPUs

    Only jobs that request equally many GPUs share them. A job that fits nowhere blocks no other.
    """

    packs = True
    max_jobs: ClassVar[int] = 2
    shares_first: ClassVar[bool] = False

    def __init__(self, gpu_memory_mb: float = GPU_MEMORY_MB) -> None:
        self.gpu_memory_mb = gpu_memory_mb

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> PolicyRules:
        reject_unknown(settings, "gpu_memory_mb")
        return cls(positive_number(settings, "gpu_memory_mb")) if settings else cls()

    def turn(self, engine: Engine, now: float) -> None:
        assert isinstance(engine, PackingEngine)
        packing_turn(engine, self, now)

    def fits_memory(self, holders: GpuHolders, profile: JobProfile) -> bool:
        """Whether the memory of each GPU suffices for the jobs on it and this one."""
        return holders.memory_mb + profile.memory_mb < self.gpu_memory_mb

    def sharing_cost(
        self, job: EngineJob, profile: JobProfile, holders: GpuHolders, profiles: SharingProfiles
    ) -> float | None:
        """How bad it is if the job joins this set, 0 or more; None: it must not. The smallest wins, of equal ones the
        set whose first job started first. The answer may change only when a job leaves or joins the set.
        """
        raise NotImplementedError

    def speeds(self, holders: GpuHolders, profiles: SharingProfiles) -> list[float]:
        """The speed of each job of a set. A single job usually runs at 1."""
        return profiles.speeds(holders.profiles)
