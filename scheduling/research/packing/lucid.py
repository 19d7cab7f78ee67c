"""Lucid (ASPLOS'23): the smallest predicted GPU time first, and at most two jobs on the same GPUs. No preemption.

Jobs have a class by how much they slow others down (`SharingProfiles`): 0 tiny, 1 medium, 2 jumbo. Two jobs share if
their classes add up to at most 2, both fit into the memory of a GPU, they have at most 8 GPUs, and the predicted GPU
time of the newcomer is at most twice that of the running job. Of several partners, the one that started first.
Differences: the run time is predicted by the rolling means of `qssf`, where the authors train additive models, or known
with `"run_times": "known"`; there is no separate pool for profiling; and sharing is always allowed, as in the authors'
settings for Philly, where on Venus they disable it while few arrivals are predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from mypy_extensions import mypyc_attr

from acmeweb.common.errors import InvalidField
from scheduling.engine.engine import PolicyRules
from scheduling.engine.job import EngineJob
from scheduling.engine.policies.qssf import QssfRules
from scheduling.engine.settings import positive_number, reject_unknown
from scheduling.research.packing.engine import GPU_MEMORY_MB, GpuHolders, PackingRules
from scheduling.whatif.replay.sharing_profiles import JobProfile, SharingProfiles

RUN_TIMES = ("learned", "known")
MAX_SCORE = 2
MAX_SHARED_GPUS = 8


@mypyc_attr(allow_interpreted_subclasses=True)
class LucidRules(PackingRules):
    """Orders jobs by predicted run time times GPUs, and packs them by class."""

    name = "lucid"
    shares_first: ClassVar[bool] = True

    def __init__(self, gpu_memory_mb: float = GPU_MEMORY_MB, run_times: str = "learned") -> None:
        super().__init__(gpu_memory_mb)
        self._learned = QssfRules() if run_times == "learned" else None

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> PolicyRules:
        reject_unknown(settings, "gpu_memory_mb", "run_times")
        run_times = settings.get("run_times", "learned")
        if run_times not in RUN_TIMES:
            raise InvalidField("run_times", f"{run_times!r} is not one of {', '.join(RUN_TIMES)}")
        memory_mb = positive_number(settings, "gpu_memory_mb") if "gpu_memory_mb" in settings else GPU_MEMORY_MB
        return cls(memory_mb, str(run_times))

    def key(self, job: EngineJob, now: float) -> float:
        return self._learned.key(job, now) if self._learned else job.expected_s * job.group.charged_gpus

    def on_job_end(self, job: EngineJob, now: float) -> None:
        if self._learned:
            self._learned.on_job_end(job, now)

    def mean_error_s(self) -> float | None:
        return self._learned.mean_error_s() if self._learned else None

    def sharing_cost(
        self, job: EngineJob, profile: JobProfile, holders: GpuHolders, profiles: SharingProfiles
    ) -> float | None:
        running = holders.jobs[0]
        if (
            job.group.gpus > MAX_SHARED_GPUS
            or profile.score + holders.profiles[0].score > MAX_SCORE
            or not self.fits_memory(holders, profile)
            or job.key > 2.0 * running.key
        ):
            return None
        return 0.0
