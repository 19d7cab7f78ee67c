"""Rows and readings for tests of power caps: four nodes of seren, a budget, and the clocks that were commanded."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from jobs.models import Cluster, Node, NodeClock, Resolution, Sample
from scheduling.clusters.clock_command import ClocksNotSet
from scheduling.models import PowerBudget
from scheduling.power.loops.caps import cap_power_once
from tests import make

POLL = timedelta(seconds=15)
LIMIT_W = 20_000


def budget(mode: str = "act", **fields: Any) -> PowerBudget:
    home = fields.pop("cluster", None) or make.cluster()
    return PowerBudget.objects.create(
        **{"cluster": home, "scope": "cluster", "limit_w": LIMIT_W, "mode": mode, **fields}
    )


class Site:
    """The nodes of a site whose command may fail. Each reading is a poll of telemetry, followed by a turn."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.now = cluster, make.NOON
        self.clocks: dict[str, int | None] = {}
        self.commands: list[dict[str, int | None]] = []
        self.fails = False
        self.failing_nodes: tuple[str, ...] = ()

    def set_clocks(self, cluster: Cluster, clocks: Mapping[str, int | None]) -> None:
        self.commands.append(dict(clocks))
        if self.fails:
            raise ClocksNotSet("The power cap command ended with exit status 1. Its output ends with: no route to host")
        failed = sorted(set(self.failing_nodes) & set(clocks))
        self.clocks |= {node: mhz for node, mhz in clocks.items() if node not in failed}
        if failed:
            raise ClocksNotSet("The power cap command ended with exit status 1.", failed)

    def read(self, share: float, *, nodes: int | None = None) -> PowerBudget:
        """One poll: all nodes together draw this share of the budget."""
        self.now += POLL
        write_samples(self.cluster, share, self.now, nodes=nodes)
        return self.turn()

    def turn(self) -> PowerBudget:
        cap_power_once(self.cluster, self.set_clocks, self.now)
        return PowerBudget.objects.first()  # type: ignore[return-value]

    def capped(self) -> dict[str, int]:
        return {name: mhz for name, mhz in sorted(self.clocks.items()) if mhz}


def write_samples(cluster: Cluster, share: float, at: datetime, *, nodes: int | None = None) -> None:
    rows = Node.objects.filter(cluster=cluster).order_by("name")
    watts = share * LIMIT_W / rows.count()
    samples = [
        Sample(node=node, at=at, resolution=Resolution.RAW, gpu_power_w=[300.0] * 8, node_power_w=watts)
        for node in rows[:nodes]
    ]
    Sample.objects.bulk_create(samples)


def open_clocks() -> dict[str, tuple[int | None, bool]]:
    """The recorded clock of each node, and whether its command was confirmed."""
    rows = NodeClock.objects.open().select_related("node")
    return {row.node.name: (row.mhz, row.confirmed_at is not None) for row in rows}
