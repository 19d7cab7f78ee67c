"""Simulated time: events that are planned for a time, and happen in a fixed order. Pure.

Of events of the same time, the one with the lower priority goes first, and of equal ones the one that was planned
first. So no two events compare equal, and a run repeats exactly. Events are never removed: one that is planned for
something which has changed in the meantime finds out by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any

Event = Callable[[Any, float], None]  # called with what it is about, and the time


class EventQueue:
    """The events that are still to happen."""

    __slots__ = ("_heap", "planned")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Event, Any]] = []
        self.planned = 0  # how many events have ever been planned

    def at(self, time: float, event: Event, subject: Any = None, priority: int = 0) -> None:
        """Plan an event. The subject is what it is about."""
        self.planned += 1
        heappush(self._heap, (time, priority, self.planned, event, subject))

    def __bool__(self) -> bool:
        """Whether an event is planned."""
        return bool(self._heap)

    @property
    def next_time(self) -> float:
        """The time of the next event; infinite if there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def next_subject(self, priority: int) -> Any:
        """What the next event is about, which stays in the queue; None if it has another priority, or there is none."""
        return self._heap[0][4] if self._heap and self._heap[0][1] == priority else None

    def drop_next(self) -> None:
        """Remove the next event, which does not happen then. There must be one."""
        heappop(self._heap)

    def run_until(self, now: float) -> None:
        """Let all events up to this time happen, including those that they plan."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            time, _, _, event, subject = heappop(heap)
            event(subject, time)

    def take_due(self, now: float) -> Iterator[tuple[Event, Any]]:
        """Remove the events up to this time, including those that are planned meanwhile, with what they are about.

        For a caller whose clock may be ahead of their times: it lets them happen now.
        """
        while self._heap and self._heap[0][0] <= now:
            _, _, _, event, subject = heappop(self._heap)
            yield event, subject

    def run(self) -> None:
        """Let events happen until there are none."""
        self.run_until(math.inf)
