"""Work that is due at a time, in a fixed order. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush


class Agenda:
    """Entries are never removed: whoever is woken checks whether there is still something to do."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, str, str]] = []
        self._count = 0  # breaks ties: first scheduled, first woken

    def schedule(self, at: float, who: str, what: str) -> None:
        self._count += 1
        heappush(self._entries, (at, self._count, who, what))

    @property
    def next_at(self) -> float | None:
        return self._entries[0][0] if self._entries else None

    def take_due(self, now: float) -> Iterator[tuple[str, str]]:
        """Who is woken for what, up to now."""
        while self._entries and self._entries[0][0] <= now:
            _, _, who, what = heappop(self._entries)
            yield who, what
