"""Work that is due at a time, in a fixed order. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

Event = TypeVar("Event")
Target = TypeVar("Target")


class Agenda(Generic[Event, Target]):
    """Entries are never removed: whoever takes one checks whether there is still something to do."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Event, Target]] = []
        self._count = 0  # breaks ties: first scheduled, first taken

    def schedule(self, at: float, event: Event, target: Target) -> None:
        self._count += 1
        heappush(self._entries, (at, self._count, event, target))

    @property
    def next_at(self) -> float | None:
        return self._entries[0][0] if self._entries else None

    def take_due(self, now: float) -> Iterator[tuple[Event, Target]]:
        """What is due up to now, also what is scheduled meanwhile."""
        while self._entries and self._entries[0][0] <= now:
            _, _, event, target = heappop(self._entries)
            yield event, target
