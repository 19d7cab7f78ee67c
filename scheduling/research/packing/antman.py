"""AntMan (OSDI'20): opportunistic jobs run on what guaranteed jobs leave of their GPUs, without slowing them down.

Guaranteed jobs go first, each group in order of submission. Both take free GPUs if there are any. Else an opportunistic
job joins the least utilized GPUs of a job, and a guaranteed job joins those of an opportunistic one, which then gets
what is left, even if that is nothing. At most two jobs share, at most one of them guaranteed. Which jobs are
opportunistic is given by their kinds. Differences: the memory of both must fit, where AntMan moves memory to the host;
there are no quotas, and jobs that wait long do not become opportunistic.
"""

from __future__ import annotations

from typing import ClassVar

from scheduling.engine.job import EngineJob
from scheduling.research.packing.engine import GpuHolders, PackingRules
from scheduling.whatif.replay.sharing_profiles import JobProfile, SharingProfiles

MIN_SPARE_PERCENT = 5.0  # of a GPU, for an opportunistic job to join


class AntManRules(PackingRules):
    """Guaranteed jobs first; opportunistic jobs get the rest of their GPUs."""

    name = "antman"
    has_opportunistic: ClassVar[bool] = True

    def key(self, job: EngineJob, now: float) -> float:
        return float(job.group.borrows)

    def sharing_cost(
        self, job: EngineJob, profile: JobProfile, holders: GpuHolders, profiles: SharingProfiles
    ) -> float | None:
        if not self.fits_memory(holders, profile):
            return None
        if job.group.borrows:
            return holders.gpu_percent if holders.gpu_percent <= 100.0 - MIN_SPARE_PERCENT else None
        return holders.gpu_percent if holders.jobs[0].group.borrows else None

    def speeds(self, holders: GpuHolders, profiles: SharingProfiles) -> list[float]:
        if len(holders.jobs) == 1:
            return [1.0]
        first, second = (job.group.borrows for job in holders.jobs)
        if first == second:
            return profiles.speeds(holders.profiles)
        guaranteed, spare = (1, 0) if first else (0, 1)
        left = 100.0 - holders.profiles[guaranteed].gpu_percent
        speeds = [1.0, 1.0]
        speeds[spare] = min(1.0, left / max(1.0, holders.profiles[spare].gpu_percent))
        return speeds
