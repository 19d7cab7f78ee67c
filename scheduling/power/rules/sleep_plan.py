"""Which nodes fall asleep and which wake up now. Pure.

Of all nodes, `needed` are to be awake, and of each kind of hardware at least the reserve of idle nodes. Nodes that are
asleep longest wake up first, and nodes that are awake longest fall asleep first, which spreads the wake-ups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from scheduling.power.rules.awake_nodes import (
    RECENT_STEPS,
    STEP_S,
    NodeSeries,
    ReserveSettings,
    nodes_needed,
    recent_maximum,
)


@dataclass(frozen=True, kw_only=True)
class SleepRules:
    """An operator's limits, in seconds."""

    reserve_nodes: int = 1
    min_awake_s: float = 3600.0
    min_asleep_s: float = 1800.0
    max_wakes_per_day: int = 4


@dataclass(frozen=True, kw_only=True)
class SleepCandidate:
    """A node that counts as capacity: it is awake, wakes up or sleeps."""

    id: int
    hardware: str  # nodes of one kind replace each other
    is_asleep: bool = False
    is_idle: bool = False
    may_sleep: bool = True  # it is not drained, tested or reserved
    since_s: float = 0.0  # when it fell asleep or has woken up; 0: long ago
    wakes_today: int = 0


@dataclass(frozen=True, kw_only=True)
class SleepPlan:
    sleep: tuple[int, ...] = ()
    wake: tuple[int, ...] = ()


def needed_nodes(
    history: Sequence[tuple[int, int]], busy: int, queued: int, total: int, now_s: float, *, boot_s: float, reserve: int
) -> int:
    """How many nodes are to be awake: the forecast with its reserve, at least what runs and waits. All of them until
    the demand of half an hour is known.

    `history` has the largest number of busy nodes of each ten minutes, as (step, nodes), in order of time. `queued`:
    nodes that waiting jobs ask for.
    """
    step = int(now_s // STEP_S)
    past = [(at, nodes) for at, nodes in history if at < step]
    if not past or past[0][0] > step - RECENT_STEPS:
        return total
    steps, active = ([at for at, _ in past] + [step], [nodes for _, nodes in past] + [busy])
    largest = max(total, *active)
    series = NodeSeries(
        steps=np.array(steps, dtype=np.int64),
        active=np.array(active, dtype=np.int64),
        total=np.full(len(steps), largest, dtype=np.int64),
        rows=len(steps),
    )
    settings = ReserveSettings(min_nodes=reserve, lead_steps=int(np.ceil(boot_s / STEP_S)))
    forecast = int(nodes_needed(series, recent_maximum(series), settings)[-1])
    return min(total, max(forecast, busy + queued + reserve))


def sleep_plan(nodes: Iterable[SleepCandidate], needed: int, rules: SleepRules, now_s: float) -> SleepPlan:
    nodes = sorted(nodes, key=lambda node: (node.since_s, node.id))
    asleep, awake = [n for n in nodes if n.is_asleep], [n for n in nodes if not n.is_asleep]
    idle = Counter(node.hardware for node in awake if node.is_idle)
    may_wake = [node for node in asleep if now_s - node.since_s >= rules.min_asleep_s]
    to_wake = _nodes_to_wake(may_wake, needed - len(awake), idle, rules.reserve_nodes)
    if to_wake:
        return SleepPlan(wake=tuple(node.id for node in to_wake))
    may_sleep = [node for node in awake if _may_fall_asleep(node, rules, now_s)]
    to_sleep = _nodes_to_put_to_sleep(may_sleep, len(awake) - needed, idle, rules.reserve_nodes)
    return SleepPlan(sleep=tuple(node.id for node in to_sleep))


def _nodes_to_wake(
    nodes: Sequence[SleepCandidate], missing: int, idle: Counter[str], reserve: int
) -> list[SleepCandidate]:
    """Those that wake up: the missing ones, and further ones for the reserve of their hardware."""
    return _take(nodes, idle, 1, lambda taken, hardware: taken < missing or idle[hardware] < reserve)


def _nodes_to_put_to_sleep(
    nodes: Sequence[SleepCandidate], excess: int, idle: Counter[str], reserve: int
) -> list[SleepCandidate]:
    return _take(nodes, idle, -1, lambda taken, hardware: taken < excess and idle[hardware] > reserve)


def _take(
    nodes: Sequence[SleepCandidate], idle: Counter[str], change: int, wanted: Callable[[int, str], bool]
) -> list[SleepCandidate]:
    taken: list[SleepCandidate] = []
    for node in nodes:
        if wanted(len(taken), node.hardware):
            taken.append(node)
            idle[node.hardware] += change
    return taken


def _may_fall_asleep(node: SleepCandidate, rules: SleepRules, now_s: float) -> bool:
    has_rested = now_s - node.since_s >= rules.min_awake_s
    return node.is_idle and node.may_sleep and has_rested and node.wakes_today < rules.max_wakes_per_day


def boot_time_s(boots: Sequence[float], default_s: float) -> float:
    """How long a boot takes: the 95th percentile of past ones, the default without any."""
    return sorted(boots)[int(0.95 * (len(boots) - 1) + 0.999)] if boots else default_s
