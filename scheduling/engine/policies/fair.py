"""Fair share as Slurm's priority/multifactor has it: who has used least lately, for the weight of his account, goes
first.

Use is GPU-seconds that halve every `half_life_s`, as PriorityDecayHalfLife (7 days). Slurm orders by 2^(-use / shares),
which falls as use over shares grows, so the order is the same and the power is not taken. Differences: the share is the
only factor (priority goes before it, age and size are not weighed), accounts have no tree, and use is exact at every
decision where Slurm recalculates every five minutes. On a live cluster it starts from what runs, until it is given
more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from scheduling.engine.engine import Engine, EngineJob, RequestGroup
from scheduling.engine.rules import PolicyRules
from scheduling.engine.turns.sharing import sharing_turn

WEEK_S = 7 * 86_400.0


class FairRules(PolicyRules):
    name = "fair"

    def __init__(self, weights: Mapping[object, float] | None = None, half_life_s: float = WEEK_S) -> None:
        self._weights = dict(weights or {})
        self._decay = math.log(2) / half_life_s
        self._used: dict[object, tuple[float, int, float]] = {}  # GPU-seconds, GPUs held, both at that time

    @property
    def by_account(self) -> bool:
        return True

    def turn(self, engine: Engine, now: float) -> None:
        sharing_turn(engine, now)

    def share(self, ask: RequestGroup, engine: Engine, now: float) -> float:
        return self._usage_at(ask.account, now) / self._weights.get(ask.account, 1.0)

    def began(self, job: EngineJob, now: float) -> None:
        self._change_held_gpus(job.ask.account, job.ask.gpus, now)

    def left(self, job: EngineJob, now: float) -> None:
        self._change_held_gpus(job.ask.account, -job.ask.gpus, now)

    def _change_held_gpus(self, account: object, more: int, now: float) -> None:
        use, gpus, then = self._used.get(account, (0.0, 0, now))
        self._used[account] = (self._decayed_usage(now, use, gpus, then), gpus + more, now)

    def _usage_at(self, account: object, now: float) -> float:
        use, gpus, then = self._used.get(account, (0.0, 0, now))
        return self._decayed_usage(now, use, gpus, then)

    def _decayed_usage(self, now: float, use: float, gpus: int, then: float) -> float:
        if now == then:
            return use
        kept = math.exp(-self._decay * (now - then))
        return use * kept + gpus * (1 - kept) / self._decay
