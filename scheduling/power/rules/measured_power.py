"""The measured power of some nodes together, with their hosts. Pure.

A node counts with the newest of its readings: its own power if the site measures it, else that of its GPUs and the line
of `gpu_clocks` from these to the node. A GPU without power counts by its utilization, as in the energy ledger. A node
without a fresh reading counts with its last one, and after some minutes as fully used if it has jobs, else as idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from scheduling.power.rules.clock_curves import FULL_W
from scheduling.power.rules.energy import MAX_GPU_POWER_W, model_power_w, power_estimate_w
from scheduling.power.rules.gpu_clocks import PowerFleet

FRESH_S = 45.0  # three polls of the telemetry
REPEATED_S = 15.0  # an exporter shows its last values until it measures again
LAST_READING_S = 600.0  # an older one says nothing
MAX_UNREAD_SHARE = 0.1  # of the nodes; with more, the sum is too uncertain for a release
FLEET = PowerFleet(nodes=1)


@dataclass(frozen=True, kw_only=True)
class NodeReading:
    """A node and its newest reading. `at_s` is None without one. Values are those of its GPUs, or of its devices if
    `parts` says which part of a GPU each of them is."""

    gpus: int
    parts: Sequence[float] = ()
    model: str = ""
    has_jobs: bool = False
    is_asleep: bool = False
    at_s: float | None = None
    gpu_power_w: Sequence[float | None] = ()
    gpu_util: Sequence[float | None] = ()
    node_power_w: float | None = None


@dataclass(frozen=True, kw_only=True)
class MeasuredPower:
    """The power of all nodes at the time of the newest reading."""

    at_s: float
    watts: float
    nodes: int
    unread: int  # nodes without a fresh reading

    @property
    def is_certain(self) -> bool:
        """Whether it may justify a release."""
        return self.unread <= MAX_UNREAD_SHARE * self.nodes

    def is_newer(self, at_s: float, watts: float) -> bool:
        """Whether this is another measurement than that of this time. Power that equals it in all digits was not
        measured again; after a while it counts, because idle GPUs may draw the same for long."""
        return self.at_s - at_s >= REPEATED_S or (self.at_s > at_s and self.watts != watts)


def measured_power(nodes: Iterable[NodeReading]) -> MeasuredPower | None:
    """The power of the nodes; None if none of them has a reading."""
    rows = list(nodes)
    at_s = max((row.at_s for row in rows if row.at_s is not None), default=None)
    if at_s is None:
        return None
    watts = sum(_node_w(row, at_s) for row in rows)
    unread = sum(not row.is_asleep and not _is_within(row, at_s, FRESH_S) for row in rows)
    return MeasuredPower(at_s=at_s, watts=watts, nodes=len(rows), unread=unread)


def _is_within(row: NodeReading, at_s: float, seconds: float) -> bool:
    return row.at_s is not None and at_s - row.at_s <= seconds


def _node_w(row: NodeReading, at_s: float) -> float:
    if not _is_within(row, at_s, LAST_READING_S) or (row.is_asleep and not _is_within(row, at_s, FRESH_S)):
        return 0.0 if row.is_asleep else _with_host_w(row, row.gpus * _estimate_w(row, 100.0 * row.has_jobs))
    if row.node_power_w is not None:
        return row.node_power_w
    parts = row.parts or (1.0,) * row.gpus
    values = zip_longest(row.gpu_power_w, row.gpu_util, parts)
    return _with_host_w(row, sum(_gpu_w(row, power, util, part) for power, util, part in values))


def _gpu_w(row: NodeReading, power: float | None, util: float | None, part: float | None) -> float:
    """The power of a device; `part` is None if the node is not known to have it."""
    if power is not None and 0 <= power <= MAX_GPU_POWER_W:
        return power
    return (1.0 if part is None else part) * _estimate_w(row, 100.0 * row.has_jobs if util is None else util)


def _estimate_w(row: NodeReading, util_percent: float) -> float:
    return power_estimate_w(model_power_w(row.model) or FULL_W, util_percent)


def _with_host_w(row: NodeReading, gpus_w: float) -> float:
    return FLEET.host_w * row.gpus / FLEET.gpus_per_node + FLEET.supply_factor * gpus_w
