"""Before a campaign runs: how many nodes it takes, how long it will take there, and what nobody can beat. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scheduling.evaluation import priors
from scheduling.evaluation.bound import lower_bound_s
from scheduling.evaluation.line import Task
from scheduling.evaluation.plan import foresee
from scheduling.evaluation.play import Outcome
from scheduling.evaluation.work import Cost, Phases, Site

MOST_BARS = 1500
USUAL_NODES = 4  # where nobody says how many
CROWD = 3000  # evaluations, from which on a chart shows nothing


@dataclass(frozen=True, kw_only=True)
class Ahead:
    """What is to be evaluated: (checkpoint, dataset, samples, parts) each, and what a dataset costs."""

    work: Sequence[tuple[str, str, int, int]]
    costs: Mapping[str, Cost]
    weights_gb: float
    most_nodes: int
    slots_per_node: int
    metric_jobs: int

    @property
    def phases(self) -> Phases:
        return Phases(start=priors.phases().start, weights_gb=self.weights_gb)

    def site(self, nodes: int) -> Site:
        scorers = max(1, self.metric_jobs // nodes)
        return Site(nodes=nodes, gpus_per_node=self.slots_per_node, scorers_per_node=scorers)


def plan(ahead: Ahead, nodes: int | None, within_s: float | None) -> dict[str, Any]:
    """With so many nodes; or the fewest that meet the deadline; or a few."""
    most = max(1, ahead.most_nodes)
    if nodes is not None or within_s is None:
        chosen = min(nodes or USUAL_NODES, most)
        return _told(ahead, chosen, _outcome(ahead, chosen))
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if _outcome(ahead, middle).makespan_s <= within_s:
            high = middle
        else:
            low = middle + 1
    return _told(ahead, low, _outcome(ahead, low), within_s)


def _outcome(ahead: Ahead, nodes: int) -> Outcome:
    checkpoints = {name: number for number, name in enumerate(dict.fromkeys(one[0] for one in ahead.work))}
    names = list(dict.fromkeys(one[1] for one in ahead.work))
    numbers = {name: number for number, name in enumerate(names)}
    tasks = [
        Task(
            checkpoint=checkpoints[checkpoint],
            dataset=numbers[dataset],
            samples=samples,
            prior=ahead.costs[dataset],
            parts=parts,
        )
        for checkpoint, dataset, samples, parts in ahead.work
    ]
    return foresee(tasks, names, ahead.site(nodes), ahead.phases, chart=len(tasks) <= CROWD)


def _told(ahead: Ahead, nodes: int, outcome: Outcome, within_s: float | None = None) -> dict[str, Any]:
    costs = [(min(samples, parts), ahead.costs[dataset]) for _, dataset, samples, parts in ahead.work]
    checkpoints = len({one[0] for one in ahead.work})
    bound_s = lower_bound_s(ahead.site(nodes), ahead.phases, costs, checkpoints=checkpoints)
    return {
        "nodes": nodes,
        "slots_per_node": ahead.slots_per_node,
        "makespan_s": round(outcome.makespan_s, 1),
        "lower_bound_s": round(bound_s, 1),
        "gpu_hours": round(outcome.gpu_held_s / 3600, 3),
        "trials": outcome.trials,
        "meets_deadline": None if within_s is None else outcome.makespan_s <= within_s,
        "bars": [asdict(bar) for bar in outcome.bars[:MOST_BARS]],
    }
