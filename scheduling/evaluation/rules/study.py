"""Compares the methods in the setting of the paper: one 7B model, 63 datasets, 1 and 4 nodes (NSDI'24, 6.2, Fig. 16).

The planner's estimates are wrong by up to `error` per dataset, sampled for each seed; the real costs are the same for
all methods. Pure: seeds in, a report out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from statistics import median
from typing import Any

from scheduling.evaluation.rules.forecast import lower_bound_s
from scheduling.evaluation.rules.methods import METHODS, StudySetting
from scheduling.evaluation.rules.work import EvaluationSite, PhaseCosts, datasets

PUBLISHED_SPEEDUPS = {1: 1.3, 4: 1.8}  # relative to the baseline
PRIOR_FACTORS = (1 / 20, 20.0)


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    method: str
    makespan_s: float
    gpu_idle_s: float
    trials: int
    slices: int
    speedup: float  # over the baseline
    over_bound: float


@dataclass(frozen=True, kw_only=True)
class WrongPriorsResult:
    """The results of `acme` with wrong estimates, over all seeds."""

    error: float
    seeds: int
    median_s: float
    worst_s: float
    worst_speedup: float
    worst_over_bound: float


@dataclass(frozen=True, kw_only=True)
class OneWrongPriorResult:
    """The results of `acme` if the estimate of one dataset is `factor` times the cost, for each dataset in turn."""

    factor: float
    median_s: float
    worst_s: float
    worst_dataset: str
    worst_speedup: float
    worst_over_bound: float


@dataclass(frozen=True, kw_only=True)
class SiteComparison:
    nodes: int
    lower_bound_s: float
    longest_dataset_s: float  # on one GPU
    whole_bound_s: float  # lower bound of schedules that do not split datasets
    published_speedup: float | None
    rows: tuple[MethodResult, ...]
    wrong_priors: tuple[WrongPriorsResult, ...]
    far_off: tuple[OneWrongPriorResult, ...]


def study(
    nodes: Sequence[int] = (1, 4), sharing: int = 8, errors: Sequence[float] = (0.2, 0.5), seeds: int = 20
) -> dict[str, Any]:
    phases = PhaseCosts.calibrate(sharing)
    compared = [_compare_at_site(EvaluationSite(nodes=number), phases, errors, seeds) for number in nodes]
    return {"phases": asdict(phases), "sharing": sharing, "settings": [asdict(each) for each in compared]}


def _compare_at_site(site: EvaluationSite, phases: PhaseCosts, errors: Sequence[float], seeds: int) -> SiteComparison:
    benchmarks = datasets()
    costs = [phases.cost(dataset, dataset.samples) for dataset in benchmarks]
    bound_s = lower_bound_s(site, phases, [(d.samples, cost) for d, cost in zip(benchmarks, costs, strict=True)])
    setting = StudySetting(site=site, phases=phases, datasets=benchmarks, priors=costs)
    outcomes = {name: method.run(setting) for name, method in METHODS.items()}
    base_s = outcomes["baseline"].makespan_s
    rows = tuple(
        MethodResult(
            method=name,
            makespan_s=done.makespan_s,
            gpu_idle_s=done.gpu_idle_s,
            trials=done.trials,
            slices=done.pieces,
            speedup=base_s / done.makespan_s,
            over_bound=done.makespan_s / bound_s,
        )
        for name, done in outcomes.items()
    )
    return SiteComparison(
        nodes=site.nodes,
        lower_bound_s=bound_s,
        longest_dataset_s=max(cost.gpu_s for cost in costs),
        published_speedup=PUBLISHED_SPEEDUPS.get(site.nodes),
        rows=rows,
        whole_bound_s=lower_bound_s(site, phases, [(1, cost) for cost in costs]),
        wrong_priors=tuple(_wrong_priors_result(setting, error, seeds, base_s, bound_s) for error in errors if seeds),
        far_off=tuple(_one_wrong_prior_result(setting, factor, base_s, bound_s) for factor in PRIOR_FACTORS if seeds),
    )


def _wrong_priors_result(
    setting: StudySetting, error: float, seeds: int, base_s: float, bound_s: float
) -> WrongPriorsResult:
    spans = [_makespan_with_random_priors(setting, error, Random(f"{error}/{seed}")) for seed in range(seeds)]
    return WrongPriorsResult(
        error=error,
        seeds=seeds,
        median_s=median(spans),
        worst_s=max(spans),
        worst_speedup=base_s / max(spans),
        worst_over_bound=max(spans) / bound_s,
    )


def _one_wrong_prior_result(setting: StudySetting, factor: float, base_s: float, bound_s: float) -> OneWrongPriorResult:
    spans = sorted(
        (_makespan_with_wrong_prior(setting, number, factor), dataset.name)
        for number, dataset in enumerate(setting.datasets)
    )
    worst_s, worst = spans[-1]
    return OneWrongPriorResult(
        factor=factor,
        median_s=median(seconds for seconds, _ in spans),
        worst_s=worst_s,
        worst_dataset=worst,
        worst_speedup=base_s / worst_s,
        worst_over_bound=worst_s / bound_s,
    )


def _makespan_with_wrong_prior(setting: StudySetting, wrong: int, factor: float) -> float:
    priors = [cost.times(factor) if number == wrong else cost for number, cost in enumerate(setting.priors)]
    return METHODS["acme"].run(replace(setting, priors=priors)).makespan_s


def _makespan_with_random_priors(setting: StudySetting, error: float, dice: Random) -> float:
    believed = [cost.times(1 + dice.uniform(-error, error)) for cost in setting.priors]
    return METHODS["acme"].run(replace(setting, priors=believed)).makespan_s
