"""Logs of what changed, so that a look derives anew only what follows from changed objects. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

MAX_CHANGES = 50_000


class ChangeLog:
    """The names of changed objects in the order of their changes. `count` increases with each change."""

    def __init__(self, most: int = MAX_CHANGES) -> None:
        self.count = 0
        self._names: deque[str] = deque(maxlen=most)

    def add(self, name: str) -> None:
        self._names.append(name)
        self.count += 1

    def add_everything(self) -> None:
        self._names.clear()
        self.count += 1

    def since(self, count: int) -> set[str] | None:
        """What changed after this count was read; None: everything, or more than is kept."""
        number = self.count - count
        return None if number > len(self._names) else set(islice(reversed(self._names), number))


class ChangeReader:
    """Reads what changed since it read last."""

    def __init__(self) -> None:
        self._counts: dict[ChangeLog, int] | None = None

    @contextmanager
    def changes(self, logs: Iterable[ChangeLog]) -> Iterator[set[str] | None]:
        """The names of what changed; None: everything. If the block is interrupted, everything counts as changed the
        next time.
        """
        before, self._counts = self._counts, None
        now = {log: log.count for log in logs}
        yield _changes_between(before, now)
        self._counts = now


def _changes_between(before: dict[ChangeLog, int] | None, now: dict[ChangeLog, int]) -> set[str] | None:
    if before is None or before.keys() != now.keys():
        return None
    names: set[str] = set()
    for log, count in before.items():
        if count != now[log]:
            changed = log.since(count)
            if changed is None:
                return None
            names |= changed
    return names
