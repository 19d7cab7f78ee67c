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


class Drf(Rules):
    name = "drf"
    turn = staticmethod(sharing)
    by_account = True

    def __init__(self) -> None:
        self._held: dict[object, tuple[int, int, int]] = {}

    def share(self, ask: Ask, engine: Engine, now: float) -> float:
        share = 0.0
        for part, whole in zip(self._held.get(ask.account, ()), engine.room.whole, strict=False):
            if whole:
                share = max(share, part / whole)
        return share

    def began(self, job: Job, now: float) -> None:
        self._count(job, 1)

    def left(self, job: Job, now: float) -> None:
        self._count(job, -1)

    def _count(self, job: Job, sign: int) -> None:
        need, account = job.ask.need, job.ask.account
        nodes = need.nodes + bool(need.rest)
        gpus, cpus, memory_mb = self._held.get(account, (0, 0, 0))
        self._held[account] = (
            gpus + sign * job.ask.gpus,
            cpus + sign * nodes * need.cpus,
            memory_mb + sign * nodes * need.memory_mb,
        )
