"""What may be asked of a replay, checked once for the command line and for the API. Pure.

Every refusal names the field, as `--json` and the API's body call it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence

from scheduling.engine.placements import PLACEMENTS
from scheduling.engine.policies import RULES
from scheduling.simulator.guessing import BadNoise, checked
from scheduling.simulator.run import COSTS, Setting
from scheduling.simulator.weather import BadRates, Rates

PLACEMENT_NAMES = (*PLACEMENTS, "count")
# What may be set beside trace and policies, by the names that `setting` takes
NAMES = (
    *("nodes", "gpus_per_node", "placement", "preemption_cost", "cpus_per_node", "memory_per_node_mb"),
    *("nodes_per_leaf", "vcs", "faults", "noise", "seed"),
)
MOST_NODES = 20_000
MOST_GPUS_PER_NODE = 1024


class BadSetting(ValueError):
    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field, self.why = field, why


def policies(names: str | Sequence[str]) -> list[str]:
    """Once each, in the order given."""
    parts = names.split(",") if isinstance(names, str) else names
    chosen = list(dict.fromkeys(name.strip() for name in parts if name.strip()))
    if unknown := [name for name in chosen if name not in RULES]:
        raise BadSetting("policy", f"{', '.join(unknown)} is none of {', '.join(RULES)}")
    if not chosen:
        raise BadSetting("policy", f"nothing is none of {', '.join(RULES)}")
    return chosen


def setting(
    *,
    nodes: int | None = None,
    gpus_per_node: int = 8,
    placement: str = "consolidate",
    preemption_cost: str = "none",
    cpus_per_node: int = 0,
    memory_per_node_mb: int = 0,
    nodes_per_leaf: int = 0,
    vcs: dict[str, int] | None = None,
    faults: str = "",
    noise: str = "none",
    seed: int = 0,
) -> Setting:
    pools = vcs or {}
    if not pools and nodes is None:
        raise BadSetting("nodes", "say how many nodes the cluster has, or how many each virtual cluster has (vcs)")
    _between("nodes", sum(pools.values()) if nodes is None else nodes, 1, MOST_NODES)
    _between("gpus_per_node", gpus_per_node, 1, MOST_GPUS_PER_NODE)
    for name, value in (("cpus_per_node", cpus_per_node), ("memory_per_node_mb", memory_per_node_mb)):
        _between(name, value, 0, 10**9)
    _between("nodes_per_leaf", nodes_per_leaf, 0, MOST_NODES)
    _one_of("placement", placement, PLACEMENT_NAMES)
    _one_of("preemption_cost", preemption_cost, COSTS)
    if placement == "cells" and not pools:
        raise BadSetting("placement", "cells needs vcs: who is guaranteed how many nodes")
    if placement == "cells" and nodes is not None and sum(pools.values()) > nodes:
        raise BadSetting("vcs", f"{sum(pools.values())} nodes are guaranteed, and there are {nodes}")
    return Setting(
        nodes=nodes or sum(pools.values()),
        gpus_per_node=gpus_per_node,
        placement=placement,
        preemption_cost=preemption_cost,
        cpus_per_node=cpus_per_node,
        memory_per_node_mb=memory_per_node_mb,
        nodes_per_leaf=nodes_per_leaf,
        pools=pools,
        faults=_rates(faults) if faults else None,
        noise=_noise(noise),
        seed=seed,
    )


def virtual_clusters(lines: Iterable[str], source: str) -> dict[str, int]:
    """A table `vc,nodes`."""
    rows = csv.DictReader(lines)
    if not {"vc", "nodes"} <= set(rows.fieldnames or ()):
        raise BadSetting("vcs", f"{source} must be a CSV with the columns vc,nodes")
    pools: dict[str, int] = {}
    for row in rows:
        where = f"{source} line {rows.line_num}"
        name, nodes = row["vc"], row["nodes"]
        if not name or not nodes or not nodes.strip().isdigit() or not int(nodes):
            raise BadSetting("vcs", f"{where}: {name!r} with {nodes!r} nodes is no virtual cluster")
        if name in pools:
            raise BadSetting("vcs", f"{where}: {name!r} is there twice")
        pools[name] = int(nodes)
    if not pools:
        raise BadSetting("vcs", f"{source} names no virtual cluster")
    return pools


def _between(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise BadSetting(field, f"must be at least {low}" if value < low else f"must be at most {high:,}")


def _one_of(field: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise BadSetting(field, f"{value} is none of {', '.join(known)}")


def _rates(text: str) -> Rates:
    try:
        return Rates.parse(text)
    except BadRates as error:
        raise BadSetting("faults", str(error).removeprefix("faults: ")) from None


def _noise(text: str) -> str:
    try:
        return checked(text)
    except BadNoise as error:
        raise BadSetting("noise", str(error).removeprefix("noise: ")) from None
