"""What GPUs do in a simulated history: the phases of each kind of job, and the load of the cluster by minute."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from jobs.core.lifecycle import JobKind
from scheduling.simulation.demo.history.values import HistoryPlace, PlacedAttempt
from scheduling.simulation.drill.history import SiteHistory


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


# Phases as columns of numbers, counted from 1; 0 is none
_ALL_PHASES = [phase for phases in PHASES.values() for phase in phases]
SHARE, UTILIZATION, MEMORY, SM = (
    np.array([0.0, *(getattr(phase, name) for phase in _ALL_PHASES)])
    for name in ("share", "utilization", "memory", "sm")
)
_MOST_PHASES = max(map(len, PHASES.values()))
_NUMBERS = {
    kind: [*(_ALL_PHASES.index(phase) + 1 for phase in phases), *[0] * (_MOST_PHASES - len(phases))]
    for kind, phases in PHASES.items()
}


class PhaseColumns:
    """The phases of all attempts, up to the end of the history."""

    def __init__(self, placed: Sequence[PlacedAttempt], end_s: float) -> None:
        self._numbers = np.array([_NUMBERS[attempt.work.kind] for attempt in placed]).reshape(-1, _MOST_PHASES)
        runs = np.array([(attempt.life.promised, min(attempt.ended, end_s)) for attempt in placed])
        began, ended = runs.reshape(-1, 2).T
        edges = [began]
        for shares in SHARE[self._numbers].T:
            edges.append(edges[-1] + (ended - began) * shares)
        self._edges = np.array(edges)

    def of_attempts(self, attempts: Any) -> tuple[Any, Any, Any, Any]:
        """Columns with the phase, the place of its attempt among these, begin and end."""
        numbers = self._numbers[attempts]
        which, order = np.nonzero(numbers)
        rows = attempts[which]
        return numbers[which, order], which, self._edges[order, rows], self._edges[order + 1, rows]


MINUTE_COLUMNS = (
    *("cluster_id", "at", "gpus", "allocated", "closed", "utilization", "running", "waiting", "requested"),
)
MinuteValues = tuple[int, datetime, int, int, int, float, int, int, int]


class LoadSeries:
    """The load of the cluster by minute."""

    def __init__(self, history: SiteHistory, place: HistoryPlace, placed: Sequence[PlacedAttempt]) -> None:
        self.history, self.plan, self.place, self.placed = history, history.plan, place, placed
        self.end_s = history.plan.end_s
        self.length = math.floor(self.end_s / 60)

    def minutes(self) -> Iterator[MinuteValues]:
        total = self.plan.nodes * self.plan.gpus_per_node
        counts = (*self._runs(), *self._waits(), self._closed_gpus())
        for minute, values in enumerate(zip(*(series.tolist() for series in counts), strict=True)):
            held, used, jobs, queued, wanted, shut = values
            yield (
                self.place.cluster.pk, self.place.at(minute * 60), total, round(held),
                min(round(shut), total - round(held)), round(used / total, 2), round(jobs), round(queued),
                round(wanted),
            )  # fmt: skip

    def _runs(self) -> Iterator[Any]:
        """Yield GPUs allocated, their utilization in percent, and running attempts, by minute."""
        gpus = np.array([len(attempt.gpus) for attempt in self.placed], dtype=float)
        began, ended = np.array([(attempt.life.promised, attempt.ended) for attempt in self.placed]).reshape(-1, 2).T
        yield self._count(began, ended, gpus)
        phases, which, begins, ends = PhaseColumns(self.placed, self.end_s).of_attempts(np.arange(len(gpus)))
        yield self._count(begins, ends, gpus[which] * UTILIZATION[phases])
        yield self._count(began, ended, np.ones(len(gpus)))

    def _waits(self) -> Iterator[Any]:
        """Yield waiting jobs and the GPUs that they request, by minute."""
        rows = []
        for work in self.history.jobs:
            since = work.submitted
            for life in work.lives:
                rows.append((since, life.promised, float(work.gpus)))
                since = life.ended if life.ended is not None else self.end_s
        begins, ends, gpus = np.array(rows).reshape(-1, 3).T
        yield self._count(begins, ends, np.ones(len(rows)))
        yield self._count(begins, ends, gpus)

    def _closed_gpus(self) -> Any:
        """GPUs of closed nodes by minute."""
        shut: Counter[int] = Counter()
        changes = []
        for closure in self.history.closures:
            before = shut[closure.node] > 0
            shut[closure.node] += 1 if closure.closes else -1
            if before != (shut[closure.node] > 0):
                changes.append((closure.at, math.inf, self.plan.gpus_per_node * (-1 if before else 1)))
        begins, ends, gpus = np.array(changes, dtype=float).reshape(-1, 3).T
        return self._count(begins, ends, gpus)

    def _count(self, begins: Any, ends: Any, amounts: Any) -> Any:
        """Add the amounts of intervals in the minutes at whose beginning they last."""
        first, last = (np.ceil(np.minimum(at, self.end_s) / 60).astype(np.int64) for at in (begins, ends))
        changes = np.zeros(self.length + 1)
        for minutes, sign in ((first, 1), (last, -1)):
            changes += sign * np.bincount(np.minimum(minutes, self.length), amounts, self.length + 1)
        return changes.cumsum()[: self.length]
