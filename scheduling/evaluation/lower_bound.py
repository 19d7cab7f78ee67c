"""No schedule can be shorter: the largest of what the GPUs, one dataset's chain, the links and the CPUs need.

Before it infers, a GPU must have started the framework and loaded the model, and somebody must have brought the model
to its node. A dataset is opened at least once, and its last sample is scored after it was inferred. Its chain is that
of the smallest piece it may be cut into: a sample, or all of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduling.evaluation.uncut_order import makespan_lower_bound_s
from scheduling.evaluation.work import EvaluationSite, PhaseCosts, SliceCost


def lower_bound_s(
    site: EvaluationSite, phases: PhaseCosts, costs: Iterable[tuple[int, SliceCost]], *, checkpoints: int = 1
) -> float:
    """`costs` are all datasets of all checkpoints, each with the number of pieces it may be cut into."""
    known = list(costs)
    transfer = phases.weights_gb / site.link_gb_s
    ready = max(phases.start, transfer) + phases.weights_gb / site.host_gb_s
    work = sum(cost.gpu_s for _, cost in known)
    scoring = sum(cost.score for _, cost in known)
    whole = [(cost.gpu_s, cost.score) for pieces, cost in known if pieces < 2]
    return max(
        ready + work / site.gpus,
        max((ready + (cost.gpu_s + cost.score) / pieces for pieces, cost in known), default=0.0),
        ready + makespan_lower_bound_s(whole, site.gpus),
        ready + scoring / (site.nodes * site.scorers_per_node),
        checkpoints * transfer / site.nodes,
    )
