"""Groups the events that the time slider of the map marks, so that a hundred drained nodes are one mark. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

GROUP_PERIOD = timedelta(minutes=30)
MAX_NAMES = 5


@dataclass(frozen=True, kw_only=True)
class MapEvent:
    """One event of a kind, such as "drain". `end` is None for a moment; `what` is the node or the cause."""

    at: datetime
    end: datetime | None
    kind: str
    what: str


@dataclass(frozen=True, kw_only=True)
class MapMark:
    """Events of one kind within half an hour."""

    at: datetime
    end: datetime | None
    kind: str
    names: Sequence[str]

    @property
    def text(self) -> str:
        """`seren-001, seren-002 and 7 more`, each name once."""
        names = list(dict.fromkeys(self.names))
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        return ", ".join(names[:MAX_NAMES]) + more


def map_marks(events: Iterable[MapEvent], period: timedelta = GROUP_PERIOD) -> list[MapMark]:
    """The marks in the order of time. Events with an end are not grouped."""
    marks: list[MapMark] = []
    newest: dict[str, int] = {}  # index of the last mark of each kind
    for event in sorted(events, key=lambda event: event.at):
        index = newest.get(event.kind)
        if index is not None and event.end is None and event.at - marks[index].at < period:
            marks[index] = replace(marks[index], names=[*marks[index].names, event.what])
            continue
        newest[event.kind] = len(marks)
        marks.append(MapMark(at=event.at, end=event.end, kind=event.kind, names=[event.what]))
    return marks
