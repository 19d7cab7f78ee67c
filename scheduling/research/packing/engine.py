"""Packing: several jobs on the same whole GPUs, each slower than alone. Only in replays, and only with profiles.

The first job of a set of GPUs takes them from the free resources as always, and the last one returns them. In between,
the others take and return CPUs and memory only. So free GPUs, their index and placements do not know of packing, and an
engine whose rules do not pack is an `Engine`, which has nothing of this.

The speed of a job changes when another one joins or leaves. Then its progress is counted up to that time, and its end
moves: the replay finds it in `changed_speeds`.

Jobs start on free GPUs or on those of others. No job blocks another. A waiting job that was tried before is only tried
with sets of GPUs that have changed since, and only if a job of its size may find free GPUs. This decides the same as
trying all jobs with all sets, because the rules answer the same while a set stays the same. Jobs that start in a turn
are sets of their own, which others may join: the walk is repeated until no set changes any more.

A policy is a subclass of `PackingRules` in a file of its own.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from heapq import heapify
from typing import Any, ClassVar

from mypy_extensions import mypyc_attr

from scheduling.engine.engine import ChangedSpeeds, Engine, PolicyRules
from scheduling.engine.job import EngineJob, QueueEntry, RequestGroup
from scheduling.engine.resources import GpuPlacement
from scheduling.engine.settings import positive_number, reject_unknown
from scheduling.whatif.replay.sharing_profiles import JobProfile, SharingProfiles

GPU_MEMORY_MB = 24_576.0  # of the GPUs on which the authors of Lucid measured
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
    """An engine whose jobs may share whole GPUs."""

    def prepare(self) -> None:
        assert isinstance(self.rules, PackingRules)
        self.profiles = self.rules.profiles
        self._packing = self.rules
        self._changed = self.changed_speeds = ChangedSpeeds()
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
        self._changed.ends.pop(job.number, None)
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
                _add(self._changed.uncharged_s, job.number, passed * (1.0 - 1.0 / jobs))
                _add(self._changed.slowed_s, job.number, passed * (1.0 - speed))
            job.attained += job.group.charged_gpus * passed
            job.remaining_s -= passed * speed
            job.since = now

    def _set_speeds(self, holders: GpuHolders, now: float) -> None:
        speeds = self._packing.speeds(holders, self.profiles)
        for job, speed in zip(holders.jobs, speeds, strict=True):
            self._speeds[job.number] = speed
            self._changed.ends[job.number] = now + max(0.0, job.remaining_s) / speed if speed > 0.0 else math.inf
            self._changed.moved.append(job)

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


def _add(times: dict[int, float], job: int, seconds: float) -> None:
    times[job] = times.get(job, 0.0) + seconds


def _without_gpus(places: GpuPlacement) -> GpuPlacement:
    return tuple((node, 0) for node, _ in places)


@mypyc_attr(allow_interpreted_subclasses=True)
class PackingRules(PolicyRules):
    """A queue order, and which sets of GPUs a job may join.

    max_jobs      the maximum number of jobs on the same GPUs
    shares_first  a job joins others even if it could have free GPUs

    Only jobs that request equally many GPUs share them. A job that fits nowhere blocks no other.
    """

    packs = True
    engine_class: ClassVar[type[Engine]] = PackingEngine
    max_jobs: ClassVar[int] = 2
    shares_first: ClassVar[bool] = False

    def __init__(self, gpu_memory_mb: float = GPU_MEMORY_MB) -> None:
        self.gpu_memory_mb = gpu_memory_mb
        self.profiles = SharingProfiles((), {}, [])

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> PolicyRules:
        reject_unknown(settings, "gpu_memory_mb")
        return cls(positive_number(settings, "gpu_memory_mb")) if settings else cls()

    def load_profiles(self, profiles: Any) -> None:
        self.profiles = profiles

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


def packing_turn(engine: PackingEngine, rules: PackingRules, now: float) -> None:
    """Start all jobs that fit on free GPUs or on those of others, in order."""
    fitting = {group.shape for group in engine.groups_to_try()}
    while engine.waiting_groups:
        changed, engine.news = engine.news, []
        sizes = {holders.jobs[0].group.gpus for holders in changed if holders.entry}
        new = engine.changes.groups_with_arrivals
        groups = [group for group in engine.waiting_groups if _is_tried(group, fitting, sizes) or group in new]
        if not groups:
            break
        _walk(engine, rules, groups, changed, fitting, now)
        new.clear()
        if not engine.news:
            break
    engine.news.clear()


def _is_tried(group: RequestGroup, fitting: set[int], sizes: set[int]) -> bool:
    return group.shape in fitting or group.gpus in sizes


def _walk(
    engine: PackingEngine,
    rules: PackingRules,
    groups: list[RequestGroup],
    changed: list[GpuHolders],
    fitting: set[int],
    now: float,
) -> None:
    """Try all jobs of these groups once. Removes from `fitting` what fits on no free GPUs."""
    entries: list[QueueEntry] = []
    for group in groups:
        entries += group.queue
    entries.sort()
    any_started = False
    for entry in entries:
        job = entry[3]
        started = rules.shares_first and _join(engine, rules, job, changed, now)
        started = started or _take_free(engine, job, fitting, now)
        if started or (not rules.shares_first and _join(engine, rules, job, changed, now)):
            any_started = True
    if any_started:
        for group in groups:
            _drop_started(engine, group)


def _take_free(engine: PackingEngine, job: EngineJob, fitting: set[int], now: float) -> bool:
    """Start the job on free GPUs, if it fits."""
    group = job.group
    if group.shape not in fitting:
        return False
    if (places := engine.place(engine.resources, group.need, group.eligible_nodes)) is None:
        fitting.discard(group.shape)
        return False
    engine.begin(job, places, now)
    return True


def _join(engine: PackingEngine, rules: PackingRules, job: EngineJob, changed: list[GpuHolders], now: float) -> bool:
    """Start the job on the GPUs of the best set that it may join. A job that was tried before looks at changed sets."""
    if (profile := engine.profile(job)) is None:
        return False
    gpus = job.group.gpus
    if job.number in engine.tried:
        recent = (*changed, *engine.news)  # those that opened within this walk too
        candidates = [one.entry for one in recent if one.entry and one.jobs[0].group.gpus == gpus]
        candidates.sort()
    else:
        candidates = engine.open_sets(gpus)
        engine.tried.add(job.number)
    best: GpuHolders | None = None
    lowest = 0.0
    for _, _, holders in candidates:
        cost = rules.sharing_cost(job, profile, holders, engine.profiles)
        if cost is not None and (best is None or cost < lowest) and engine.has_cpu_memory(holders, job):
            best, lowest = holders, cost
            if cost <= 0.0:
                break
    if best is None:
        return False
    engine.join(best, job, now)
    return True


def _drop_started(engine: PackingEngine, group: RequestGroup) -> None:
    """Remove the jobs that run now from the queue of their group."""
    group.queue = [entry for entry in group.queue if entry[3].places is None]
    heapify(group.queue)
    engine.tidy(group)
