"""The running jobs, and the orders in which turns walk them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from scheduling.engine.job import EngineJob, QueueEntry


class RunningJobs:
    """The running jobs by number, and an index in the order that the rules need.

    `by_rank` is filled for rules that rank running jobs, `by_end` for rules that make reservations. Each has one entry
    per running job, apart from `turns/preempting`, which takes jobs out of `by_rank` until it has chosen the victims.
    The entry is computed from `key`, `since` and `expected_s`, so these may change only while a job is not indexed.
    """

    __slots__ = ("_by_number", "_plans", "_ranks", "by_end", "by_rank")

    def __init__(self, *, ranks: bool, plans: bool) -> None:
        self._by_number: dict[int, EngineJob] = {}
        self._ranks, self._plans = ranks, plans
        self.by_rank: list[QueueEntry] = []  # first the job that the policy would preempt last
        self.by_end: list[tuple[float, int, EngineJob]] = []  # by expected end

    def __len__(self) -> int:
        return len(self._by_number)

    def values(self) -> Iterable[EngineJob]:
        """All running jobs, in the order in which they started."""
        return self._by_number.values()

    def on_node(self, number: int) -> Iterator[EngineJob]:
        """The jobs that hold GPUs of this node."""
        return (job for job in self._by_number.values() if any(node == number for node, _ in job.places or ()))

    def add(self, job: EngineJob) -> None:
        """Add a job that starts. Its rank is in `key`."""
        self._by_number[job.number] = job
        if self._ranks:
            self.add_rank(job)
        elif self._plans:
            insort(self.by_end, (job.since + job.expected_s, job.number, job))

    def extend(self, jobs: Iterable[EngineJob]) -> None:
        """Add jobs that started earlier. Their ranks are in `key`."""
        for job in jobs:
            self._by_number[job.number] = job
            if self._ranks:
                self.add_rank(job)
            if self._plans:
                self.by_end.append((job.since + job.expected_s, job.number, job))
        self.by_end.sort()

    def remove(self, job: EngineJob) -> None:
        """Remove a job that stops or ends."""
        del self._by_number[job.number]
        if self._ranks:
            self.remove_rank(job)
        elif self._plans:
            is_first = self.by_end[0][2] is job  # a job that ends as expected is
            del self.by_end[0 if is_first else bisect_left(self.by_end, (job.since + job.expected_s, job.number))]

    def add_rank(self, job: EngineJob) -> None:
        """Add the job to `by_rank` at the place that its `key` gives."""
        insort(self.by_rank, (job.band, job.key, job.number, job))

    def remove_rank(self, job: EngineJob) -> None:
        """Remove the job from `by_rank`, before its `key` changes."""
        del self.by_rank[bisect_left(self.by_rank, (job.band, job.key, job.number))]
