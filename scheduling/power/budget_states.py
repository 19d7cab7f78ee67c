"""Each power budget of a cluster with the power that is predicted now, for pages, API and metrics. Reads only.

The cost grows with the running jobs of clusters that have a budget.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count

from jobs.core.lifecycle import POWER
from jobs.models import Cluster, Job
from scheduling.engine.cluster import ClusterSnapshot
from scheduling.engine.cluster import PowerBudget as EngineBudget
from scheduling.engine.live import held_watts
from scheduling.models import PowerBudget
from scheduling.power.reads.budgets import budget_name
from scheduling.power.reads.caps import cap_status
from scheduling.queries import snapshot


@dataclass(frozen=True, kw_only=True)
class BudgetState:
    """A budget, the idle power of its nodes that are awake, the predicted peak of its running jobs above that, and how
    many jobs have a wait reason that names the budget."""

    row: PowerBudget
    name: str
    nodes: int
    idle_w: int
    jobs_w: int
    waiting: int
    cap_status: str

    @property
    def limit_kw(self) -> str:
        """The limit as operators type it."""
        return f"{self.row.limit_w / 1000:g}"

    @property
    def predicted_w(self) -> int:
        return self.idle_w + self.jobs_w

    @property
    def is_exceeded(self) -> bool:
        return self.predicted_w > self.row.limit_w


def budget_states(cluster: Cluster, now: datetime) -> list[BudgetState]:
    rows = list(cluster.power_budgets.all())  # with their cluster
    if not rows:
        return []
    picture = snapshot.running_snapshot(cluster, now)
    budgets = {budget.name: budget for budget in picture.power}  # read again: one may have been deleted meanwhile
    names = {row: budget_name(row, cluster) for row in rows}
    waiting = _waiting_jobs(cluster)
    held = dict(zip(budgets, held_watts(picture, list(budgets.values())), strict=True))
    return [
        _state(row, budgets[name], picture, held[name], waiting[name]) for row, name in names.items() if name in budgets
    ]


def _waiting_jobs(cluster: Cluster) -> Counter[str]:
    """Return how many jobs wait because of each budget, by name."""
    jobs = Job.objects.waiting().filter(cluster=cluster, reason=POWER).order_by()
    counts: Counter[str] = Counter()
    for names, count in jobs.values_list("power_budgets").annotate(Count("pk")):
        counts.update(dict.fromkeys(names, count))
    return counts


def _state(row: PowerBudget, budget: EngineBudget, picture: ClusterSnapshot, jobs_w: int, waiting: int) -> BudgetState:
    views = (*picture.nodes, *(one.node for one in picture.closed))
    inside = [view for view in views if budget.nodes is None or view.id in budget.nodes]
    return BudgetState(
        row=row,
        name=budget.name,
        nodes=len(inside),
        idle_w=budget.idle_w,
        jobs_w=jobs_w,
        waiting=waiting,
        cap_status=cap_status(row, picture.now),
    )
