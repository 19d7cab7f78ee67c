"""Nodes that sleep and wake up, step by step, with the limits that hardware needs. Pure.

In each step the nodes that are to be awake are known before the demand of the step. If the demand is higher than the
number of nodes that are ready, that is one unplanned wake-up: the missing nodes are woken up in this step, and their
jobs wait for the boot. Which nodes are idle is not in the series: the node that was awake longest goes to sleep, and
the node that was asleep longest wakes up, which spreads the wake-ups over all nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from scheduling.power.rules.awake_nodes import STEPS_PER_DAY, Floats, NodeSeries


@dataclass(frozen=True, kw_only=True)
class SleepLimits:
    """In steps of ten minutes. Unplanned wake-ups do not wait for `min_asleep`. A node that woke up `max_wakes_per_day`
    times within 24 hours stays awake."""

    min_awake: int = 6
    min_asleep: int = 3
    max_wakes_per_day: int = 4
    boot: int = 0  # steps that a node boots; 0: less than a step


@dataclass(frozen=True, kw_only=True)
class SleepRun:
    """What happened in each step."""

    awake: NDArray[np.int64]  # nodes that draw power, also while they boot
    woken: NDArray[np.int64]  # nodes that began to boot
    unplanned: NDArray[np.bool_]  # demand was above the number of ready nodes


@dataclass
class _Fleet:
    """The nodes in the order in which they fell asleep or woke up, as (step, node)."""

    limits: SleepLimits
    awake: deque[tuple[int, int]] = field(default_factory=deque)
    asleep: deque[tuple[int, int]] = field(default_factory=deque)
    wakes: dict[int, deque[int]] = field(default_factory=dict)
    nodes: int = 0

    def resize(self, total: int, step: int) -> None:
        """New nodes are awake. Nodes that are removed are asleep ones first."""
        while len(self.awake) + len(self.asleep) < total:
            self.awake.appendleft((step - STEPS_PER_DAY, self.nodes))
            self.nodes += 1
        while len(self.awake) + len(self.asleep) > total:
            (self.asleep or self.awake).pop()

    def wake(self, count: int, step: int, *, is_planned: bool) -> int:
        """Wake up to this many nodes. Return their number."""
        woken = 0
        while woken < count and self.asleep:
            if is_planned and step - self.asleep[0][0] < self.limits.min_asleep:
                break
            node = self.asleep.popleft()[1]
            self.awake.append((step, node))
            self.wakes.setdefault(node, deque()).append(step)
            woken += 1
        return woken

    def sleep(self, count: int, step: int) -> None:
        """Send up to this many nodes to sleep."""
        kept: list[tuple[int, int]] = []
        while count > 0 and self.awake and step - self.awake[0][0] >= self.limits.min_awake:
            entry = self.awake.popleft()
            if self._wakes_of_day(entry[1], step) >= self.limits.max_wakes_per_day:
                kept.append(entry)
                continue
            self.asleep.append((step, entry[1]))
            count -= 1
        self.awake.extendleft(reversed(kept))

    def ready(self, step: int) -> int:
        """The number of nodes that have booted."""
        booting = 0
        for since, _ in reversed(self.awake):
            if step - since >= self.limits.boot:
                break
            booting += 1
        return len(self.awake) - booting

    def _wakes_of_day(self, node: int, step: int) -> int:
        wakes = self.wakes.get(node)
        while wakes and step - wakes[0] >= STEPS_PER_DAY:
            wakes.popleft()
        return len(wakes or ())


def run_fleet(series: NodeSeries, needed: Floats, limits: SleepLimits) -> SleepRun:
    """Play the series with these numbers of nodes to keep awake. All nodes are awake at the beginning."""
    fleet, length = _Fleet(limits=limits), len(series)
    awake, woken = np.zeros(length, dtype=np.int64), np.zeros(length, dtype=np.int64)
    unplanned = np.zeros(length, dtype=np.bool_)
    columns: Sequence[list[int]] = [column.tolist() for column in (series.steps, series.active, series.total)]
    for at, (step, active, total) in enumerate(zip(*columns, strict=True)):
        fleet.resize(total, step)
        wanted = int(needed[at]) - len(fleet.awake)
        if wanted < 0:
            fleet.sleep(-wanted, step)
        woken[at] = fleet.wake(wanted, step, is_planned=True)
        if active > fleet.ready(step):
            unplanned[at] = True
            woken[at] += fleet.wake(active - len(fleet.awake), step, is_planned=False)
        awake[at] = len(fleet.awake)
    return SleepRun(awake=awake, woken=woken, unplanned=unplanned)
