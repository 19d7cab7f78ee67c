"""What may be asked of a replay, checked once for the command line and for the API. Pure.

Every refusal names the field, as `--json` and the API's body call it.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from jobs.lifecycle import Kind
from scheduling.engine.cluster import QuotaView
from scheduling.engine.placements import PLACEMENTS
from scheduling.engine.policies import RULES, BadSettings, rules_of
from scheduling.simulator.guessing import BadNoise, checked
from scheduling.simulator.run import COSTS, Setting
from scheduling.simulator.weather import BadRates, Rates

PLACEMENT_NAMES = (*PLACEMENTS, "count")
# What may be set beside trace and policies, by the names that `setting` takes
NAMES = (
    *("nodes", "gpus_per_node", "placement", "preemption_cost", "cpus_per_node", "memory_per_node_mb"),
    *("nodes_per_leaf", "vcs", "faults", "noise", "seed", "checkpoint_s", "best_effort"),
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
    checkpoint_s: float = 0.0,
    best_effort: str | None = None,
    quotas: Sequence[QuotaView] = (),
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
    if not 0 <= checkpoint_s < 1e12:
        raise BadSetting("checkpoint_s", f"{checkpoint_s} is not a number of seconds, 0 or more")
    rates = _rates(faults) if faults else None
    if rates and checkpoint_s:
        if "checkpoint_s" in faults and rates.checkpoint_s != checkpoint_s:
            raise BadSetting(
                "checkpoint_s", f"{checkpoint_s:g} here and {rates.checkpoint_s:g} in faults: say one of them"
            )
        rates = replace(rates, checkpoint_s=checkpoint_s)
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
        faults=rates,
        checkpoint_s=checkpoint_s,
        quotas=tuple(quotas),
        best_effort=Setting.best_effort if best_effort is None else _kinds("best_effort", best_effort),
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


def quotas(lines: Iterable[str], source: str, teams: Container[str]) -> list[QuotaView]:
    """A table `team,kind,gpus`; without a kind it is for all work of the team. `teams` are those of the trace."""
    rows = csv.DictReader(lines)
    if not {"team", "kind", "gpus"} <= set(rows.fieldnames or ()):
        raise BadSetting("quota", f"{source} must be a CSV with the columns team,kind,gpus")
    known = _checked((f"{source} line {rows.line_num}", row) for row in rows)
    for where, quota in known.items():
        if quota.team not in teams:
            raise BadSetting("quota", f"{where}: {_nobody(quota)}")
    return list(known.values())


def quotas_of(rows: Sequence[Mapping[str, object]], named: Sequence[str] = ()) -> list[QuotaView]:
    """The same as objects; whose teams the trace has is seen when there is one. `named`: where each row was written."""
    named = named or [f"entry {number}" for number in range(len(rows))]
    return list(_checked(zip(named, rows, strict=True)).values())


def keep_to(quotas: Iterable[QuotaView], teams: Container[str], known: str = "") -> None:
    """`known` says which teams there are, where that can be said."""
    for quota in quotas:
        if quota.team not in teams:
            raise BadSetting("quota", _nobody(quota) + (f"; {known}" if known else ""))


def _nobody(quota: QuotaView) -> str:
    return f"nobody in the trace is of team {quota.team!r}"


def _checked(rows: Iterable[tuple[str, Mapping[str, object]]]) -> dict[str, QuotaView]:
    """By where it stands."""
    known: dict[str, QuotaView] = {}
    said: set[tuple[str, str]] = set()
    for where, row in rows:
        team, kind, gpus = (
            str(row.get(name) if row.get(name) is not None else "") for name in ("team", "kind", "gpus")
        )
        if kind and kind not in list(Kind):
            raise BadSetting("quota", f"{where}: {kind[:40]} is none of {', '.join(Kind)}")
        if not (gpus.isascii() and gpus.isdigit() and len(gpus) < 10):
            raise BadSetting("quota", f"{where}: {gpus[:40]!r} is not a number of GPUs")
        if (team, kind) in said:
            raise BadSetting("quota", f"{where}: {team!r} with {kind or 'all kinds'} is there twice")
        said.add((team, kind))
        known[where] = QuotaView(team=team, kind=Kind(kind) if kind else None, gpus=int(gpus))
    if not known:
        raise BadSetting("quota", "names no team")
    return known


def keep_quotas(names: Sequence[str]) -> None:
    """Who ranks all jobs, running or not, asks nobody what he may hold."""
    if careless := [name for name in names if RULES[name].preempts]:
        raise BadSetting("quota", f"{', '.join(careless)} keeps no quotas")


def policy_settings(text: str, names: Sequence[str]) -> dict[str, Mapping[str, object]]:
    """JSON, an object for each policy that is set otherwise: {"acme": {"order": "sjf"}}."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadSetting("policy_settings", f"is no JSON ({error})") from None
    return settings_of(given, names)


def settings_of(given: object, names: Sequence[str]) -> dict[str, Mapping[str, object]]:
    if not isinstance(given, dict) or not all(isinstance(one, dict) for one in given.values()):
        raise BadSetting("policy_settings", 'must be an object for each policy, as {"acme": {"order": "sjf"}}')
    for name, settings in given.items():
        if name not in names:
            raise BadSetting(
                "policy_settings", f"{str(name)[:40]} is none of the policies that are replayed: {', '.join(names)}"
            )
        try:
            rules_of(name, settings)
        except BadSettings as bad:
            raise BadSetting("policy_settings", f"{name}: {bad}") from None
    return given


def _kinds(field: str, words: str) -> tuple[str, ...]:
    kinds = tuple(dict.fromkeys(word.strip() for word in words.split(",") if word.strip()))
    for word in kinds:
        _one_of(field, word, tuple(Kind))
    return kinds


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
