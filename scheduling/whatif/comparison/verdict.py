"""One sentence about what a comparison of runs shows, and what limits it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scheduling.core.number_texts import duration_text

SAME_BELOW_PCT = 0.5  # smaller differences are not worth a word
POWER_LIMITS = (
    "Energy and power are estimates from the first start to the last end, for nodes with A100 GPUs and with published"
    " figures of jobs by kind. Sleeping nodes delay no job in a replay."
)
RECORDED_LIMITS = (
    "“As it really was” has the recorded starts and ends of the same jobs. It includes what a replay does not know:"
    " node failures, drains, holds, dependencies and the settings of that time. A replay begins with an empty cluster"
    " of today's size, starts jobs at once and runs each job once, for as long as its last attempt ran; real starts"
    " take the seconds of a scheduling turn and of the nodes. How usable free GPUs were and the"
    " GPU-hours by use cannot be compared; Reports has the latter."
)


def verdict(names: Sequence[str], runs: Sequence[Mapping[str, Any]], baseline: int) -> str:
    """What the best other run changes about the waits. An empty string if there is nothing to compare."""
    others = [number for number, run in enumerate(runs) if number != baseline and run["jobs"]]
    if not others or not runs[baseline]["jobs"]:
        return ""
    measure, _ = _measure(runs[baseline])
    best = min(others, key=lambda number: _waits_and_cost(runs[number], measure))
    equal = [number for number in others if _same_waits_and_cost(runs[number], runs[best])]
    return _change_of_waits(names, runs, baseline, equal) + _other_jobs(names, runs, baseline, best)


def _measure(run: Mapping[str, Any]) -> tuple[str, str]:
    """The key and the name of the wait that is compared."""
    return ("p50", "median") if run["queue_s"]["p50"] >= 1 else ("mean", "mean")


def _other_jobs(names: Sequence[str], runs: Sequence[Mapping[str, Any]], baseline: int, best: int) -> str:
    """A warning if a power budget excludes jobs that the other run has. They are large, so all figures differ."""
    before, after = (runs[one].get("set_aside", {}).get("wider_than_the_pool") for one in (baseline, best))
    if before is None or after is None or before == after:
        return ""
    fewer, more = (best, baseline) if after > before else (baseline, best)
    count = abs(after - before)
    jobs, need = ("job runs", "it needs") if count == 1 else ("jobs run", "they need")
    return (
        f" These are not the same jobs: {count:,} {jobs} only {_place(names[more])}; {_place(names[fewer])} {need} more"
        " GPUs or power than there is."
    )


def _change_of_waits(
    names: Sequence[str], runs: Sequence[Mapping[str, Any]], baseline: int, equal: Sequence[int]
) -> str:
    """The sentence about the best runs, which are equal."""
    (measure, title), best = _measure(runs[baseline]), equal[0]
    before, after = runs[baseline]["queue_s"][measure], runs[best]["queue_s"][measure]
    change = percent_change(after, before)
    place, other = _place(names[baseline]), _place(_listed([names[number] for number in equal]))
    longest, cost = _longest_wait(runs[best], runs[baseline]), _cost_clause(runs[best], runs[baseline])
    if change is None or abs(change) < SAME_BELOW_PCT:
        return f"The {title} wait does not change: {duration_text(before)} {place} and {other}; {longest}{cost}."
    if change > 0:
        return (
            f"No policy shortens the {title} wait: it is {duration_text(before)} {place} and {duration_text(after)}"
            f" {other}, the shortest of the others ({percent_text(change)}){cost}."
        )
    return (
        f"{other[0].upper()}{other[1:]}, the {title} wait falls from {duration_text(before)} {place} to"
        f" {duration_text(after)} ({percent_text(change)}); {longest}{cost}."
    )


def _waits_and_cost(run: Mapping[str, Any], measure: str) -> tuple[float, float, float]:
    """What makes a run the best one: short waits, and of equal ones the lowest cost of energy, if it is known."""
    cost = _energy_cost(run)
    return run["queue_s"][measure], run["queue_s"]["mean"], math.inf if cost is None else cost


def _same_waits_and_cost(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(one["queue_s"] == other["queue_s"]) and _energy_cost(one) == _energy_cost(other)


def _energy_cost(run: Mapping[str, Any]) -> float | None:
    """None without a price."""
    cost: float | None = (run.get("power") or {}).get("cost")
    return cost


def _cost_clause(run: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    cost, previous = _energy_cost(run), _energy_cost(before)
    if cost is None:
        return ""
    if previous is None:
        return f"; energy costs {cost:,.2f}"
    change = percent_change(cost, previous)
    if change is None or abs(change) < SAME_BELOW_PCT:
        return f"; energy costs {cost:,.2f} (before: {previous:,.2f})"
    return f"; energy costs {cost:,.2f} (before: {previous:,.2f}, {percent_text(change)})"


def _place(name: str) -> str:
    return name if name.startswith("as it really was") else f"under {name}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _longest_wait(run: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Replays that were stored by older versions have no longest wait."""
    if "max" not in run["queue_s"] or "max" not in before["queue_s"]:
        return f"99% of the jobs wait at most {duration_text(run['queue_s']['p99'])}"
    longest, previous = duration_text(run["queue_s"]["max"]), duration_text(before["queue_s"]["max"])
    return f"no job waits longer than {longest} (before: {previous})"


def percent_change(value: float, baseline: float) -> float | None:
    """The difference in percent of the baseline; None if the baseline is 0 and the value is not."""
    if abs(baseline) < 1e-9:
        return 0.0 if abs(value) < 1e-9 else None
    return 100 * (value - baseline) / abs(baseline)


def percent_text(change: float) -> str:
    """A signed percentage with a true minus sign. From ten times on as a factor."""
    if change >= 900:
        return f"×{change / 100 + 1:,.0f}"
    return f"{'−' if change < 0 else '+'}{abs(change):.0f}%"


def power_limits(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The sentences that a reader must know before trusting figures of power."""
    figures = [run["power"] for run in runs if run.get("power")]
    if not figures:
        return []
    longest = duration_text(max(one["interval_s"] for one in figures))
    aside = max(run["set_aside"]["wider_than_the_pool"] for run in runs if run.get("power"))
    wide = f" {aside:,} jobs are left out, because they need more GPUs or power than there is." if aside else ""
    return [f"{POWER_LIMITS} Peak power is the highest mean of {longest}.{wide}"]


def packing_limits(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The sentences that a reader must know before trusting figures of policies that pack."""
    figures = [(run["packing"], run["jobs"]) for run in runs if run.get("packing")]
    if not figures:
        return []
    packing, jobs = figures[0]
    drawn = "drawn at random" if packing["profiles_are_drawn"] else "found by name"
    return [
        f"{packing['profiled_jobs']:,} of {jobs:,} jobs have a profile, {drawn}; the others never share GPUs. Speeds on"
        " shared GPUs are measured if the pair was given, else estimated from the utilization."
    ]


def limits(loads: Sequence[int], *, has_record: bool, has_changed_nodes: bool) -> list[str]:
    """The sentences that a reader must know before trusting a comparison. `loads` are those of the replays."""
    sentences = [RECORDED_LIMITS] if has_record else []
    if has_record and any(load != 100 for load in loads):
        text = " and ".join(f"{load}%" for load in dict.fromkeys(loads))
        sentences.append(
            f"The replays have {text} of the recorded load, so a difference to the record is due to the load as well as"
            " to the policy."
        )
    if has_record and has_changed_nodes:
        sentences.append("The replays have a changed number of nodes or GPUs, which explains a part of the difference.")
    return sentences
