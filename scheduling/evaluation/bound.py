"""No schedule can be shorter: the largest of what the GPUs, one dataset's chain, the links and the CPUs need.

Before it infers, a GPU must have started the framework and loaded the model, and somebody must have brought the model
to its node. A dataset is opened at least once, and its last sample is scored after it was inferred. Datasets may be cut
as finely as one likes, so the chain of a dataset is that of its costliest sample.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduling.evaluation.work import Cost, Phases, Site


def lower_bound_s(site: Site, phases: Phases, costs: Iterable[tuple[int, Cost]], *, checkpoints: int = 1) -> float:
    """`costs` are all datasets of all checkpoints, each with its number of samples."""
    known = list(costs)
    transfer = phases.weights_gb / site.link_gb_s
    ready = max(phases.start, transfer) + phases.weights_gb / site.host_gb_s
    work = sum(cost.on_gpu for _, cost in known)
    scoring = sum(cost.score for _, cost in known)
    return max(
        ready + work / site.gpus,
        max((ready + (cost.on_gpu + cost.score) / samples for samples, cost in known), default=0.0),
        ready + scoring / (site.nodes * site.scorers_per_node),
        checkpoints * transfer / site.nodes,
    )


def whole_bound_s(site: Site, phases: Phases, costs: Iterable[Cost]) -> float:
    """Where no dataset is cut, one GPU goes through the longest of them."""
    ready = max(phases.start, phases.weights_gb / site.link_gb_s) + phases.weights_gb / site.host_gb_s
    return max((ready + cost.on_gpu + cost.score for cost in costs), default=0.0)
