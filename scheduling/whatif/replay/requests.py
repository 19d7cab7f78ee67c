"""Check the settings of a replay, for the command line and for the API. Pure.

Every error names the field as `--json` and the API call it.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from acmeweb.common.errors import InvalidField, InvalidInput
from jobs.core.lifecycle import JobKind
from jobs.traces.csv_table import CsvTable
from jobs.traces.trace import Trace
from scheduling.engine.cluster import QuotaView
from scheduling.engine.placements import PLACEMENTS, PLACEMENTS_WITHOUT_POWER
from scheduling.engine.policies import POLICY_RULES
from scheduling.whatif.replay.gpu_types import ReplayGpuTypes, parse_gpu_types
from scheduling.whatif.replay.job_profiles import ProfileTable, Row, pairs_from_rows, profiles_from_rows
from scheduling.whatif.replay.outages import FaultRates
from scheduling.whatif.replay.policies import REPLAY_POLICIES, policy_rules
from scheduling.whatif.replay.power.setting import PowerSetting
from scheduling.whatif.replay.run import PREEMPTION_COSTS, ReplaySetting
from scheduling.whatif.replay.run_time_errors import check_noise

PLACEMENT_NAMES = (*PLACEMENTS, "count")
# Settings besides trace and policies, named as parameters of `replay_setting`
SETTING_NAMES = (
    *("nodes", "gpus_per_node", "placement", "preemption_cost", "cpus_per_node", "memory_per_node_mb"),
    *("nodes_per_leaf", "vcs", "faults", "noise", "seed", "checkpoint_s", "best_effort", "load"),
)
POWER_NAMES = ("energy", "power_budget_kw", "price_per_kwh", "sleep")  # parameters of `power_setting`
PROFILE_NAMES = ("profiles", "pair_speeds", "draw_profiles")  # parameters of `profile_table`
LOAD_RANGE = (10, 1000)  # percent
# Those that the page and the API offer: their replays have no GPU models
POLICIES_OF_EQUAL_GPUS = tuple(
    name for name in REPLAY_POLICIES if name not in POLICY_RULES or not POLICY_RULES[name].weighs_service
)
MAX_REPLAY_NODES = 20_000
MAX_GPUS_PER_NODE = 1024
NUMBER_RANGES = (
    ("nodes", 1, MAX_REPLAY_NODES),
    ("gpus_per_node", 1, MAX_GPUS_PER_NODE),
    ("cpus_per_node", 0, 10**9),
    ("memory_per_node_mb", 0, 10**9),
    ("nodes_per_leaf", 0, MAX_REPLAY_NODES),
    ("load", *LOAD_RANGE),
)
MAX_POWER_NUMBER = 10**9  # kW, or the price of a kWh


def parse_policies(names: str | Sequence[str]) -> list[str]:
    """The policy names without duplicates, in the given order. A policy outside Acme is named `module:Class`; it is
    imported, so the names must not come from a request.
    """
    parts = names.split(",") if isinstance(names, str) else names
    chosen = list(dict.fromkeys(name.strip() for name in parts if name.strip()))
    if not chosen:
        raise InvalidField("policy", f"must be at least one of {', '.join(REPLAY_POLICIES)}")
    for name in chosen:
        try:
            policy_rules(name)
        except InvalidInput as error:
            raise InvalidField("policy", str(error)) from None
    return chosen


def replay_setting(
    *,
    nodes: int | None = None,
    vcs: dict[str, int] | None = None,
    faults: str = "",
    best_effort: str | None = None,
    quotas: Sequence[QuotaView] = (),
    **others: Any,
) -> ReplaySetting:
    """Check all settings together; `others` are fields of `ReplaySetting`. Raises `InvalidField`."""
    pools = vcs or {}
    if not pools and nodes is None:
        raise InvalidField("nodes", "give the number of nodes of the cluster, or of each virtual cluster (vcs)")
    setting = ReplaySetting(
        nodes=sum(pools.values()) if nodes is None else nodes, pools=pools, quotas=tuple(quotas), **others
    )
    _check_numbers(setting)
    _check_choice("placement", setting.placement, PLACEMENT_NAMES)
    _check_choice("preemption_cost", setting.preemption_cost, PREEMPTION_COSTS)
    rates = _rates(faults, setting.checkpoint_s) if faults else None
    if setting.placement == "cells" and not pools:
        raise InvalidField("placement", "cells needs vcs: the number of nodes guaranteed to each virtual cluster")
    if setting.placement == "cells" and sum(pools.values()) > setting.nodes:
        raise InvalidField("vcs", f"{sum(pools.values())} nodes are guaranteed, but there are only {nodes}")
    if best_effort is not None:
        setting = replace(setting, best_effort=_parse_kinds("best_effort", best_effort))
    setting = replace(setting, faults=rates, noise=check_noise(setting.noise))
    _check_power(setting)
    _check_gpu_types(setting)
    return setting


def _check_numbers(setting: ReplaySetting) -> None:
    for name, low, high in NUMBER_RANGES:
        _check_range(name, getattr(setting, name), low, high)
    if not 0 <= setting.checkpoint_s < 1e12:
        raise InvalidField("checkpoint_s", f"{setting.checkpoint_s} is not a number of seconds, 0 or more")


def _rates(faults: str, checkpoint_s: float) -> FaultRates:
    """The rates of faults, with the interval of checkpoints that is given apart from them, if there is one."""
    rates = FaultRates.parse(faults)
    if not checkpoint_s:
        return rates
    if "checkpoint_s" in faults and rates.checkpoint_s != checkpoint_s:
        raise InvalidField(
            "checkpoint_s", f"{checkpoint_s:g} here and {rates.checkpoint_s:g} in faults: give only one of them"
        )
    return replace(rates, checkpoint_s=checkpoint_s)


def _check_power(setting: ReplaySetting) -> None:
    """Reject what the figures of power do not cover."""
    power = setting.power
    if power is None:
        return
    for name, used in (("vcs", setting.pools), ("faults", setting.faults)):
        if used:
            raise InvalidField(name, f"cannot be combined with {_power_field(power)}")
    if power.has_sleep and setting.placement == "count":
        raise InvalidField("sleep", "needs a placement on nodes, not count")
    if power.budget_kw is None:
        return
    if setting.placement in PLACEMENTS_WITHOUT_POWER:
        raise InvalidField("power_budget_kw", f"placement {setting.placement} does not support power budgets")
    idle_kw = setting.power_fleet.power_w(0, 0) / 1000
    if power.budget_kw <= idle_kw:
        why = f"{power.budget_kw:g} is not above the {idle_kw:,.0f} kW that the nodes draw when they are idle"
        raise InvalidField("power_budget_kw", why)


def gpu_types(text: str | None, requested: str, rows: Sequence[Row]) -> ReplayGpuTypes | None:
    """The GPU models of a replay; None if all GPUs are equal. Raises `InvalidField`."""
    if not text:
        for name, used in (("gpu_model", requested), ("gpu_speeds", rows)):
            if used:
                raise InvalidField(name, "needs gpu_types, the number of nodes of each GPU model")
        return None
    return parse_gpu_types(text, requested, rows)


def _check_gpu_types(setting: ReplaySetting) -> None:
    """Reject what does not know GPU models, and quotas for unknown ones."""
    types = setting.gpu_types
    known = {model for model, _ in types.nodes} if types else set()
    if unknown := next((quota.gpu_model for quota in setting.quotas if quota.gpu_model not in {"", *known}), None):
        raise InvalidField("quota", f"no node has {unknown[:40]!r}; gpu_types names the models of the nodes")
    if types is None:
        return
    if (nodes := len(types.node_models)) != setting.nodes:
        raise InvalidField("gpu_types", f"names {nodes} nodes, and --nodes is {setting.nodes}")
    used: dict[str, object] = {"vcs": setting.pools, "faults": setting.faults, "profiles": setting.profiles}
    used |= {_power_field(setting.power): setting.power, "checkpoint_s": setting.checkpoint_s}
    if name := next((name for name, value in used.items() if value), None):
        raise InvalidField(name, "cannot be combined with gpu_types")
    if setting.placement in ("count", "tune"):
        raise InvalidField("placement", f"{setting.placement} does not know GPU models")


def _power_field(power: PowerSetting | None) -> str:
    """The name of a field that asked for figures of power."""
    if power is None or power.budget_kw is not None:
        return "power_budget_kw"
    return "sleep" if power.has_sleep else "price_per_kwh" if power.price_per_kwh is not None else "energy"


def power_setting(
    *,
    energy: bool = False,
    power_budget_kw: float | None = None,
    price_per_kwh: float | None = None,
    sleep: bool = False,
) -> PowerSetting | None:
    """The setting of power; None if nothing is asked for. Raises `InvalidField`."""
    for name, value in (("power_budget_kw", power_budget_kw), ("price_per_kwh", price_per_kwh)):
        if value is not None and not 0 <= value <= MAX_POWER_NUMBER:
            raise InvalidField(name, f"{value} is not a number from 0 to {MAX_POWER_NUMBER:,.0f}")
    if not (energy or sleep or power_budget_kw is not None or price_per_kwh is not None):
        return None
    return PowerSetting(budget_kw=power_budget_kw, price_per_kwh=price_per_kwh, has_sleep=sleep)


def profile_table(
    *, profiles: Sequence[Row] = (), pair_speeds: Sequence[Row] = (), draw_profiles: bool = False
) -> ProfileTable | None:
    """The profiles of jobs, for policies that pack; None if there are none. A row may say in `where` what errors call
    it. Raises `InvalidField`.
    """
    if not profiles:
        if pair_speeds or draw_profiles:
            raise InvalidField("profiles", "is needed with pair_speeds and draw_profiles")
        return None
    rows = profiles_from_rows(_with_error_labels(profiles))
    pairs = pairs_from_rows(_with_error_labels(pair_speeds), rows)
    return ProfileTable(rows=rows, pairs=pairs, are_drawn=draw_profiles)


def _with_error_labels(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    return [(str(row.get("where", f"entry {number}")), row) for number, row in enumerate(rows)]


def check_packing_policies(names: Sequence[str], setting: ReplaySetting) -> None:
    """Reject policies that pack without profiles, profiles that nobody reads, and what does not know of packing."""
    packing = ", ".join(name for name in names if policy_rules(name).packs)
    if not packing:
        if setting.profiles:
            raise InvalidField("profiles", f"no policy of {', '.join(names)} lets jobs share GPUs")
        return
    if setting.profiles is None:
        raise InvalidField("profiles", f"{packing} needs the profiles of the jobs that may share GPUs")
    if setting.power:
        raise InvalidField("policies", f"{packing} packs jobs, which {_power_field(setting.power)} cannot cover")
    if setting.shares_one_pool:
        raise InvalidField("placement", f"{setting.placement} does not support {packing}")
    for field, used in (("faults", setting.faults), ("checkpoint_s", setting.checkpoint_s)):
        if used:  # both count lost work in time on GPUs, as if no job had been slowed down
            raise InvalidField(field, f"cannot be combined with {packing}")


def check_speed_policies(names: Sequence[str], setting: ReplaySetting) -> None:
    """Reject policies that weigh service by GPU model without speeds on several models."""
    weighing = ", ".join(name for name in names if policy_rules(name).weighs_service)
    types = setting.gpu_types
    if weighing and not (types and any(types.slowdowns(row.pattern) for row in types.speeds)):
        why = f"{weighing} needs the speeds of jobs on several GPU models: gpu_types and gpu_speeds"
        raise InvalidField("policy", why)


def check_profiled_jobs(setting: ReplaySetting, trace: Trace) -> None:
    """Reject profiles that no job of the trace has."""
    if setting.profiles and not setting.profiles.profiled_jobs(trace):
        why = f"none of the {len(trace):,} jobs of the trace has one of these names; draw_profiles gives each its own"
        raise InvalidField("profiles", why)


def check_power_policies(names: Sequence[str], setting: ReplaySetting) -> None:
    """Reject policies that stop jobs, because the power of a job that was stopped is not known."""
    if setting.power is None:
        return
    field = _power_field(setting.power)
    if stopping := [name for name in names if policy_rules(name).preempts]:
        raise InvalidField("policies", f"{', '.join(stopping)} preempts jobs, which {field} does not cover")
    if setting.best_effort and (claiming := [name for name in names if policy_rules(name).claims]):
        why = f"must be empty for {', '.join(claiming)} with {field}, which does not cover preemption"
        raise InvalidField("best_effort", why)


def parse_virtual_clusters(lines: Iterable[str], source: str) -> dict[str, int]:
    """Parse a CSV table `vc,nodes`."""
    pools: dict[str, int] = {}
    error = partial(InvalidField, "vcs")
    for where, row in CsvTable(lines, source, ["vc", "nodes"], error=error):
        name, nodes = row["vc"], row["nodes"]
        if not name or not (nodes.isascii() and nodes.isdigit() and len(nodes) < 10 and int(nodes)):
            raise InvalidField("vcs", f"{where}: {name!r} with {nodes!r} nodes is not a virtual cluster")
        if name in pools:
            raise InvalidField("vcs", f"{where}: duplicate entry {name!r}")
        pools[name] = int(nodes)
    if not pools:
        raise InvalidField("vcs", f"{source} contains no virtual cluster")
    return pools


def parse_quotas(lines: Iterable[str], source: str, teams: Container[str]) -> list[QuotaView]:
    """Parse a CSV table `team,kind,gpus`, with an optional column `gpu_model`; an empty kind or model applies to all.
    `teams` are those in the trace.
    """
    columns, error = ["team", "kind", "gpus"], partial(InvalidField, "quota")
    table = CsvTable(lines, source, columns, optional=["gpu_model"], error=error)
    by_position = _check_quota_rows(table)
    for where, quota in by_position.items():
        if quota.team not in teams:
            raise InvalidField("quota", f"{where}: {_unknown_team_text(quota)}")
    return list(by_position.values())


def quotas_from_rows(rows: Sequence[Mapping[str, object]], named: Sequence[str] = ()) -> list[QuotaView]:
    """Quotas from objects. Teams are checked later against the trace. `named`: the position of each row, for errors."""
    named = named or [f"entry {number}" for number in range(len(rows))]
    return list(_check_quota_rows(zip(named, rows, strict=True)).values())


def check_quota_teams(quotas: Iterable[QuotaView], teams: Container[str], known: str = "") -> None:
    """Check that each team occurs in the trace. `known` is added to the error to list the teams."""
    for quota in quotas:
        if quota.team not in teams:
            raise InvalidField("quota", _unknown_team_text(quota) + (f"; {known}" if known else ""))


def _unknown_team_text(quota: QuotaView) -> str:
    return f"the trace has no team {quota.team!r}"


def _check_quota_rows(rows: Iterable[tuple[str, Mapping[str, object]]]) -> dict[str, QuotaView]:
    """Quotas by their position."""
    quotas: dict[str, QuotaView] = {}
    seen_keys: set[tuple[str, str, str]] = set()
    for where, row in rows:
        team, kind, gpus, model = (
            str(row.get(name) if row.get(name) is not None else "") for name in ("team", "kind", "gpus", "gpu_model")
        )
        if kind and kind not in list(JobKind):
            raise InvalidField("quota", f"{where}: {kind[:40]} is not one of {', '.join(JobKind)}")
        if not (gpus.isascii() and gpus.isdigit() and len(gpus) < 10):
            raise InvalidField("quota", f"{where}: {gpus[:40]!r} is not a number of GPUs")
        if (team, kind, model) in seen_keys:
            scope = f"{kind or 'all kinds'}{model and f' on {model}'}"
            raise InvalidField("quota", f"{where}: {team!r} with {scope} is a duplicate entry")
        seen_keys.add((team, kind, model))
        quotas[where] = QuotaView(team=team, kind=JobKind(kind) if kind else None, gpus=int(gpus), gpu_model=model)
    if not quotas:
        raise InvalidField("quota", "contains no team")
    return quotas


def check_quota_policies(names: Sequence[str]) -> None:
    """Reject policies that rank all jobs, running or not, and those that pack, because they ignore quotas."""
    if ignoring := [name for name in names if policy_rules(name).preempts or policy_rules(name).packs]:
        raise InvalidField("quota", f"{', '.join(ignoring)} does not support quotas")


def parse_policy_settings(text: str, names: Sequence[str]) -> dict[str, Mapping[str, object]]:
    """Parse JSON with an object per policy with settings: {"acme": {"order": "sjf"}}."""
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidField("policy_settings", f"is not valid JSON ({error})") from None
    return check_policy_settings(settings, names)


def check_policy_settings(by_policy: object, names: Sequence[str]) -> dict[str, Mapping[str, object]]:
    """Check the settings of each policy. `names` are the policies of the replay."""
    if not isinstance(by_policy, dict) or not all(isinstance(value, dict) for value in by_policy.values()):
        raise InvalidField("policy_settings", 'must be an object per policy, such as {"acme": {"order": "sjf"}}')
    for name, settings in by_policy.items():
        if name not in names:
            why = f"{str(name)[:40]} is not one of the replayed policies: {', '.join(names)}"
            raise InvalidField("policy_settings", why)
        try:
            policy_rules(name).of(settings)
        except InvalidField as bad:
            raise InvalidField("policy_settings", f"{name}: {bad}") from None
    return by_policy


def _parse_kinds(field: str, words: str) -> tuple[str, ...]:
    kinds = tuple(dict.fromkeys(word.strip() for word in words.split(",") if word.strip()))
    for word in kinds:
        _check_choice(field, word, tuple(JobKind))
    return kinds


def _check_range(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidField(field, f"must be at least {low}" if value < low else f"must be at most {high:,}")


def _check_choice(field: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InvalidField(field, f"{value} is not one of {', '.join(choices)}")
