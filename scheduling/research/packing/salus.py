"""Salus (MLSys'20): as many jobs on a GPU as its memory holds, each with its part of the time.

First come, first served on free GPUs, then on those with the most free memory. Jobs whose utilization adds up to more
than 100 % slow down alike, as with its sharing by iterations. Differences: a job needs the same memory all the time,
where Salus divides it into a constant part and one that jobs use in turns; and only jobs with equally many GPUs share.
"""

from __future__ import annotations

from typing import ClassVar

from scheduling.engine.job import EngineJob
from scheduling.research.packing.engine import GpuHolders, PackingRules
from scheduling.whatif.replay.sharing_profiles import JobProfile, SharingProfiles, speeds_by_utilization


class SalusRules(PackingRules):
    """Order of submission; memory is the only limit."""

    name = "salus"
    max_jobs: ClassVar[int] = 1_000

    def sharing_cost(
        self, job: EngineJob, profile: JobProfile, holders: GpuHolders, profiles: SharingProfiles
    ) -> float | None:
        return holders.memory_mb if self.fits_memory(holders, profile) else None

    def speeds(self, holders: GpuHolders, profiles: SharingProfiles) -> list[float]:
        return speeds_by_utilization([profile.gpu_percent for profile in holders.profiles])
