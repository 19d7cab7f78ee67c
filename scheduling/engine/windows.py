"""Maintenance windows: nodes that must be empty for a period. Jobs that would still run then do not start there.

A `NodeWindow` comes from the database, in the snapshot. A `MaintenancePeriod` is the same for the engine, in seconds
and node sets. A job is assumed to hold its nodes for its time limit, else for the run time of similar jobs
(`WaitingJob.usual`). If neither is known, the job stops starting on these nodes from the window's `lead` before it.

Run times are rounded up, so that jobs of all lengths share few queues, but never past the next window. So decisions for
now are exact, and reservations for later can only be too late.
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
    """A maintenance of these node ids, whether they accept jobs now or not."""

    name: str
    start: datetime
    end: datetime
    lead: timedelta
    nodes: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class MaintenancePeriod:
    """A maintenance as the engine sees it. `closed_nodes` are closed already and are opened when it is over."""

    window: NodeWindow
    start: float
    end: float
    lead_s: float
    nodes: int
    closed_nodes: int

    @staticmethod
    def of(
        window: NodeWindow, numbers: Mapping[int, int], closed_nodes: Collection[int], now: datetime
    ) -> MaintenancePeriod:
        """Convert a window. `numbers`: node id -> its number in the engine; `closed_nodes`: ids of closed nodes."""
        present = [node for node in window.nodes if node in numbers]
        goes_on = window.start <= now
        return MaintenancePeriod(
            window=window,
            start=window.start.timestamp(),
            end=window.end.timestamp(),
            lead_s=window.lead.total_seconds(),
            nodes=sum(1 << numbers[node] for node in present),
            closed_nodes=sum(1 << numbers[node] for node in present if goes_on and node in closed_nodes),
        )

    def _assumed_run_s(self, runs_s: float) -> float:
        return self.lead_s if runs_s == UNKNOWN_RUN_S else runs_s

    def stops(self, runs_s: float, at: float) -> bool:
        """Whether a job that starts at that time and holds its nodes for `runs_s` would run during the maintenance."""
        return at < self.end and (at >= self.start or at + self._assumed_run_s(runs_s) > self.start)

    def change_times(self, runs_s: float, after: float) -> Iterator[float]:
        """The times at which the result of `stops` changes."""
        yield from (at for at in (self.start - self._assumed_run_s(runs_s), self.start, self.end) if at > after)


def blocked_nodes(periods: Iterable[MaintenancePeriod], runs_s: float, at: float) -> int:
    """The nodes on which a job with this run time may not start."""
    nodes = 0
    for period in periods:
        if period.stops(runs_s, at):
            nodes |= period.nodes
    return nodes


def round_up_run_time(periods: Collection[MaintenancePeriod], runs_s: float, now: float) -> float:
    """A longer run time that does not change where the job may start now."""
    if runs_s == UNKNOWN_RUN_S:
        return runs_s
    step = MIN_ROUNDING_S if runs_s < DAY_S else 2.0 ** (math.floor(math.log2(runs_s)) - 4)
    until = [period.start - now for period in periods if period.start - now >= runs_s]
    return min(math.ceil(runs_s / step) * step, *until) if until else math.ceil(runs_s / step) * step


def run_time_seconds(limit: timedelta | None, usual: timedelta | None) -> float:
    """The assumed run time: the limit, else the usual time, else `UNKNOWN_RUN_S`."""
    assumed = limit or usual
    return assumed.total_seconds() if assumed else UNKNOWN_RUN_S
