"""Virtual time: what is due, in order. Of two things at one moment the one that was planned first comes first."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

TimedAction = Callable[[float], None]


class EventQueue:
    def __init__(self) -> None:
        self._due: list[tuple[float, int, TimedAction]] = []
        self._planned = 0
        self.now = 0.0

    def at(self, when: float, deed: TimedAction) -> None:
        self._planned += 1
        heappush(self._due, (max(when, self.now), self._planned, deed))

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, deed = heappop(self._due)
            deed(self.now)
        self.now = until
