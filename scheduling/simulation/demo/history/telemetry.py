"""The telemetry of a simulated history: 5-minute means of each GPU and their hourly rollups.

Raw samples are not written, because they are kept for two days only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs.models import Node, Resolution
from scheduling.simulation.demo.history.holds import GpuHolds, holds_by_node
from scheduling.simulation.demo.history.load import MEMORY, SM, UTILIZATION, PhaseColumns
from scheduling.simulation.demo.history.sample_copy import sample_rows
from scheduling.simulation.demo.history.values import HistoryPlace, PlacedAttempt
from scheduling.simulation.drill.history import SiteHistory
from scheduling.simulation.drill.symptoms import XIDS
from scheduling.simulation.drill.values import DrillFault
from scheduling.simulation.machines.faults import FaultKind

GPU_MEMORY_MIB, FULL_POWER_W = 81_920.0, 400.0
IDLE_MEMORY, IDLE_POWER, SM_POWER = 0.005, 0.16, 0.76  # shares of the above
IDLE_TEMPERATURE_C, BUSY_TEMPERATURE_C = 30.0, 65.0
FINE_S, COARSE_S = int(Resolution.FIVE_MINUTES), int(Resolution.HOUR)
XID_VISIBLE_S = 24 * 3600.0  # at most, if nobody repairs the node: then somebody boots it
POWER = 3  # its place among the values of a node


@dataclass(frozen=True, kw_only=True)
class NodeTelemetry:
    """Utilization, memory, temperature, power and Xid by interval and GPU; NaN where a GPU had no reading."""

    node: Node
    holds: GpuHolds
    fine: Sequence[Any]
    down: Any  # intervals without samples

    @property
    def power_w(self) -> Any:
        return np.where(self.down[:, np.newaxis], np.nan, self.fine[POWER])


class TelemetrySeries:
    """The telemetry of all nodes, one after the other."""

    def __init__(
        self, history: SiteHistory, place: HistoryPlace, placed: Sequence[PlacedAttempt], until_s: float = math.inf
    ) -> None:
        """`until_s`: since when the demo has recorded telemetry itself."""
        self._history, self._plan, self._place = history, history.plan, place
        self._length = int(min(history.plan.end_s, until_s) // FINE_S)
        self._phases = PhaseColumns(placed, history.plan.end_s)
        self._holds = holds_by_node(placed, len(place.nodes))

    def nodes(self) -> Iterator[NodeTelemetry]:
        for number, node in enumerate(self._place.nodes):
            yield NodeTelemetry(
                node=node, holds=self._holds[number], fine=self._fine_values(number), down=self._down_intervals(number)
            )

    def copy_blocks(self, telemetry: NodeTelemetry) -> Iterator[bytes]:
        """Yield the rows of a node for COPY."""
        hourly_down = _by_hour(telemetry.down).all(axis=1)
        for seconds, values, down in (
            (FINE_S, telemetry.fine, telemetry.down), (COARSE_S, _hourly(telemetry.fine), hourly_down),
        ):  # fmt: skip
            yield sample_rows(telemetry.node.pk, seconds, self._place.began, np.flatnonzero(~down), values)

    def _fine_values(self, number: int) -> list[Any]:
        utilization, memory, sm, peak = self._loads(self._holds[number])
        noise = np.random.default_rng([self._plan.seed, number])
        busy, shape = utilization > 0, utilization.shape
        utilization = np.clip(utilization + busy * noise.normal(0, 1.2, shape), 0, 100).round()
        memory = ((IDLE_MEMORY + memory) * GPU_MEMORY_MIB).round()
        rise = (BUSY_TEMPERATURE_C - IDLE_TEMPERATURE_C) * peak / 100
        temperature = (IDLE_TEMPERATURE_C + noise.uniform(-2, 2) + rise + noise.normal(0, 1.0, shape)).round()
        power = (FULL_POWER_W * (IDLE_POWER + SM_POWER * sm) + noise.normal(0, 4.0, shape)).round()
        values = [utilization, memory, temperature, power, np.zeros(shape)]
        for fault in self._history.faults:
            if fault.node == number:
                self._show_fault(fault, values)
        return values

    def _loads(self, holds: GpuHolds) -> list[Any]:
        """Mean utilization, memory and SM activity by interval and GPU, and the highest utilization."""
        shape = self._length, self._plan.gpus_per_node
        phases, hold, begins, ends = self._phases.of_attempts(holds.attempts)
        gpus, first = holds.gpus[hold], (begins // FINE_S).astype(np.int64)
        last = np.minimum(ends // FINE_S, self._length - 1).astype(np.int64)
        between = first + 1 < last
        full = _full_intervals(shape, phases[between], gpus[between], first[between] + 1, last[between])
        # An attempt uses a part of its first interval, and of its last one
        in_first, in_last = np.flatnonzero(first < self._length), np.flatnonzero(last > first)
        rows, at = np.concatenate([in_first, in_last]), np.concatenate([first[in_first], last[in_last]])
        used_s = np.minimum(ends[rows], (at + 1) * FINE_S) - np.maximum(begins[rows], at * FINE_S)
        return _mean_loads(full, at * shape[1] + gpus[rows], phases[rows], np.minimum(1.0, used_s / FINE_S))

    def _show_fault(self, fault: DrillFault, values: list[Any]) -> None:
        """Show the Xid of a fault until the node is booted. A GPU that fell off the bus has no readings."""
        first = int(fault.at // FINE_S)
        last = int(min(self._repaired_at(fault), self._plan.end_s) // FINE_S) + 1
        if code := XIDS.get(fault.kind):
            values[-1][first:last, fault.gpu] = code
        if fault.kind == FaultKind.OFF_BUS:
            for column in values:
                column[first + 1 : last, fault.gpu] = np.nan

    def _repaired_at(self, fault: DrillFault) -> float:
        ends = [row.at for row in self._history.closures if row.node == fault.node and not row.closes]
        return min((at for at in ends if at > fault.at), default=fault.at + XID_VISIBLE_S)

    def _down_intervals(self, number: int) -> Any:
        """Which intervals a node without an exporter spent down."""
        down, since = np.zeros(self._length, dtype=bool), None
        for row in self._history.closures:
            if row.node != number or row.why != "down":
                continue
            if row.closes:
                since = row.at if since is None else since
            elif since is not None:
                down[math.ceil(since / FINE_S) : int(row.at // FINE_S)] = True
                since = None
        return down


def _full_intervals(shape: tuple[int, int], phases: Any, gpus: Any, begins: Any, ends: Any) -> Any:
    """The phase that has an interval of a GPU for itself, or 0. These phases exclude each other."""
    changes = np.zeros((shape[0] + 1, shape[1]), dtype=np.int64)
    np.add.at(changes, (begins, gpus), phases)
    np.subtract.at(changes, (ends, gpus), phases)
    return changes.cumsum(axis=0)[:-1]


def _mean_loads(full: Any, cells: Any, phases: Any, shares: Any) -> list[Any]:
    """The loads of full intervals, and of phases that have a share of a cell: an interval of a GPU."""
    means = [
        values[full] + np.bincount(cells, values[phases] * shares, minlength=full.size).reshape(full.shape)
        for values in (UTILIZATION, MEMORY, SM)
    ]
    highest = UTILIZATION[full]
    np.maximum.at(highest.reshape(-1), cells, UTILIZATION[phases])
    return [values.astype(np.float32) for values in (*means, highest)]


def _hourly(fine: Sequence[Any]) -> list[Any]:
    """Roll up as the product does: means, the highest temperature and the last Xid."""
    utilization, memory, temperature, power, xid = map(_by_hour, fine)
    return [
        _mean(utilization).round(1), _mean(memory).round(), _highest(temperature), _mean(power).round(), xid[:, -1]
    ]  # fmt: skip


def _by_hour(column: Any) -> Any:
    """The intervals of each full hour."""
    per_hour = COARSE_S // FINE_S
    return column[: len(column) // per_hour * per_hour].reshape(-1, per_hour, *column.shape[1:])


def _mean(values: Any) -> Any:
    known = ~np.isnan(values)
    counts = known.sum(axis=1)
    return np.where(counts > 0, np.where(known, values, 0).sum(axis=1) / np.maximum(counts, 1), np.nan)


def _highest(values: Any) -> Any:
    highest = np.where(np.isnan(values), -1, values).max(axis=1)
    return np.where(highest < 0, np.nan, highest)
