"""Gandiva (OSDI'18), its packing: first come, first served, and jobs that find no free GPUs join others.

A job joins the least utilized set of GPUs on which the memory suffices and both jobs together are faster than one after
the other: their speeds add up to more than 1. Gandiva finds this out by trying, and undoes what does not pay; here the
speeds are known, so nothing is undone. Missing are its time slices, migration, and jobs that grow to idle GPUs.
"""

from __future__ import annotations

from scheduling.engine.job import EngineJob
from scheduling.research.packing.engine import GpuHolders, PackingRules
from scheduling.whatif.replay.sharing_profiles import JobProfile, SharingProfiles


class GandivaRules(PackingRules):
    """Order of submission; packs where the sum of the speeds grows."""

    name = "gandiva"

    def sharing_cost(
        self, job: EngineJob, profile: JobProfile, holders: GpuHolders, profiles: SharingProfiles
    ) -> float | None:
        if not self.fits_memory(holders, profile) or sum(profiles.speeds([*holders.profiles, profile])) <= 1.0:
            return None
        return holders.gpu_percent
