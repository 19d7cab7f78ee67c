"""Dominant resource fairness (Ghodsi et al., NSDI'11): who holds the smallest share of what he holds most of goes
first.

The dominant share of an account is the largest of its parts of all GPUs, CPUs and memory. Differences: whole gangs are
started where the paper starts one task after the other, and who does not fit is passed over instead of waited for.
CPUs and memory count only where the cluster says how many it has.
"""

from __future__ import annotations

from scheduling.engine.engine import Ask, Engine, Job
from scheduling.engine.rules import Rules
from scheduling.engine.turns.sharing import sharing

Held = tuple[int, int, int]  # GPUs, CPUs, MB of memory
NOTHING: Held = (0, 0, 0)


class Drf(Rules):
    name = "drf"

    def __init__(self) -> None:
        self._held: dict[object, Held] = {}

    @property
    def by_account(self) -> bool:
        return True

    def turn(self, engine: Engine, now: float) -> None:
        sharing(engine, now)

    def share(self, ask: Ask, engine: Engine, now: float) -> float:
        gpus, cpus, memory_mb = self._held.get(ask.account, NOTHING)
        all_gpus, all_cpus, all_memory_mb = engine.room.whole
        beside = max(_part(cpus, all_cpus), _part(memory_mb, all_memory_mb))
        return max(_part(gpus, all_gpus), beside)

    def began(self, job: Job, now: float) -> None:
        self._count(job, 1)

    def left(self, job: Job, now: float) -> None:
        self._count(job, -1)

    def _count(self, job: Job, sign: int) -> None:
        need, account = job.ask.need, job.ask.account
        nodes = need.nodes + bool(need.rest)
        gpus, cpus, memory_mb = self._held.get(account, NOTHING)
        self._held[account] = (
            gpus + sign * job.ask.gpus,
            cpus + sign * nodes * need.cpus,
            memory_mb + sign * nodes * need.memory_mb,
        )


def _part(held: int, whole: int) -> float:
    return held / whole if whole else 0.0
