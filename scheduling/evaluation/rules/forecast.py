"""The plan of a campaign before it runs: number of nodes, expected duration, and a lower bound. Pure.

The duration is that of a simulation of the work queue with the estimated costs. The plan is not binding: free GPUs take
work from the queue, which knows the measured costs. The plan is shown to users and compared with the outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from scheduling.evaluation.rules import priors
from scheduling.evaluation.rules.dispatch import DatasetSlice, DatasetTask, WorkQueue
from scheduling.evaluation.rules.simulate import (
    EvaluationSimulator,
    SimulatedTrial,
    SimulationOutcome,
    TrialPiece,
)
from scheduling.evaluation.rules.uncut_order import makespan_lower_bound_s
from scheduling.evaluation.rules.work import EvaluationSite, PhaseCosts, SliceCost

MAX_CHART_BARS = 1500
DEFAULT_NODES = 4  # without a node limit and a deadline
MAX_CHARTED_EVALUATIONS = 3000  # larger plans have no chart

PieceOf = Callable[[DatasetSlice, DatasetTask], TrialPiece]


class WorkQueueSource:
    """Trials that take slices from the queue until their checkpoint has no work left."""

    def __init__(self, tasks: Sequence[DatasetTask], site: EvaluationSite, piece_of: PieceOf) -> None:
        self._tasks = tasks
        self._line = WorkQueue(tasks, site)
        self._piece_of = piece_of

    def trial(self, node: int) -> SimulatedTrial | None:
        checkpoint = self._line.checkpoint_for(node)
        if checkpoint is None:
            return None
        return SimulatedTrial(checkpoint=checkpoint, more=partial(self._next_piece, checkpoint))

    def record_piece(self, piece: TrialPiece) -> None:
        assert isinstance(piece.handle, DatasetSlice)
        self._line.record_cost(piece.handle, piece.cost)

    def _next_piece(self, checkpoint: int) -> TrialPiece | None:
        taken = self._line.take(checkpoint)
        return self._piece_of(taken, self._tasks[taken.task]) if taken else None


def simulate_campaign(
    tasks: Sequence[DatasetTask], names: Sequence[str], site: EvaluationSite, phases: PhaseCosts, *, chart: bool = False
) -> SimulationOutcome:
    """Simulate the campaign. `names` are those of the datasets. 500 checkpoints of 63 datasets take a few seconds."""

    def expected_piece(taken: DatasetSlice, task: DatasetTask) -> TrialPiece:
        cost = task.prior.times(taken.samples / task.samples)
        return TrialPiece(name=names[task.dataset], cost=cost, handle=taken)

    return EvaluationSimulator(
        site, phases, WorkQueueSource(tasks, site, expected_piece), staged=True, off_gpu=True, chart=chart
    ).run()


def lower_bound_s(
    site: EvaluationSite, phases: PhaseCosts, costs: Iterable[tuple[int, SliceCost]], *, checkpoints: int = 1
) -> float:
    """Return the lower bound of the duration: the maximum over GPUs, single datasets, links and CPUs. `costs` lists all
    datasets of all checkpoints, each with its maximum number of pieces.

    Before the first inference, a GPU must start the framework and load the model, and the model must be copied to its
    node. A dataset is opened at least once, and its last sample is scored after its inference. The bound of a dataset
    is that of the smallest piece it may be split into: one sample, or the whole dataset.
    """
    rows = list(costs)
    transfer = phases.checkpoint_gb / site.link_gb_s
    ready = max(phases.start, transfer) + phases.checkpoint_gb / site.host_gb_s
    work = sum(cost.gpu_s for _, cost in rows)
    scoring = sum(cost.score for _, cost in rows)
    whole = [(cost.gpu_s, cost.score) for pieces, cost in rows if pieces < 2]
    return max(
        ready + work / site.gpus,
        max((ready + (cost.gpu_s + cost.score) / pieces for pieces, cost in rows), default=0.0),
        ready + makespan_lower_bound_s(whole, site.gpus),
        ready + scoring / (site.nodes * site.scorers_per_node),
        checkpoints * transfer / site.nodes,
    )


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
