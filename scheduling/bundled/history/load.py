"""The load of a simulated history: of the cluster by minute, and of each GPU by hour."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jobs.core.lifecycle import JobKind
from jobs.models import ClusterMinute, Sample
from jobs.models.telemetry import Resolution
from scheduling.bundled.history.values import HistoryPlace, PlacedAttempt
from scheduling.drill.history import SiteHistory

# Mean utilization of an allocated GPU in percent. The study reports that the GPUs of large training jobs are busy
# nearly all the time, and that those of evaluation jobs are idle for half of it, while models load and metrics run.
UTILIZATION = {
    JobKind.PRETRAIN: 97.0, JobKind.SFT: 93.0, JobKind.MLLM: 88.0, JobKind.EVALUATION: 48.0, JobKind.DEBUG: 30.0,
    JobKind.OTHER: 40.0,
}  # fmt: skip
IDLE_POWER_W, BUSY_POWER_W = 60.0, 390.0
IDLE_TEMPERATURE_C, BUSY_TEMPERATURE_C = 31.0, 64.0
GPU_MEMORY_MIB = 81_920.0


class LoadSeries:
    """The load of the cluster by minute, and of each GPU by hour."""

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
            self._add(busy, attempt.life.promised, attempt.ended, gpus * UTILIZATION[attempt.work.kind])
            self._add(running, attempt.life.promised, attempt.ended, 1)
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
                change = self.plan.gpus_per_node * (-1 if before else 1)
                self._add(closed, closure.at, math.inf, change)
        return waiting, requested, closed

    def _series(self) -> Any:
        return np.zeros(self.length + 1)

    def _add(self, series: Any, begin: float, end: float, amount: float) -> None:
        """Count an interval in the minutes at whose beginning it lasts."""
        first, last = math.ceil(begin / 60), math.ceil(min(end, self.end_s) / 60)
        if first < last:
            series[min(first, self.length)] += amount
            series[min(last, self.length)] -= amount

    def samples(self) -> Iterator[Sample]:
        hours = math.floor(self.end_s / 3600)
        used = np.zeros((self.plan.nodes, self.plan.gpus_per_node, hours + 1))
        for attempt in self.placed:
            percent = UTILIZATION[attempt.work.kind]
            first, last = int(attempt.life.promised // 3600), int(min(attempt.ended, self.end_s) // 3600)
            for hour in range(first, last + 1):
                part = (min(attempt.ended, (hour + 1) * 3600) - max(attempt.life.promised, hour * 3600)) / 3600
                for node, gpu in attempt.gpus:
                    used[node, gpu, hour] += percent * max(0.0, part)
        noise = np.random.default_rng(self.plan.seed)
        for number, node in enumerate(self.place.nodes):
            room = noise.uniform(-3, 3)
            for hour in range(hours):
                shares = np.minimum(1.0, used[number, :, hour] / 100)
                heat = IDLE_TEMPERATURE_C + room + (BUSY_TEMPERATURE_C - IDLE_TEMPERATURE_C) * np.sqrt(shares)
                yield Sample(
                    node=node, resolution=Resolution.HOUR, at=self.place.at(hour * 3600),
                    gpu_util=(shares * 100).round(1).tolist(),
                    gpu_memory_mib=(GPU_MEMORY_MIB * 0.85 * shares).round().tolist(),
                    gpu_temperature_c=(heat + noise.uniform(-1, 1, len(shares))).round().tolist(),
                    gpu_power_w=(IDLE_POWER_W + (BUSY_POWER_W - IDLE_POWER_W) * shares).round().tolist(),
                    xid=[0.0] * len(shares),
                )  # fmt: skip
