"""acme: quotas with reservation, best-effort jobs on idle GPUs, and backfilling. The default on live clusters.

The study of the Acme datacenter (Hu et al., NSDI'24) describes it: pretraining has a reserved quota, and a preemptible
best-effort class runs on spare GPUs. The paper gives no algorithm; this is ours:

Owners and borrowers   a preemptible job borrows: it counts against no quota, waits behind all owners, and stops as soon
                       as an owner within its quota fits only without it (`turns/claiming` chooses the victims)
Order                  by submission. One priority point equals `class_s` of waiting, and the order of another policy
                       moves a job by at most `aging_s`, so no job is overtaken forever. The key never changes while a
                       job waits
Backfilling            EASY or conservative, by time limits. Borrowers may pass an owner regardless of their limit
"""

from __future__ import annotations

from collections.abc import Mapping

from jobs.core.lifecycle import JobKind
from scheduling.engine.engine import Engine, PolicyRules
from scheduling.engine.history import SchedulingHistory
from scheduling.engine.job import EngineJob, RequestGroup
from scheduling.engine.policies.drf import DrfRules
from scheduling.engine.policies.fair import FairRules
from scheduling.engine.policies.fifo import FifoRules
from scheduling.engine.policies.qssf import QssfRules
from scheduling.engine.policies.sjf import SjfRules
from scheduling.engine.policies.tiresias import TiresiasRules
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
}  # the cost that equals half of `aging_s`; for other orders 1 h


class AcmeRules(PolicyRules):
    """Owners before borrowers, in submission order adjusted by priority and a configurable other order."""

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
    def queues_by_account(self) -> bool:
        return self.order.queues_by_account

    @property
    def needs_run_times(self) -> bool:
        return self.order.needs_run_times

    def load_history(self, history: SchedulingHistory, now: float) -> None:
        self.order.load_history(history, now)

    @property
    def reserves(self) -> frozenset[JobKind]:
        return self._settings.reserve

    def turn(self, engine: Engine, now: float) -> None:
        if self._settings.backfill == "conservative":
            conservative_turn(engine, now)
        else:
            easy_turn(engine, now)

    def band(self, job: EngineJob) -> int:
        return int(job.group.borrows)

    def key(self, job: EngineJob, now: float) -> float:
        key = job.submitted + job.submitted_band * self._class_s
        return key + self._bounded_cost(self.order.cost(job, now)) if self._by_order else key

    def share(self, group: RequestGroup, engine: Engine, now: float) -> float:
        return self._bounded_cost(self.order.share(group, engine, now))

    def _bounded_cost(self, cost: float) -> float:
        """Map a cost to the range from 0 to `aging_s`, monotonically."""
        return self._settings.aging_s * (1 - self._halfway / (self._halfway + cost))

    def on_job_start(self, job: EngineJob, now: float) -> None:
        self.order.on_job_start(job, now)

    def on_job_release(self, job: EngineJob, now: float) -> None:
        self.order.on_job_release(job, now)

    def on_job_end(self, job: EngineJob, now: float) -> None:
        self.order.on_job_end(job, now)

    def mean_error_s(self) -> float | None:
        return self.order.mean_error_s()
