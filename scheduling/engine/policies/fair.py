"""Fair share like Slurm's priority/multifactor: the account with the least recent usage per weight goes first.

Usage is GPU-seconds that halve every `half_life_s`, like PriorityDecayHalfLife (7 days). Slurm orders by 2^(-usage /
shares), which falls as usage / shares grows, so the order is the same without the power. Differences: the share is the
only factor (priority goes before it; age and size have no weight), accounts have no tree, and usage is exact at every
decision, while Slurm recalculates it every five minutes.

Accounts with the same usage may reach it by sums in different orders. So shares are compared with 30 binary digits: the
order then does not depend on rounding errors, and a live cluster that sums in SQL decides as a replay does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from jobs.core.gpu_shares import WHOLE_GPU
from scheduling.engine.engine import Engine, PolicyRules
from scheduling.engine.history import WEEK_S, SchedulingHistory
from scheduling.engine.job import EngineJob, RequestGroup
from scheduling.engine.turns.sharing import sharing_turn

SPLITTER = float((1 << 23) + 1)  # keeps 53 - 23 = 30 binary digits of a number (Dekker 1971)


class FairRules(PolicyRules):
    """Orders accounts by decayed usage, jobs of an account by submission."""

    name = "fair"

    def __init__(self, weights: Mapping[object, float] | None = None, half_life_s: float = WEEK_S) -> None:
        self._weights = dict(weights or {})
        self._decay = math.log(2) / half_life_s
        self._used: dict[object, tuple[float, int, float]] = {}  # decayed GPU-seconds, thousandths held, time

    @property
    def queues_by_account(self) -> bool:
        return True

    def load_history(self, history: SchedulingHistory, now: float) -> None:
        self._decay = math.log(2) / history.half_life_s
        self._used = {account: (used, 0, now) for account, used in history.usage.items()}

    def turn(self, engine: Engine, now: float) -> None:
        sharing_turn(engine, now)

    def share(self, group: RequestGroup, engine: Engine, now: float) -> float:
        share = self._usage_at(group.account, now) / self._weights.get(group.account, 1.0)
        widened = SPLITTER * share
        return widened - (widened - share)

    def on_job_start(self, job: EngineJob, now: float) -> None:
        self._change_held_gpus(job.group.account, job.group.charged_milli, now)

    def on_job_release(self, job: EngineJob, now: float) -> None:
        self._change_held_gpus(job.group.account, -job.group.charged_milli, now)

    def _change_held_gpus(self, account: object, more: int, now: float) -> None:
        use, milli, then = self._used.get(account, (0.0, 0, now))
        self._used[account] = (self._decayed_usage(now, use, milli, then), milli + more, now)

    def _usage_at(self, account: object, now: float) -> float:
        use, milli, then = self._used.get(account, (0.0, 0, now))
        return self._decayed_usage(now, use, milli, then)

    def _decayed_usage(self, now: float, use: float, milli: int, then: float) -> float:
        if now == then:
            return use
        past = -self._decay * (now - then)
        return use * math.exp(past) - milli / WHOLE_GPU * math.expm1(past) / self._decay
