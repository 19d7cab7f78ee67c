"""The order of datasets that may not be split, compared with exhaustive search in small cases."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.evaluation.rules.dispatch import DatasetTask
from scheduling.evaluation.rules.forecast import simulate_campaign
from scheduling.evaluation.rules.uncut_order import DatasetTimes, best_order, makespan_lower_bound_s
from scheduling.evaluation.rules.work import EvaluationSite, PhaseCosts, SliceCost

SECONDS = st.integers(min_value=1, max_value=400)
WORK = st.tuples(SECONDS, st.one_of(st.just(0), SECONDS))


def ends_s(work: tuple[DatasetTimes, ...], gpus: int, taken: tuple[int, ...] | list[int]) -> float:
    """Whoever is free takes the next."""
    free, ends = [0.0] * gpus, 0.0
    for place in taken:
        first = free.index(min(free))
        free[first] += work[place][0]
        ends = max(ends, free[first] + work[place][1])
    return ends


def best_s(work: tuple[DatasetTimes, ...], gpus: int) -> float:
    """Everybody onto every GPU, and there the longest metric first."""
    by_metric = sorted(work, key=lambda one: -one[1])
    found = []
    for onto in product(range(gpus), repeat=len(work)):
        free, ends = [0.0] * gpus, 0.0
        for gpu, (on_gpu, score) in zip(onto, by_metric, strict=True):
            free[gpu] += on_gpu
            ends = max(ends, free[gpu] + score)
        found.append(ends)
    return min(found)


def test_better_order_than_longest_first_is_found():
    work = ((300.0, 0.0), (300.0, 0.0), (200.0, 0.0), (200.0, 0.0), (200.0, 0.0))

    assert ends_s(work, 2, [0, 1, 2, 3, 4]) == 700
    assert ends_s(work, 2, best_order(work, 2)) == 600


def test_short_dataset_with_a_long_metric_precedes_a_long_one_without():
    work = ((400.0, 0.0), (100.0, 390.0), (90.0, 0.0))

    assert ends_s(work, 2, best_order(work, 2)) == 490


@given(st.lists(WORK, min_size=1, max_size=6), st.integers(min_value=1, max_value=3))
def test_small_cases_are_optimal(work, gpus):
    found = tuple((float(on_gpu), float(score)) for on_gpu, score in work)

    assert ends_s(found, gpus, best_order(found, gpus)) <= best_s(found, gpus) * 1.001
    assert makespan_lower_bound_s(found, gpus) <= best_s(found, gpus) + 1e-6


@given(st.lists(WORK, min_size=1, max_size=70), st.integers(min_value=1, max_value=32))
def test_order_is_never_worse_than_a_simple_rule(work, gpus):
    found = tuple((float(on_gpu), float(score)) for on_gpu, score in work)
    taken = best_order(found, gpus)
    longest_first = sorted(range(len(found)), key=lambda place: -found[place][0])

    assert sorted(taken) == list(range(len(found)))
    assert ends_s(found, gpus, taken) <= ends_s(found, gpus, longest_first) + 1e-6


@pytest.mark.parametrize("checkpoints", (1, 3))
def test_plan_uses_the_optimized_order_for_uncut_datasets(checkpoints):
    """Three of 300 s would be left for the end of a GPU if the longest went first."""
    seconds = (300.0, 300.0, 200.0, 200.0, 200.0)
    tasks = [
        DatasetTask(checkpoint=c, dataset=n, samples=10, parts=1, prior=SliceCost(prepare=0.0, infer=each, score=0.0))
        for c in range(checkpoints)
        for n, each in enumerate(seconds)
    ]
    site = EvaluationSite(nodes=1, gpus_per_node=2)

    plan = simulate_campaign(tasks, "abcde", site, PhaseCosts(start=0.0, checkpoint_gb=0.0))

    assert plan.makespan_s == pytest.approx(600.0 * checkpoints)
