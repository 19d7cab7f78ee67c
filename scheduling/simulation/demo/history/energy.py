"""The energy of a simulated history by attempt and hour, from the power that its telemetry shows.

The rows are like those of `scheduling.power.loops.energy`. That loop needs raw samples, which a history does not have,
so here the mean power of 5 minutes counts for each of their seconds. What a node uses beside its GPUs is that of the
simulated Slurm cluster; the Kubernetes cluster does not report it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jobs.core.cluster_kinds import KUBERNETES
from scheduling.power.actions.energy import EnergyColumns
from scheduling.power.rules.energy import HOUR_S
from scheduling.simulation.demo.history.holds import GpuHolds
from scheduling.simulation.demo.history.values import HistoryPlace, PlacedAttempt
from scheduling.simulation.machines.power_meters import supply_power_w

NO_ATTEMPT = -1
MIN_GPU_S = 1e-3  # less is an error of rounding


class HistoryEnergy:
    """Adds the energy up, a node at a time."""

    def __init__(self, place: HistoryPlace, placed: Sequence[PlacedAttempt]) -> None:
        self._began_s, self._keys = int(place.began.timestamp()), [attempt.row.pk for attempt in placed]
        self._has_node_power = place.cluster.kind is not KUBERNETES
        self._parts: list[tuple[Any, ...]] = []  # columns: hour, attempt, joules, joules of the host, seconds

    def add_node(self, holds: GpuHolds, power_w: Any, interval_s: int) -> None:
        """Add what a node used: the watts of its GPUs by interval, NaN where they are not known."""
        hours = -(-len(power_w) * interval_s // HOUR_S)
        edges = np.minimum(np.arange(hours + 1) * (HOUR_S // interval_s), len(power_w))
        hold, hour, begins, ends = _pieces_by_hour(holds, len(power_w) * interval_s)
        columns = []
        for per_s in (np.nan_to_num(power_w), _host_shares_w(power_w) * self._has_node_power, ~np.isnan(power_w)):
            sums = np.vstack([np.zeros(per_s.shape[1]), per_s.cumsum(axis=0)]) * interval_s
            held = _sum_until(sums, ends / interval_s, holds.gpus[hold])
            held -= _sum_until(sums, begins / interval_s, holds.gpus[hold])
            unused = np.diff(sums[edges].sum(axis=1)) - np.bincount(hour, weights=held, minlength=hours)
            columns.append(np.concatenate([held, unused]))
        attempts = np.concatenate([holds.attempts[hold], np.full(hours, NO_ATTEMPT)])
        self._parts.append((np.concatenate([hour, np.arange(hours)]), attempts, *columns))

    def columns(self) -> EnergyColumns:
        hour, attempt, *values = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        pairs, where = np.unique(hour * (len(self._keys) + 1) + attempt + 1, return_inverse=True)
        power_j, host_j, gpu_s = (np.bincount(where, column) for column in values)
        known = gpu_s > MIN_GPU_S
        hour, attempt = divmod(pairs[known], len(self._keys) + 1)
        none = np.zeros(len(hour))
        rows = self._began_s + hour * HOUR_S, np.array([0, *self._keys])[attempt], none, power_j[known], none
        return [column.tolist() for column in (*rows, host_j[known], gpu_s[known])]


def _host_shares_w(power_w: Any) -> Any:
    """What the node uses beside its GPUs, divided among them; 0 where the power of a GPU is not known."""
    gpus_w = power_w.sum(axis=1, keepdims=True)
    host_w = np.nan_to_num(supply_power_w(gpus_w) - gpus_w)
    return np.broadcast_to(host_w / power_w.shape[1], power_w.shape)


def _pieces_by_hour(holds: GpuHolds, end_s: float) -> tuple[Any, Any, Any, Any]:
    """Cut the holds at full hours and at the end: columns with the place of the hold, hour, begin and end."""
    ends = np.minimum(holds.ends, end_s)
    first = (holds.begins // HOUR_S).astype(np.int64)
    counts = np.maximum(0, np.ceil(ends / HOUR_S).astype(np.int64) - first) * (ends > holds.begins)
    hold = np.repeat(np.arange(len(counts)), counts)
    hour = first[hold] + np.arange(len(hold)) - np.repeat(counts.cumsum() - counts, counts)
    begins = np.maximum(holds.begins[hold], hour * HOUR_S)
    return hold, hour, begins, np.minimum(ends[hold], (hour + 1) * HOUR_S)


def _sum_until(sums: Any, at: Any, gpus: Any) -> Any:
    """The sum of a GPU until a time in intervals, which may lie within one."""
    whole = np.minimum(at.astype(np.int64), len(sums) - 2)
    return sums[whole, gpus] + (at - whole) * (sums[whole + 1, gpus] - sums[whole, gpus])
