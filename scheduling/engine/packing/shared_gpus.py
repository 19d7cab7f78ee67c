"""The jobs on one set of whole GPUs, and the engine that starts jobs on the GPUs of others.

The first job of a set takes its GPUs from the free resources as always, and the last one returns them. In between, the
others take and return CPUs and memory only. So free GPUs, their index and placements do not know of packing, and an
engine whose rules do not pack is an `Engine`, which has nothing of this.

The speed of a job changes when another one joins or leaves. Then its progress is counted up to that time, and its end
moves: the replay finds it in `moved_ends`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from scheduling.engine.engine import Engine
from scheduling.engine.job import EngineJob
from scheduling.engine.packing.profiles import JobProfile, SharingProfiles
from scheduling.engine.resources import GpuPlacement

if TYPE_CHECKING:
    from scheduling.engine.packing.rules import PackingRules


OpenSet = tuple[float, int, "GpuHolders"]  # start and number of its first job (a total order), the set


class GpuHolders:
    """The jobs that run on the same GPUs, in the order in which they started."""

    __slots__ = ("entry", "jobs", "places", "profiles")

    def __init__(self, job: EngineJob, places: GpuPlacement, profile: JobProfile) -> None:
        self.places = places
        self.jobs = [job]
        self.profiles = [profile]
        self.entry: OpenSet | None = None  # set while another job may join, by their number

    @property
    def memory_mb(self) -> float:
        """What the jobs use of the memory of each GPU."""
        return sum(profile.memory_mb for profile in self.profiles)

    @property
    def gpu_percent(self) -> float:
        """The utilization of each GPU, if none of the jobs slowed another down."""
        return sum(profile.gpu_percent for profile in self.profiles)


class PackingEngine(Engine):
    """An engine whose jobs may share whole GPUs. `prepare` must be called before the first job arrives."""

    def prepare(self, profiles: SharingProfiles, packing: PackingRules) -> None:
        """Set what the jobs are like, and the rules again, with the type that packs."""
        self.profiles = profiles
        self._packing = packing
        self.moved_ends: list[EngineJob] = []
        self.ends: dict[int, float] = {}  # by job: its end, if its speed has ever changed
        self.uncharged_s: dict[int, float] = defaultdict(float)  # by job: time on GPUs that is charged to others
        self.slowed_s: dict[int, float] = defaultdict(float)  # by job: time without progress, because it shared GPUs
        self.tried: set[int] = set()  # waiting jobs that no open set accepts, apart from those in `news`
        self.news: list[GpuHolders] = []  # sets that changed since the waiting jobs were tried last
        # GPUs -> sets that another job may join, by the start of their first job
        self._open: dict[int, list[OpenSet]] = {}
        self._holders: dict[int, GpuHolders] = {}  # by job
        self._speeds: dict[int, float] = {}  # by job, if its speed has ever changed

    def profile(self, job: EngineJob) -> JobProfile | None:
        """The profile of a job that may share its GPUs; None if it may not."""
        return None if job.group.need.gpu_milli else self.profiles.of(job.number)

    def open_sets(self, gpus: int) -> list[OpenSet]:
        """The sets of this many GPUs that another job may join, by the start of their first job."""
        return self._open.get(gpus, [])

    def has_cpu_memory(self, holders: GpuHolders, job: EngineJob) -> bool:
        """Whether the nodes of the set have the CPUs and the memory that the job needs beside its GPUs."""
        nodes = sum(1 << node for node, _ in holders.places)
        return self.resources.with_cpu_memory(job.group.need, nodes) == nodes

    # Starts

    def _start_single_arrival(self, now: float) -> bool:
        """Leave it to the turn, because rules may prefer shared GPUs to free ones."""
        return False

    def begin(self, job: EngineJob, places: GpuPlacement, now: float) -> None:
        super().begin(job, places, now)
        self.tried.discard(job.number)
        if (profile := self.profile(job)) is not None:
            holders = self._holders[job.number] = GpuHolders(job, places, profile)
            self._update_open(holders, job.group.gpus)

    def join(self, holders: GpuHolders, job: EngineJob, now: float) -> None:
        """Start a job on the GPUs of others."""
        profile = self.profile(job)
        assert profile is not None
        self._count_progress(holders, now)
        self.resources.move(_without_gpus(holders.places), job.group.need, -1)
        self._record_start(job, holders.places, now)
        self.tried.discard(job.number)
        self._holders[job.number] = holders
        holders.jobs.append(job)
        holders.profiles.append(profile)
        self._update_open(holders, job.group.gpus)
        self._set_speeds(holders, now)

    # Ends

    def _return_places(self, job: EngineJob, now: float) -> None:
        holders = self._holders.pop(job.number, None)
        if holders is None:
            super()._return_places(job, now)
            return
        self._count_progress(holders, now)
        self._speeds.pop(job.number, None)
        self.ends.pop(job.number, None)
        at = holders.jobs.index(job)
        del holders.jobs[at], holders.profiles[at]
        if holders.jobs:
            self.resources.move(_without_gpus(holders.places), job.group.need, 1)
            self.changes.record_any_change(self.resources)
            self._set_speeds(holders, now)
        else:
            super()._return_places(job, now)
        self._update_open(holders, job.group.gpus)

    def stop_job(self, job: EngineJob, now: float, cost_s: Callable[[EngineJob], float] | None = None) -> None:
        if (holders := self._holders.get(job.number)) is not None:
            self._count_progress(holders, now)
        super().stop_job(job, now, cost_s)

    # Speeds

    def _count_progress(self, holders: GpuHolders, now: float) -> None:
        """Count what the jobs of a set have done since their speed last changed."""
        jobs = len(holders.jobs)
        for job in holders.jobs:
            passed, speed = now - job.since, self._speeds.get(job.number, 1.0)
            if jobs > 1:
                self.uncharged_s[job.number] += passed * (1.0 - 1.0 / jobs)
                self.slowed_s[job.number] += passed * (1.0 - speed)
            job.attained += job.group.charged_gpus * passed
            job.remaining_s -= passed * speed
            job.since = now

    def _set_speeds(self, holders: GpuHolders, now: float) -> None:
        speeds = self._packing.speeds(holders, self.profiles)
        for job, speed in zip(holders.jobs, speeds, strict=True):
            self._speeds[job.number] = speed
            self.ends[job.number] = now + max(0.0, job.remaining_s) / speed if speed > 0.0 else math.inf
            self.moved_ends.append(job)

    def _update_open(self, holders: GpuHolders, gpus: int) -> None:
        """Enter the set among those that another job may join, or remove it from them."""
        if (entry := holders.entry) is not None:
            of_size = self._open[gpus]
            del of_size[bisect_left(of_size, entry)]
            holders.entry = None
        if 0 < len(holders.jobs) < self._packing.max_jobs:
            first = holders.jobs[0]
            holders.entry = first.began, first.number, holders
            insort(self._open.setdefault(gpus, []), holders.entry)
            self.news.append(holders)


def _without_gpus(places: GpuPlacement) -> GpuPlacement:
    return tuple((node, 0) for node, _ in places)
