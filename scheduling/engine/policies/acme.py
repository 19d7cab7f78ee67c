"""acme: quotas with reservation, best effort on what is idle, and backfilling; the default of live clusters.

As the study of the Acme datacenter (Hu et al., NSDI'24) describes it: pretraining has its quota reserved, and a
preemptible best-effort class runs on spare GPUs. The paper gives no algorithm; what is ours:

Owners and borrowers   a preemptible job borrows: it counts against no quota, waits behind all owners, and stops as soon
                       as an owner within his quota fits only without it (`turns/claiming` says who stops).
Order                  submission, where a step of priority is worth `class_s` of waiting and another policy's order at
                       most `aging_s`. So nobody is passed for ever, and the key never changes while a job waits.
Backfilling            EASY or conservative, by time limits. Borrowers may pass an owner whatever their limit.
"""

from __future__ import annotations

from collections.abc import Mapping

from jobs.core.lifecycle import JobKind
from scheduling.engine.engine import Engine, EngineJob, RequestGroup
from scheduling.engine.policies.drf import DrfRules
from scheduling.engine.policies.fair import FairRules
from scheduling.engine.policies.fifo import FifoRules
from scheduling.engine.policies.qssf import QssfRules
from scheduling.engine.policies.sjf import SjfRules
from scheduling.engine.policies.tiresias import TiresiasRules
from scheduling.engine.rules import PolicyRules
from scheduling.engine.settings import AcmeSettings, parse_acme_settings
from scheduling.engine.turns.conservative import conservative_turn
from scheduling.engine.turns.easy import easy_turn

ORDER_RULES: dict[str, type[PolicyRules]] = {
    rules.name: rules for rules in (FifoRules, SjfRules, QssfRules, TiresiasRules, FairRules, DrfRules)
}
HALFWAY_COSTS = {
    "fair": 1e6,
    "qssf": 1e5,
    "tiresias": 1e4,
    "drf": 0.1,
}  # the cost that is worth half of `aging_s`; else 1 h


class AcmeRules(PolicyRules):
    name = "acme"
    plans = True
    claims = True

    def __init__(self, settings: AcmeSettings | None = None) -> None:
        settings = settings or AcmeSettings()
        self.order = ORDER_RULES[settings.order]()
        self._settings = settings
        self._by_order = type(self.order) is not FifoRules and not self.order.queues_by_account
        self._class_s = float(settings.class_s)
        self._halfway = HALFWAY_COSTS.get(settings.order, 3600.0)

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> PolicyRules:
        return cls(parse_acme_settings(settings, ORDER_RULES))

    @property
    def by_account(self) -> bool:
        return self.order.queues_by_account

    @property
    def reserves(self) -> frozenset[JobKind]:
        return self._settings.reserve

    def turn(self, engine: Engine, now: float) -> None:
        if self._settings.backfill == "conservative":
            conservative_turn(engine, now)
        else:
            easy_turn(engine, now)

    def band(self, job: EngineJob) -> int:
        return int(job.ask.borrows)

    def key(self, job: EngineJob, now: float) -> float:
        key = job.submitted + job.asked_band * self._class_s
        return key + self._bounded_cost(self.order.cost(job, now)) if self._by_order else key

    def share(self, ask: RequestGroup, engine: Engine, now: float) -> float:
        return self._bounded_cost(self.order.share(ask, engine, now))

    def _bounded_cost(self, cost: float) -> float:
        """Between 0 and `aging_s`, growing with the cost."""
        return self._settings.aging_s * (1 - self._halfway / (self._halfway + cost))

    def began(self, job: EngineJob, now: float) -> None:
        self.order.began(job, now)

    def left(self, job: EngineJob, now: float) -> None:
        self.order.left(job, now)

    def ended(self, job: EngineJob, now: float) -> None:
        self.order.ended(job, now)

    def mean_error_s(self) -> float | None:
        return self.order.mean_error_s()
