"""What GPUs do in a simulated history: the phases of each kind of job, and the load of the cluster by minute."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs.core.lifecycle import JobKind
from jobs.models import ClusterMinute
from scheduling.bundled.history.values import HistoryPlace, PlacedAttempt
from scheduling.drill.history import SiteHistory


@dataclass(frozen=True, kw_only=True)
class LoadPhase:
    """What a GPU does in a part of a job's run time. Utilization in percent, the others as shares."""

    share: float
    utilization: float
    memory: float
    sm: float  # of the time, in which a multiprocessor is active; determines the power


# The study reports that the GPUs of training jobs are busy nearly all the time, and that a GPU of an evaluation job is
# idle for half of it: 29.5% load and prepare, 19% compute metrics (NSDI'24, Fig. 13).
PHASES: dict[JobKind, tuple[LoadPhase, ...]] = {
    JobKind.PRETRAIN: (LoadPhase(share=1.0, utilization=97.0, memory=0.86, sm=0.78),),
    JobKind.SFT: (LoadPhase(share=1.0, utilization=93.0, memory=0.80, sm=0.66),),
    JobKind.MLLM: (LoadPhase(share=1.0, utilization=88.0, memory=0.78, sm=0.60),),
    JobKind.EVALUATION: (
        LoadPhase(share=0.295, utilization=3.0, memory=0.30, sm=0.01),
        LoadPhase(share=0.515, utilization=90.0, memory=0.62, sm=0.48),
        LoadPhase(share=0.19, utilization=2.0, memory=0.62, sm=0.0),
    ),
    JobKind.DEBUG: (LoadPhase(share=1.0, utilization=30.0, memory=0.35, sm=0.18),),
    JobKind.OTHER: (LoadPhase(share=1.0, utilization=40.0, memory=0.35, sm=0.25),),
}


def phases_of(attempt: PlacedAttempt, end_s: float) -> Iterator[tuple[float, float, LoadPhase]]:
    """Yield begin, end and phase in the order of time, up to the end of the history."""
    began, ended = attempt.life.promised, min(attempt.ended, end_s)
    at = began
    for phase in PHASES[attempt.work.kind]:
        until = at + (ended - began) * phase.share
        yield at, until, phase
        at = until


class LoadSeries:
    """The load of the cluster by minute."""

    def __init__(self, history: SiteHistory, place: HistoryPlace, placed: Sequence[PlacedAttempt]) -> None:
        self.history, self.plan, self.place, self.placed = history, history.plan, place, placed
        self.end_s = history.plan.end_s
        self.length = math.floor(self.end_s / 60)

    def minutes(self) -> Iterator[ClusterMinute]:
        total = self.plan.nodes * self.plan.gpus_per_node
        allocated, busy, running = (self._series() for _ in range(3))
        for attempt in self.placed:
            gpus = len(attempt.gpus)
            self._add(allocated, attempt.life.promised, attempt.ended, gpus)
            self._add(running, attempt.life.promised, attempt.ended, 1)
            for begin, end, phase in phases_of(attempt, self.end_s):
                self._add(busy, begin, end, gpus * phase.utilization)
        waiting, requested, closed = self._waits()
        columns = [
            np.cumsum(series)[: self.length] for series in (allocated, busy, running, waiting, requested, closed)
        ]
        for minute, values in enumerate(zip(*columns, strict=True)):
            held, used, jobs, queued, wanted, shut = map(float, values)
            yield ClusterMinute(
                cluster=self.place.cluster, at=self.place.at(minute * 60), gpus=total, allocated=round(held),
                closed=min(round(shut), total - round(held)), utilization=round(used / total, 2), running=round(jobs),
                waiting=round(queued), requested=round(wanted),
            )  # fmt: skip

    def _waits(self) -> tuple[Any, Any, Any]:
        waiting, requested, closed = (self._series() for _ in range(3))
        for work in self.history.jobs:
            since = work.submitted
            for life in work.lives:
                self._add(waiting, since, life.promised, 1)
                self._add(requested, since, life.promised, work.gpus)
                since = life.ended if life.ended is not None else self.end_s
        shut: Counter[int] = Counter()
        for closure in self.history.closures:
            before = shut[closure.node] > 0
            shut[closure.node] += 1 if closure.closes else -1
            if before != (shut[closure.node] > 0):
                self._add(closed, closure.at, math.inf, self.plan.gpus_per_node * (-1 if before else 1))
        return waiting, requested, closed

    def _series(self) -> Any:
        return np.zeros(self.length + 1)

    def _add(self, series: Any, begin: float, end: float, amount: float) -> None:
        """Count an interval in the minutes at whose beginning it lasts."""
        first, last = math.ceil(begin / 60), math.ceil(min(end, self.end_s) / 60)
        if first < last:
            series[min(first, self.length)] += amount
            series[min(last, self.length)] -= amount
