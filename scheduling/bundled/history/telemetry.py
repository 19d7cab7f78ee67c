"""The telemetry of a simulated history: 5-minute means of each GPU and their hourly rollups, as COPY text.

A month of 32 nodes has 300,000 rows. As text of one node at a time they take seconds and little memory; as instances
of the model they would take minutes. Raw samples are not written, because they are kept for two days only.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from django.db import connection, connections

from jobs.models import Resolution, Sample
from scheduling.bundled.history.load import phases_of
from scheduling.bundled.history.values import HistoryPlace, PlacedAttempt
from scheduling.drill.history import SiteHistory
from scheduling.drill.symptoms import XIDS
from scheduling.drill.values import DrillFault
from scheduling.slurmsim.faults import FaultKind

COLUMNS = ("node_id", "resolution", "at", "gpu_util", "gpu_memory_mib", "gpu_temperature_c", "gpu_power_w", "xid")
GPU_MEMORY_MIB, FULL_POWER_W = 81_920.0, 400.0
IDLE_MEMORY, IDLE_POWER, SM_POWER = 0.005, 0.16, 0.76  # shares of the above
IDLE_TEMPERATURE_C, BUSY_TEMPERATURE_C = 30.0, 65.0
FINE_S, COARSE_S = int(Resolution.FIVE_MINUTES), int(Resolution.HOUR)
XID_VISIBLE_S = 24 * 3600.0  # at most, if nobody repairs the node: then somebody boots it
UTILIZATION, MEMORY, SM, PEAK = range(4)


def copy_samples(blocks: Iterable[str]) -> None:
    """Insert rows of samples from COPY text."""
    table, columns = connection.ops.quote_name(Sample._meta.db_table), ", ".join(COLUMNS)
    raw = connections[connection.alias]
    statement = f"COPY {table} ({columns}) FROM STDIN"
    with raw.wrap_database_errors, raw.cursor() as cursor, cursor.copy(statement) as copy:
        for block in blocks:
            copy.write(block)


class TelemetrySeries:
    """The telemetry of all nodes. `blocks` yields the rows of one node and one resolution at a time."""

    def __init__(
        self, history: SiteHistory, place: HistoryPlace, placed: Sequence[PlacedAttempt], until_s: float = math.inf
    ) -> None:
        """`until_s`: since when the demo has recorded telemetry itself."""
        self._history, self._plan, self._place = history, history.plan, place
        self._length = int(min(history.plan.end_s, until_s) // FINE_S)
        self._by_node: dict[int, list[tuple[PlacedAttempt, list[int]]]] = defaultdict(list)
        for attempt in placed:
            gpus: dict[int, list[int]] = defaultdict(list)
            for node, gpu in attempt.gpus:
                gpus[node].append(gpu)
            for node, indices in gpus.items():
                self._by_node[node].append((attempt, indices))

    def blocks(self) -> Iterator[str]:
        for number, node in enumerate(self._place.nodes):
            fine, down = self._fine_values(number), self._down_intervals(number)
            yield self._block(node.pk, FINE_S, fine, down)
            yield self._block(node.pk, COARSE_S, _hourly(fine), _by_hour(down).all(axis=1))

    def _fine_values(self, number: int) -> list[Any]:
        """Utilization, memory, temperature, power and Xid by interval and GPU; NaN where a GPU had no reading."""
        load = self._loads(number)
        noise = np.random.default_rng([self._plan.seed, number])
        busy = load[UTILIZATION] > 0
        shape = busy.shape
        utilization = np.clip(load[UTILIZATION] + busy * noise.normal(0, 1.2, shape), 0, 100).round()
        memory = ((IDLE_MEMORY + load[MEMORY]) * GPU_MEMORY_MIB).round()
        rise = (BUSY_TEMPERATURE_C - IDLE_TEMPERATURE_C) * load[PEAK] / 100
        temperature = (IDLE_TEMPERATURE_C + noise.uniform(-2, 2) + rise + noise.normal(0, 1.0, shape)).round()
        power = (FULL_POWER_W * (IDLE_POWER + SM_POWER * load[SM]) + noise.normal(0, 4.0, shape)).round()
        xid = np.zeros(shape)
        values = [utilization, memory, temperature, power, xid]
        for fault in self._history.faults:
            if fault.node == number:
                self._show_fault(fault, values)
        return values

    def _loads(self, number: int) -> Any:
        load = np.zeros((4, self._length, self._plan.gpus_per_node), dtype=np.float32)
        for attempt, gpus in self._by_node[number]:
            for begin, end, phase in phases_of(attempt, self._plan.end_s):
                first, last = int(begin // FINE_S), min(int(end // FINE_S), self._length - 1)
                for at, until in ((first, first + 1), (first + 1, last), (max(last, first + 1), last + 1)):
                    # The first and the last interval are used in part
                    if at < until <= self._length:
                        part = min(1.0, (min(end, until * FINE_S) - max(begin, at * FINE_S)) / FINE_S)
                        where = (slice(at, until), gpus)
                        load[UTILIZATION][where] += phase.utilization * part
                        load[MEMORY][where] += phase.memory * part
                        load[SM][where] += phase.sm * part
                        load[PEAK][where] = np.maximum(load[PEAK][where], phase.utilization)
        return load

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

    def _block(self, node: int, seconds: int, values: Sequence[Any], down: Any) -> str:
        columns = [_array_texts(column) for column in values]
        lines = [
            f"{node}\t{seconds}\t{self._place.at(number * seconds).isoformat()}\t" + "\t".join(texts)
            for number, (is_down, texts) in enumerate(zip(down.tolist(), zip(*columns, strict=True), strict=True))
            if not is_down
        ]
        return "\n".join(lines) + "\n" if lines else ""


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


def _array_texts(column: Any) -> list[str]:
    """PostgreSQL's text of each row as an array."""
    if not np.isnan(column).any() and (column == column.round()).all():
        column = column.astype(np.int32)  # shorter
    return ["{" + str(row)[1:-1].replace("nan", "NULL") + "}" for row in column.tolist()]
