"""A line in order of which anybody may be called out of turn: the first, and the first who is short enough.

Entries stand in blocks; of each block the shortest expected time is known, or less than it where somebody has left.
So finding the first who is short enough looks at one number a block and into few blocks. A leaver keeps his place, and
gets it back if he must wait again. Places at the front are cleared when they are more than the rest.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduling.engine.engine import EngineJob, QueueEntry, RequestGroup

BLOCK_SIZE = 256
BULK_ARRIVALS = 100
ENTRY_BAND, ENTRY_KEY = itemgetter(0), itemgetter(1)


class OrderedJobQueue:
    __slots__ = ("_entries", "_expected", "_front", "_shortest", "_waiting", "_who")

    def __init__(self) -> None:
        self._entries: list[QueueEntry] = []
        self._who: list[EngineJob | None] = []
        self._expected: list[float] = []
        self._shortest: list[float] = []  # per block
        self._front = 0
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def __iter__(self) -> Iterator[QueueEntry]:
        """Who waits in it now, in order."""
        front = self._front
        for at, entry in enumerate(self._entries[front:], front):
            if self._who[at] is not None:
                yield entry

    def add(self, entry: QueueEntry) -> None:
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
        """Many, in order; the list is the line's from now on."""
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
        self.take(bisect_left(self._entries, (job.band, job.key, job.number, job)))

    def take(self, at: int) -> EngineJob:
        """Out of the line; his place stays his."""
        job = self._who[at]
        assert job is not None
        self._who[at], self._expected[at] = None, math.inf
        self._waiting -= 1
        if at == self._front:
            self._advance_front()
        return job

    @property
    def first(self) -> QueueEntry:
        """The line must not be empty."""
        return self._entries[self._front]

    @property
    def front_index(self) -> int:
        return self._front

    def at(self, place: int) -> QueueEntry:
        return self._entries[place]

    def next(self, place: int) -> int | None:
        """The first place from there on where somebody waits."""
        who = self._who
        for at in range(max(place, self._front), len(who)):
            if who[at] is not None:
                return at
        return None

    def next_within(self, place: int, slack: float) -> int | None:
        """The first from there on who is expected to take no longer."""
        place, expected, shortest = max(place, self._front), self._expected, self._shortest
        block = place // BLOCK_SIZE
        while block < len(shortest):
            if shortest[block] <= slack:
                start = block * BLOCK_SIZE
                for at, one in enumerate(expected[max(place, start) : start + BLOCK_SIZE], max(place, start)):
                    if one <= slack and self._who[at] is not None:
                        return at
                shortest[block] = min(expected[start : start + BLOCK_SIZE])
            block += 1
        return None

    def tidy(self) -> None:
        """Forget the places before the front, whole blocks at a time. Places change, so not during a walk."""
        blocks = self._front // BLOCK_SIZE
        if blocks > 8 and self._front * 2 > len(self._entries):
            gone = blocks * BLOCK_SIZE
            del self._entries[:gone], self._who[:gone], self._expected[:gone], self._shortest[:blocks]
            self._front -= gone

    def _advance_front(self) -> None:
        who, at = self._who, self._front
        while at < len(who) and who[at] is None:
            at += 1
        self._front = at

    def _update_blocks(self, since: int) -> None:
        del self._shortest[since:]
        for start in range(since * BLOCK_SIZE, len(self._expected), BLOCK_SIZE):
            self._shortest.append(min(self._expected[start : start + BLOCK_SIZE]))


def enqueue_entries(arrived: list[QueueEntry], hungry: dict[RequestGroup, None]) -> None:
    """Each into the line of his wish. Many at once, as at the start of a live turn, line by line; they are in order."""
    if len(arrived) < BULK_ARRIVALS:
        for entry in arrived:
            ask = entry[3].ask
            ask.line.add(entry)
            hungry[ask] = None
        return
    joining: dict[RequestGroup, list[QueueEntry]] = {}
    for entry in arrived:
        ask = entry[3].ask
        if (entries := joining.get(ask)) is None:
            joining[ask] = [entry]
        else:
            entries.append(entry)
    for ask, entries in joining.items():
        ask.line.extend(entries)
        hungry[ask] = None


def sort_entries(entries: list[QueueEntry]) -> list[QueueEntry]:
    """Entries that come by number. Comparing whole entries takes three times as long."""
    return sorted(sorted(entries, key=ENTRY_KEY), key=ENTRY_BAND)
