"""Virtual time: runs scheduled actions in order of time; actions of the same time run in order of scheduling."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

TimedAction = Callable[[float], None]


class EventQueue:
    def __init__(self) -> None:
        self._due: list[tuple[float, int, TimedAction]] = []
        self._planned = 0
        self.now = 0.0

    def at(self, at: float, action: TimedAction) -> None:
        self._planned += 1
        heappush(self._due, (max(at, self.now), self._planned, action))

    def every(self, interval_s: float, action: TimedAction) -> None:
        """Run the action again and again, the first time after one interval."""

        def run_and_repeat(now: float) -> None:
            action(now)
            self.at(now + interval_s, run_and_repeat)

        self.at(self.now + interval_s, run_and_repeat)

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, action = heappop(self._due)
            action(self.now)
        self.now = until
