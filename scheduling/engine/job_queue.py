"""A queue in order from which any job may be taken: the first one, or the first one that is short enough.

Entries are kept in blocks. For each block the shortest expected time is known, or a lower bound if a job was removed.
Finding the first job that is short enough therefore reads one number per block and searches few blocks. A removed job
keeps its slot and returns to it if it has to wait again. Slots at the front are dropped once they outnumber the others.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduling.engine.job import EngineJob, QueueEntry, RequestGroup

BLOCK_SIZE = 256
BULK_ARRIVALS = 100
ENTRY_BAND, ENTRY_KEY = itemgetter(0), itemgetter(1)


class OrderedJobQueue:
    """Waiting jobs of one group in order, with a fast search for short ones."""

    __slots__ = ("_entries", "_expected", "_front", "_shortest", "_waiting", "_who")

    def __init__(self) -> None:
        self._entries: list[QueueEntry] = []
        self._who: list[EngineJob | None] = []
        self._expected: list[float] = []
        self._shortest: list[float] = []  # per block: a lower bound of the expected time
        self._front = 0
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def __iter__(self) -> Iterator[QueueEntry]:
        """The entries that wait now, in order."""
        front = self._front
        for at, entry in enumerate(self._entries[front:], front):
            if self._who[at] is not None:
                yield entry

    def add(self, entry: QueueEntry) -> None:
        """Insert an entry at its place, or return it to the slot that it left."""
        job = entry[3]
        self._waiting += 1
        at = len(self._entries)
        if at and self._entries[-1] >= entry:
            at = bisect_left(self._entries, entry)
            if self._entries[at] == entry:
                self._who[at], self._expected[at] = job, job.expected_s
                self._shortest[at // BLOCK_SIZE] = min(self._shortest[at // BLOCK_SIZE], job.expected_s)
                self._front = min(self._front, at)
                return
            self._front = min(self._front, at)
        self._entries.insert(at, entry)
        self._who.insert(at, job)
        self._expected.insert(at, job.expected_s)
        if at == len(self._entries) - 1:
            if at % BLOCK_SIZE:
                self._shortest[-1] = min(self._shortest[-1], job.expected_s)
            else:
                self._shortest.append(job.expected_s)
        else:
            self._update_blocks(at // BLOCK_SIZE)

    def extend(self, entries: list[QueueEntry]) -> None:
        """Add many entries that are in order. The queue takes ownership of the list."""
        if self._entries:
            for entry in entries:
                self.add(entry)
            return
        self._entries = entries
        self._who = [entry[3] for entry in entries]
        self._expected = [entry[3].expected_s for entry in entries]
        self._waiting = len(entries)
        self._update_blocks(0)

    def remove(self, job: EngineJob) -> None:
        """Take this job out of the queue."""
        self.take(bisect_left(self._entries, (job.band, job.key, job.number, job)))

    def take(self, at: int) -> EngineJob:
        """Take the job at this index out of the queue. Its slot is kept."""
        job = self._who[at]
        assert job is not None
        self._who[at], self._expected[at] = None, math.inf
        self._waiting -= 1
        if at == self._front:
            self._advance_front()
        return job

    @property
    def first(self) -> QueueEntry:
        """The first entry; the queue must not be empty."""
        return self._entries[self._front]

    @property
    def front_index(self) -> int:
        return self._front

    def at(self, place: int) -> QueueEntry:
        return self._entries[place]

    def next(self, place: int) -> int | None:
        """The first index from `place` on that holds a waiting job."""
        jobs = self._who
        for at in range(max(place, self._front), len(jobs)):
            if jobs[at] is not None:
                return at
        return None

    def next_within(self, place: int, slack: float) -> int | None:
        """The first index from `place` on with a job whose expected time is at most `slack`."""
        place, expected, shortest = max(place, self._front), self._expected, self._shortest
        block = place // BLOCK_SIZE
        while block < len(shortest):
            if shortest[block] <= slack:
                start = block * BLOCK_SIZE
                for at, expected_s in enumerate(expected[max(place, start) : start + BLOCK_SIZE], max(place, start)):
                    if expected_s <= slack and self._who[at] is not None:
                        return at
                shortest[block] = min(expected[start : start + BLOCK_SIZE])
            block += 1
        return None

    def tidy(self) -> None:
        """Drop whole blocks before the front. This changes indices, so it must not be called during a walk."""
        blocks = self._front // BLOCK_SIZE
        if blocks > 8 and self._front * 2 > len(self._entries):
            dropped = blocks * BLOCK_SIZE
            del self._entries[:dropped], self._who[:dropped], self._expected[:dropped], self._shortest[:blocks]
            self._front -= dropped

    def _advance_front(self) -> None:
        jobs, at = self._who, self._front
        while at < len(jobs) and jobs[at] is None:
            at += 1
        self._front = at

    def _update_blocks(self, since: int) -> None:
        del self._shortest[since:]
        for start in range(since * BLOCK_SIZE, len(self._expected), BLOCK_SIZE):
            self._shortest.append(min(self._expected[start : start + BLOCK_SIZE]))


def enqueue_entries(arrived: list[QueueEntry], waiting_groups: dict[RequestGroup, None]) -> None:
    """Add each entry to the queue of its group. Large batches, such as a live turn, are added group by group."""
    if len(arrived) < BULK_ARRIVALS:
        for entry in arrived:
            group = entry[3].group
            group.queue.add(entry)
            waiting_groups[group] = None
        return
    by_group: dict[RequestGroup, list[QueueEntry]] = {}
    for entry in arrived:
        group = entry[3].group
        if (entries := by_group.get(group)) is None:
            by_group[group] = [entry]
        else:
            entries.append(entry)
    for group, entries in by_group.items():
        group.queue.extend(entries)
        waiting_groups[group] = None


def sort_entries(entries: list[QueueEntry]) -> list[QueueEntry]:
    """Sort entries that are in order of their numbers. Two stable sorts take a third of the time of comparing whole
    entries.
    """
    return sorted(sorted(entries, key=ENTRY_KEY), key=ENTRY_BAND)
