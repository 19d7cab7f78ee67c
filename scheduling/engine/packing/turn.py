"""Jobs start on free GPUs or on those of others. No job blocks another.

A waiting job that was tried before is only tried with sets of GPUs that have changed since, and only if a job of its
size may find free GPUs. This decides the same as trying all jobs with all sets, because the rules answer the same while
a set stays the same. Jobs that start in a turn are sets of their own, which others may join: the walk is repeated until
no set changes any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from scheduling.engine.job import EngineJob, QueueEntry, RequestGroup
from scheduling.engine.packing.shared_gpus import GpuHolders, OpenSet, PackingEngine

if TYPE_CHECKING:
    from scheduling.engine.packing.rules import PackingRules


def packing_turn(engine: PackingEngine, rules: PackingRules, now: float) -> None:
    """Start all jobs that fit on free GPUs or on those of others, in order."""
    fitting = {group.shape for group in engine.groups_to_try()}
    new = set(engine.changes.groups_with_arrivals)
    while engine.waiting_groups:
        walk = _Walk(engine, rules, fitting, new)
        if not walk.heads:
            break
        walk.start_jobs(now)
        new = set()
    engine.news.clear()


class _Walk:
    """One walk through the queues of the jobs that may start. `fitting` are shapes that may fit on free GPUs."""

    __slots__ = ("_engine", "_fitting", "_new", "_recent", "_rules", "heads")

    def __init__(self, engine: PackingEngine, rules: PackingRules, fitting: set[int], new: set[RequestGroup]) -> None:
        self._engine, self._rules, self._fitting, self._new = engine, rules, fitting, new
        self._recent: dict[int, list[GpuHolders]] = {}  # by number of GPUs: sets that changed
        self._read_news()
        self.heads = [(*group.queue[0][:3], group) for group in engine.waiting_groups if self._may_start(group)]
        heapify(self.heads)

    def _read_news(self) -> None:
        news = self._engine.news
        if news:
            for holders in news:
                if holders.entry is not None:
                    self._recent.setdefault(holders.jobs[0].group.gpus, []).append(holders)
            news.clear()

    def _may_start(self, group: RequestGroup) -> bool:
        """Whether the next job of this group may start."""
        if group.shape in self._fitting or group in self._new:
            return True
        return any(holders.entry is not None for holders in self._recent.get(group.gpus, ()))

    def start_jobs(self, now: float) -> None:
        """Try the jobs in order. What starts changes sets, which the later jobs and the next walk look at."""
        engine, heads = self._engine, self.heads
        waiting: list[QueueEntry] = []
        opened: list[GpuHolders] = []
        while heads:
            group = heappop(heads)[3]
            entry: QueueEntry = heappop(group.queue)
            if self._start(entry[3], now):
                opened += engine.news
                self._read_news()
            else:
                waiting.append(entry)
            if group.queue and self._may_start(group):
                heappush(heads, (*group.queue[0][:3], group))
        for entry in waiting:
            heappush(entry[3].group.queue, entry)
        for group in list(engine.waiting_groups):
            engine.tidy(group)
        engine.news += opened

    def _start(self, job: EngineJob, now: float) -> bool:
        """Start the job if it fits somewhere."""
        if self._rules.shares_first:
            return self._join(job, now) or self._take_free(job, now)
        return self._take_free(job, now) or self._join(job, now)

    def _take_free(self, job: EngineJob, now: float) -> bool:
        """Start the job on free GPUs, if it fits."""
        engine, group = self._engine, job.group
        if group.shape not in self._fitting:
            return False
        if (places := engine.place(engine.resources, group.need, group.eligible_nodes)) is None:
            self._fitting.discard(group.shape)
            return False
        engine.begin(job, places, now)
        return True

    def _join(self, job: EngineJob, now: float) -> bool:
        """Start the job on the GPUs of the best set that it may join."""
        engine, rules = self._engine, self._rules
        if (profile := engine.profile(job)) is None:
            return False
        best: GpuHolders | None = None
        lowest = 0.0
        for _, _, holders in self._candidates(job):
            cost = rules.sharing_cost(job, profile, holders, engine.profiles)
            if cost is not None and (best is None or cost < lowest) and engine.has_cpu_memory(holders, job):
                best, lowest = holders, cost
                if cost <= 0.0:
                    break
        if best is None:
            return False
        engine.join(best, job, now)
        return True

    def _candidates(self, job: EngineJob) -> Sequence[OpenSet]:
        """The sets to look at: all open ones, or for a job that was tried before those that changed since."""
        tried, gpus = self._engine.tried, job.group.gpus
        if job.number not in tried:
            tried.add(job.number)
            return self._engine.open_sets(gpus)
        return sorted({one.entry for one in self._recent.get(gpus, ()) if one.entry is not None})
