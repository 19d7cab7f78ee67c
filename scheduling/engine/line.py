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
    from scheduling.engine.engine import Ask, Entry, Job

BLOCK = 256
CROWD = 100
BAND, KEY = itemgetter(0), itemgetter(1)


class Line:
    __slots__ = ("_entries", "_expected", "_front", "_shortest", "_waiting", "_who")

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._who: list[Job | None] = []
        self._expected: list[float] = []
        self._shortest: list[float] = []  # per block
        self._front = 0
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def __iter__(self) -> Iterator[Entry]:
        """Who waits in it now, in order."""
        front = self._front
        for at, entry in enumerate(self._entries[front:], front):
            if self._who[at] is not None:
                yield entry

    def add(self, entry: Entry) -> None:
        job = entry[3]
        self._waiting += 1
        at = len(self._entries)
        if at and self._entries[-1] >= entry:
            at = bisect_left(self._entries, entry)
            if self._entries[at] == entry:
                self._who[at], self._expected[at] = job, job.expected_s
                self._shortest[at // BLOCK] = min(self._shortest[at // BLOCK], job.expected_s)
                self._front = min(self._front, at)
                return
            self._front = min(self._front, at)
        self._entries.insert(at, entry)
        self._who.insert(at, job)
        self._expected.insert(at, job.expected_s)
        if at == len(self._entries) - 1:
            if at % BLOCK:
                self._shortest[-1] = min(self._shortest[-1], job.expected_s)
            else:
                self._shortest.append(job.expected_s)
        else:
            self._count_blocks(at // BLOCK)

    def extend(self, entries: list[Entry]) -> None:
        """Many, in order; the list is the line's from now on."""
        if self._entries:
            for entry in entries:
                self.add(entry)
            return
        self._entries = entries
        self._who = [entry[3] for entry in entries]
        self._expected = [entry[3].expected_s for entry in entries]
        self._waiting = len(entries)
        self._count_blocks(0)

    def remove(self, job: Job) -> None:
        self.take(bisect_left(self._entries, (job.band, job.key, job.number, job)))

    def take(self, at: int) -> Job:
        """Out of the line; his place stays his."""
        job = self._who[at]
        assert job is not None
        self._who[at], self._expected[at] = None, math.inf
        self._waiting -= 1
        if at == self._front:
            self._front_forward()
        return job

    @property
    def first(self) -> Entry:
        """The line must not be empty."""
        return self._entries[self._front]

    @property
    def front(self) -> int:
        return self._front

    def at(self, place: int) -> Entry:
        return self._entries[place]

    def next(self, place: int) -> int | None:
        """The first place from there on where somebody waits."""
        who = self._who
        for at in range(max(place, self._front), len(who)):
            if who[at] is not None:
                return at
        return None

    def next_short(self, place: int, slack: float) -> int | None:
        """The first from there on who is expected to take no longer."""
        place, expected, shortest = max(place, self._front), self._expected, self._shortest
        block = place // BLOCK
        while block < len(shortest):
            if shortest[block] <= slack:
                start = block * BLOCK
                for at, one in enumerate(expected[max(place, start) : start + BLOCK], max(place, start)):
                    if one <= slack and self._who[at] is not None:
                        return at
                shortest[block] = min(expected[start : start + BLOCK])
            block += 1
        return None

    def tidy(self) -> None:
        """Forget the places before the front, whole blocks at a time. Places change, so not during a walk."""
        blocks = self._front // BLOCK
        if blocks > 8 and self._front * 2 > len(self._entries):
            gone = blocks * BLOCK
            del self._entries[:gone], self._who[:gone], self._expected[:gone], self._shortest[:blocks]
            self._front -= gone

    def _front_forward(self) -> None:
        who, at = self._who, self._front
        while at < len(who) and who[at] is None:
            at += 1
        self._front = at

    def _count_blocks(self, since: int) -> None:
        del self._shortest[since:]
        for start in range(since * BLOCK, len(self._expected), BLOCK):
            self._shortest.append(min(self._expected[start : start + BLOCK]))


def join(arrived: list[Entry], hungry: dict[Ask, None]) -> None:
    """Each into the line of his wish. Many at once, as at the start of a live turn, line by line; they are in order."""
    if len(arrived) < CROWD:
        for entry in arrived:
            ask = entry[3].ask
            ask.line.add(entry)
            hungry[ask] = None
        return
    joining: dict[Ask, list[Entry]] = {}
    for entry in arrived:
        ask = entry[3].ask
        if (entries := joining.get(ask)) is None:
            joining[ask] = [entry]
        else:
            entries.append(entry)
    for ask, entries in joining.items():
        ask.line.extend(entries)
        hungry[ask] = None


def in_order(entries: list[Entry]) -> list[Entry]:
    """Entries that come by number. Comparing whole entries takes three times as long."""
    return sorted(sorted(entries, key=KEY), key=BAND)
