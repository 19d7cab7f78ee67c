"""The plan of a campaign before it runs: number of nodes, expected duration, and a lower bound. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scheduling.evaluation import priors
from scheduling.evaluation.dispatch import DatasetTask
from scheduling.evaluation.lower_bound import lower_bound_s
from scheduling.evaluation.plan import simulate_campaign
from scheduling.evaluation.simulate import SimulationOutcome
from scheduling.evaluation.work import EvaluationSite, PhaseCosts, SliceCost

MAX_CHART_BARS = 1500
DEFAULT_NODES = 4  # without a node limit and a deadline
MAX_CHARTED_EVALUATIONS = 3000  # larger plans have no chart


@dataclass(frozen=True, kw_only=True)
class CampaignWorkload:
    """The evaluations as (checkpoint, dataset, samples, parts), the cost per dataset, and the size of the cluster."""

    work: Sequence[tuple[str, str, int, int]]
    costs: Mapping[str, SliceCost]
    checkpoint_gb: float
    most_nodes: int
    slots_per_node: int
    metric_jobs: int

    @property
    def phases(self) -> PhaseCosts:
        return PhaseCosts(start=priors.phases().start, checkpoint_gb=self.checkpoint_gb)

    def site(self, nodes: int) -> EvaluationSite:
        scorers = max(1, self.metric_jobs // nodes)
        return EvaluationSite(nodes=nodes, gpus_per_node=self.slots_per_node, scorers_per_node=scorers)


def plan(ahead: CampaignWorkload, nodes: int | None, within_s: float | None) -> dict[str, Any]:
    """Return the plan for this number of nodes, for the fewest nodes that meet the deadline, or for a default."""
    most = max(1, ahead.most_nodes)
    if nodes is not None or within_s is None:
        count = min(nodes or DEFAULT_NODES, most)
        return _plan_document(ahead, count, _simulate_campaign(ahead, count))
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if _simulate_campaign(ahead, middle).makespan_s <= within_s:
            high = middle
        else:
            low = middle + 1
    return _plan_document(ahead, low, _simulate_campaign(ahead, low), within_s)


def _simulate_campaign(ahead: CampaignWorkload, nodes: int) -> SimulationOutcome:
    checkpoints = {name: number for number, name in enumerate(dict.fromkeys(row[0] for row in ahead.work))}
    names = list(dict.fromkeys(row[1] for row in ahead.work))
    numbers = {name: number for number, name in enumerate(names)}
    tasks = [
        DatasetTask(
            checkpoint=checkpoints[checkpoint],
            dataset=numbers[dataset],
            samples=samples,
            prior=ahead.costs[dataset],
            parts=parts,
        )
        for checkpoint, dataset, samples, parts in ahead.work
    ]
    return simulate_campaign(tasks, names, ahead.site(nodes), ahead.phases, chart=len(tasks) <= MAX_CHARTED_EVALUATIONS)


def _plan_document(
    ahead: CampaignWorkload, nodes: int, outcome: SimulationOutcome, within_s: float | None = None
) -> dict[str, Any]:
    costs = [(min(samples, parts), ahead.costs[dataset]) for _, dataset, samples, parts in ahead.work]
    checkpoints = len({row[0] for row in ahead.work})
    bound_s = lower_bound_s(ahead.site(nodes), ahead.phases, costs, checkpoints=checkpoints)
    return {
        "nodes": nodes,
        "slots_per_node": ahead.slots_per_node,
        "makespan_s": round(outcome.makespan_s, 1),
        "lower_bound_s": round(bound_s, 1),
        "gpu_hours": round(outcome.gpu_held_s / 3600, 3),
        "trials": outcome.trials,
        "meets_deadline": None if within_s is None else outcome.makespan_s <= within_s,
        "bars": [asdict(bar) for bar in outcome.bars[:MAX_CHART_BARS]],
    }
