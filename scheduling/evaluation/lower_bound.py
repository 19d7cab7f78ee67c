"""Lower bound of the duration of an evaluation: the maximum over GPUs, single datasets, links and CPUs.

Before the first inference, a GPU must start the framework and load the model, and the model must be copied to its node.
A dataset is opened at least once, and its last sample is scored after its inference. The bound of a dataset is that of
the smallest piece it may be split into: one sample, or the whole dataset.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduling.evaluation.uncut_order import makespan_lower_bound_s
from scheduling.evaluation.work import EvaluationSite, PhaseCosts, SliceCost


def lower_bound_s(
    site: EvaluationSite, phases: PhaseCosts, costs: Iterable[tuple[int, SliceCost]], *, checkpoints: int = 1
) -> float:
    """Return the lower bound. `costs` lists all datasets of all checkpoints, each with its maximum number of pieces."""
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
