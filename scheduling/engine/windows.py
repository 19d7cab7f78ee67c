"""Maintenance: nodes that must be empty from a time on, until another. Who would still run then does not start there.

A `Window` is how rows say it, in the Picture; a `Bar` is the same for the engine, in seconds and sets of nodes. How
long a job holds its nodes is its time limit, else what jobs like it took so far (`WaitingJob.usual`); of whom neither
is known, nobody can say that he is over in time, so he does not start there from the window's `lead` on.

Times are rounded up, so that jobs of all lengths stand in few lines, but never past the next window: what may start
now is exact, and what is promised for later errs by being late.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

UNKNOWN_RUN_S = math.inf
MIN_ROUNDING_S = 900.0
DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class NodeWindow:
    """Ids of nodes, whether they take work now or not."""

    name: str
    start: datetime
    end: datetime
    lead: timedelta
    nodes: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class MaintenanceBar:
    """`shut` are those of the nodes that take no work already and will again when it is over."""

    window: NodeWindow
    start: float
    end: float
    lead_s: float
    nodes: int
    shut: int

    @staticmethod
    def of(window: NodeWindow, numbers: Mapping[int, int], shut: Collection[int], now: datetime) -> MaintenanceBar:
        """`numbers`: id of a node -> its number in the room; `shut` are ids."""
        held = [node for node in window.nodes if node in numbers]
        goes_on = window.start <= now
        return MaintenanceBar(
            window=window,
            start=window.start.timestamp(),
            end=window.end.timestamp(),
            lead_s=window.lead.total_seconds(),
            nodes=sum(1 << numbers[node] for node in held),
            shut=sum(1 << numbers[node] for node in held if goes_on and node in shut),
        )

    def _assumed_run_s(self, runs_s: float) -> float:
        return self.lead_s if runs_s == UNKNOWN_RUN_S else runs_s

    def stops(self, runs_s: float, at: float) -> bool:
        """Whether one who starts then and holds his nodes so long would be there during the maintenance."""
        return at < self.end and (at >= self.start or at + self._assumed_run_s(runs_s) > self.start)

    def change_times(self, runs_s: float, after: float) -> Iterator[float]:
        """When that answer will be another one."""
        yield from (at for at in (self.start - self._assumed_run_s(runs_s), self.start, self.end) if at > after)


def blocked_nodes(bars: Iterable[MaintenanceBar], runs_s: float, at: float) -> int:
    """The nodes on which he may not start."""
    nodes = 0
    for bar in bars:
        if bar.stops(runs_s, at):
            nodes |= bar.nodes
    return nodes


def round_up_run_time(bars: Collection[MaintenanceBar], runs_s: float, now: float) -> float:
    """A little longer, but what it may start on now stays the same."""
    if runs_s == UNKNOWN_RUN_S:
        return runs_s
    step = MIN_ROUNDING_S if runs_s < DAY_S else 2.0 ** (math.floor(math.log2(runs_s)) - 4)
    until = [bar.start - now for bar in bars if bar.start - now >= runs_s]
    return min(math.ceil(runs_s / step) * step, *until) if until else math.ceil(runs_s / step) * step


def run_time_seconds(limit: timedelta | None, usual: timedelta | None) -> float:
    known = limit or usual
    return known.total_seconds() if known else UNKNOWN_RUN_S
