"""The plan behind `conservative`: which job has reserved which nodes, from when until when.

It is a timeline with a step from each expected end or reserved start to the next. A job gets the first period in which
enough nodes have what it needs all the time. Its share is taken from the steps of that period, and the next job
follows. If CPUs and memory cannot be short, a step is a few node sets (`GpuOnlyTimeline`), so a gang costs no more than
a single node; otherwise it is a copy of `NodeResources` (`ExactTimeline`). `timeline` has the contract of both.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import itemgetter

from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.engine import Engine
from scheduling.engine.job import EngineJob, QueueEntry, RequestGroup
from scheduling.engine.placement import PER_NODE_PLACEMENTS
from scheduling.engine.resources import GpuPlacement, NodeResources, NodeSet
from scheduling.engine.turns.exact_timeline import ExactTimeline
from scheduling.engine.turns.gpu_only_timeline import GpuOnlyTimeline
from scheduling.engine.turns.timeline import PlannedShare, ResourceTimeline

MAX_TIMELINE_STEPS = 256  # more ends than this are grouped, at the latest end of each group
MAX_GPUS_FOR_SETS = 16  # per node; with more, the node sets would be too many
MIN_RUN_S = 1e-3  # a job with an expected time of 0 still needs a place
OVERDUE_EXTENSION_S = 60.0  # a job past its expected end is expected to run this much longer

EndGroup = tuple[float, list[EngineJob]]  # time, and the jobs that end then
KnownStarts = tuple[list[float], list[float]]  # run times and earliest starts, both ascending
NO_KNOWN_STARTS: KnownStarts = [], []


class ReservationPlan:
    """Reservations of waiting jobs, made one after the other in queue order."""

    def __init__(self, engine: Engine, now: float) -> None:
        self._place = engine.place
        self._engine = engine
        self.starts: dict[EngineJob, tuple[float, PlannedShare]] = {}
        self._order: list[tuple[float, int, EngineJob]] = []  # the same by time, then in order of reservation
        self._reservations = 0
        self._until: dict[EngineJob, float] = {}  # when each job is planned to release its GPUs
        self.last: QueueEntry | None = None  # the last entry in queue order that has a reservation
        self.later: Iterator[QueueEntry] = iter(())  # jobs not yet planned
        self.reservation_count = 0  # reservations made from the queue
        self._requests: list[ResourceRequest] = []
        self._numbers: dict[ResourceRequest, int] = {}
        # By request number, and nodes that a quota bars
        self._never_before: dict[tuple[int, NodeSet], KnownStarts] = {}
        groups = list(_with_reopenings(engine, _end_groups(engine, now)))
        for at, ended in groups:
            for job in ended:
                self._until[job] = at
        self.times = [now, *(at for at, _ in groups)]
        self._counts_gpus_only = _only_gpus_can_be_short(engine, groups)
        steps = _free_resources_over_time(engine, groups)
        self.timeline: ResourceTimeline = (
            GpuOnlyTimeline(steps, self._requests) if self._counts_gpus_only else ExactTimeline(steps, self._requests)
        )
        self._known: dict[int, tuple[ResourceRequest, int]] = {}

    @property
    def job(self) -> EngineJob:
        """The first job that has a reservation; there must be one."""
        return next(iter(self.starts))

    @property
    def at(self) -> float:
        """The reserved start of that job."""
        return self.starts[self.job][0]

    def advance_to(self, now: float) -> None:
        """Drop past steps, so that the first one starts now."""
        past = bisect_right(self.times, now) - 1
        if past > 0:
            del self.times[:past]
            self.timeline.drop_steps(past)
        self.times[0] = now

    def fits_now(self, group: RequestGroup) -> bool:
        """Whether enough nodes fit the request in the first step, regardless of for how long."""
        need, request = self._numbered_request(group)
        return (self.timeline.fitting_nodes(0, request) & group.eligible_nodes).bit_count() >= need.nodes

    def reserve(self, job: EngineJob) -> float | None:
        """Reserve the earliest start that delays no existing reservation. None if the job never fits."""
        need, request = self._numbered_request(job.group)
        rest = replace(need, nodes=1, gpus=need.rest, rest=0) if need.rest else None
        beside_request = self._request_number(rest) if rest else 0
        times, timeline, min_nodes = self.times, self.timeline, need.nodes
        first, count = bisect_left(times, self._earliest_known_start(job)), len(times)
        while first < count:
            begins = times[first]
            until = begins + max(job.expected_s, MIN_RUN_S)
            last = bisect_left(times, until, first + 1)
            eligible = self._engine.maintenance.eligible_nodes(job.group, begins) & timeline.usable_nodes(first)
            among, narrow = timeline.nodes_fitting_throughout(first, last, request, min_nodes, eligible)
            if narrow < last:
                first = timeline.next_start(first, narrow, request, min_nodes, eligible)
            else:
                beside = timeline.nodes_fitting_throughout(first, last, beside_request, 0, eligible)[0] if rest else 0
                without_victims = 0
                if first == 0 and self._engine.borrowers.jobs and not job.group.borrows:
                    without_victims = self._engine.resources.fitting_nodes(need, among)
                places = without_victims and self._find_placement(first, last, need, rest, without_victims, beside)
                if places or (places := self._find_placement(first, last, need, rest, among, beside)):
                    share = PlannedShare(places, need)
                    self._reserve_share(first, last, until, share)
                    self.starts[job] = begins, share
                    self._until[job] = until
                    self._reservations += 1
                    insort(self._order, (begins, self._reservations, job))
                    self._record_start(job, begins)
                    return begins
                first += 1
        self._record_start(job, math.inf)
        return None

    def _numbered_request(self, group: RequestGroup) -> tuple[ResourceRequest, int]:
        """The request as far as it matters here, and its number."""
        if (numbered := self._known.get(group.shape)) is None:
            need = replace(group.need, cpus=0, memory_mb=0) if self._counts_gpus_only else group.need
            numbered = self._known[group.shape] = need, self._request_number(need)
        return numbered

    def _limit_key(self, group: RequestGroup) -> tuple[int, NodeSet]:
        return self._numbered_request(group)[1], group.barred_nodes

    def _request_number(self, request: ResourceRequest) -> int:
        if (number := self._numbers.get(request)) is None:
            number = self._numbers[request] = len(self._requests)
            self._requests.append(request)
        return number

    def _find_placement(
        self,
        first: int,
        last: int,
        need: ResourceRequest,
        rest: ResourceRequest | None,
        among: NodeSet,
        beside: NodeSet,
    ) -> GpuPlacement | None:
        """Place the whole nodes, then the remainder on another node."""
        if need.gpu_milli:
            return self._find_share_of_gpu(first, last, need, among)
        resources = self.timeline.resources_at(first)
        whole = self._place(resources, replace(need, rest=0) if rest else need, among)
        if whole is None or rest is None:
            return whole
        remainder = self._place(resources, rest, beside & ~sum(1 << node for node, _ in whole))
        return (*whole, *remainder) if remainder is not None else None

    def _find_share_of_gpu(self, first: int, last: int, need: ResourceRequest, among: NodeSet) -> GpuPlacement | None:
        """Place a share on a GPU that has it free in all these steps. That its node has it free in each of them is not
        enough, because it may be on different GPUs.
        """
        timeline = self.timeline
        assert isinstance(timeline, ExactTimeline)
        places = self._place(timeline.resources_at(first), need, among)
        if places is None or timeline.share_lasts(first, last, PlannedShare(places, need)):
            return places
        return self._place(timeline.resources_throughout(first, last, among), need, among)

    def _reserve_share(self, first: int, last: int, until: float, share: PlannedShare) -> None:
        """Take the share from all steps before `until`. `last` is the first step that is not before it."""
        if until < math.inf and (last == len(self.times) or self.times[last] != until):
            self.times.insert(last, until)
            self.timeline.split_step(last)
        self.timeline.take(first, last, share)

    def _record_start(self, job: EngineJob, begins: float) -> None:
        """Remember, per run time, the latest start of jobs that take no longer. Used by `_earliest_known_start`."""
        takes, starts = self._never_before.setdefault(self._limit_key(job.group), ([], []))
        at = ends = bisect_left(takes, job.expected_s)
        while ends < len(takes) and starts[ends] <= begins:
            ends += 1
        takes[at:ends] = [job.expected_s]
        starts[at:ends] = [begins]

    def _earliest_known_start(self, job: EngineJob) -> float:
        """A lower bound of the start. The plan only fills up, so equal requests that take as long start no earlier."""
        takes, starts = self._never_before.get(self._limit_key(job.group), NO_KNOWN_STARTS)
        at = bisect_right(takes, job.expected_s)
        return starts[at - 1] if at else -math.inf

    def matches(self, resources: NodeResources, now: float) -> bool:
        """Whether the resources are as planned, apart from jobs that are due to start."""
        if self._all_on_time(now):
            return True
        at = max(0, bisect_right(self.times, now) - 1)
        return self.timeline.equals(at, resources, [self.starts[job][1] for job in self.due(now)])

    def _all_on_time(self, now: float) -> bool:
        """Whether every job since the last turn released its GPUs exactly as planned.

        A node that is closed or opened ends the plan, so the resources are as planned then. With claims, jobs may hold
        other GPUs than planned.
        """
        engine = self._engine
        late = bool(engine.running.by_end) and engine.running.by_end[0][0] <= now
        in_time = not late and not engine.rules.claims
        for job in engine.changes.ends:
            in_time &= self._until.pop(job, math.inf) == now
        return in_time

    @property
    def next_start_time(self) -> float:
        """The earliest reserved start."""
        return self._order[0][0] if self._order else math.inf

    def due(self, now: float) -> list[EngineJob]:
        """The jobs whose reserved start has come."""
        if self.next_start_time > now:
            return []
        return [job for _, _, job in self._order[: bisect_right(self._order, now, key=itemgetter(0))]]

    def start(self, now: float) -> list[tuple[EngineJob, GpuPlacement]]:
        """Remove the due reservations and return their jobs and placements."""
        due = self.due(now)
        del self._order[: len(due)]
        return [(job, self.starts.pop(job)[1].places) for job in due]


def _free_resources_over_time(engine: Engine, groups: list[EndGroup]) -> Iterator[NodeResources]:
    """What owners find free now and after each group of ends; one object, which changes from step to step."""
    resources = engine.owner_resources.copy()
    yield resources
    for at, ended in groups:
        if not ended:
            engine.maintenance.reopen_nodes(resources, at)
        for job in ended:
            resources.give(job.places or (), job.group.need)
        yield resources


def _only_gpus_can_be_short(engine: Engine, groups: list[EndGroup]) -> bool:
    """Whether `GpuOnlyTimeline` can be used: jobs need whole GPUs, and at all times, nodes have enough CPUs and memory
    for their free GPUs. There is no power budget.
    """
    a_gpu = _max_cpu_memory_per_gpu(engine)
    resources = engine.owner_resources
    if a_gpu is None or resources.most > MAX_GPUS_FOR_SETS or resources.counts_power:
        return False
    if engine.place not in PER_NODE_PLACEMENTS or engine.maintenance.periods:
        return False
    if any(group.need.gpu_milli for group in engine.groups.values()):
        return False
    if not any(a_gpu):
        return True
    if not _has_cpu_memory_per_gpu(resources, a_gpu, range(len(resources.nodes))):
        return False
    resources = resources.copy()
    for _, ended in groups:
        for job in ended:
            places = job.places or ()
            resources.give(places, job.group.need)
            if not _has_cpu_memory_per_gpu(resources, a_gpu, [node for node, _ in places]):
                return False
    return True


def _max_cpu_memory_per_gpu(engine: Engine) -> tuple[float, float] | None:
    """The most CPUs and memory that any job needs per GPU; None if a job needs them without GPUs."""
    cpus = memory_mb = 0.0
    for group in engine.groups.values():
        if not group.need.needs_only_gpus:
            if not group.min_node_gpus:
                return None
            cpus, memory_mb = (
                max(cpus, group.need.cpus / group.min_node_gpus),
                max(memory_mb, group.need.memory_mb / group.min_node_gpus),
            )
    return cpus, memory_mb


def _has_cpu_memory_per_gpu(resources: NodeResources, a_gpu: tuple[float, float], nodes: Iterable[int]) -> bool:
    """Whether each node has this much free per free GPU. This stays true whichever jobs take GPUs."""
    cpus, memory_mb = a_gpu
    return all(
        resources.cpus[n] >= cpus * resources.free[n] and resources.memory_mb[n] >= memory_mb * resources.free[n]
        for n in nodes
    )


def _end_groups(engine: Engine, now: float) -> Iterator[EndGroup]:
    """Expected ends of running jobs, grouped so that there are at most about `MAX_TIMELINE_STEPS`."""
    ends = [(max(end, now + OVERDUE_EXTENSION_S) if end <= now else end, job) for end, _, job in engine.running.by_end]
    ends = sorted(
        ((at, job) for at, job in ends if at < math.inf and not _is_reclaimed(engine, job)), key=lambda one: one[0]
    )
    size = max(1, len(ends) // MAX_TIMELINE_STEPS)
    group: list[EngineJob] = []
    for index, (at, job) in enumerate(ends):
        group.append(job)
        following = ends[index + 1][0] if index + 1 < len(ends) else None
        if following != at and (len(group) >= size or following is None):
            yield at, group
            group = []


def _with_reopenings(engine: Engine, groups: Iterable[EndGroup]) -> Iterable[EndGroup]:
    """The groups, with ends of maintenance added as groups without jobs."""
    if not engine.maintenance.periods:
        return groups
    window_ends: list[EndGroup] = [(end, []) for end in engine.maintenance.end_times()]
    return sorted([*groups, *window_ends], key=itemgetter(0))


def _is_reclaimed(engine: Engine, job: EngineJob) -> bool:
    """Whether owners may treat the job's GPUs as free."""
    return engine.rules.claims and job.is_reclaimable
