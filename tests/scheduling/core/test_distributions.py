"""Weighted distributions of times, and the errors of past predictions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.distributions import Distribution, PastPredictions, chance_of_sum

times = st.lists(st.floats(0, 1e6), min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("limit", "share"),
    [(0.0, 0.0), (10.0, 0.25), (15.0, 0.25), (20.0, 0.75), (1e9, 1.0)],
    ids=["below", "first", "between", "tie", "above"],
)
def test_share_at_most_a_limit(limit, share):
    assert Distribution.of([20, 10, 20, 30]).at_most(limit) == share


def test_weights_follow_their_values_when_sorted():
    weighted = Distribution.of([30, 10], [3, 1])

    assert weighted.at_most([10, 30]).tolist() == [0.25, 1.0]
    assert (weighted.quantile(0.25), weighted.quantile(0.26)) == (10, 30)


def test_mixture_weighs_its_parts_regardless_of_their_sizes():
    mixed = Distribution.mixture([(Distribution.of([1] * 9), 1.0), (Distribution.of([5]), 3.0)])

    assert mixed.at_most(1) == pytest.approx(0.25)


def test_log_normal_has_its_median_and_p90():
    drawn = Distribution.log_normal(100, math.log(2) / 1.2815515)

    assert drawn.at_most(100) == pytest.approx(0.5)
    assert drawn.quantile(0.9) == pytest.approx(200, rel=0.1)


def test_remaining_time_counts_only_longer_values():
    remaining = Distribution.of([10, 20, 40]).remaining_after(10)

    assert remaining.values.tolist() == [10, 30]
    assert remaining.weights.tolist() == [0.5, 0.5]
    assert Distribution.of([10, 20]).remaining_after(20) is None


def test_chance_of_a_sum_counts_all_pairs():
    start, run = Distribution.of([0, 60]), Distribution.of([30, 90], [3, 1])

    assert chance_of_sum(start, run, 90) == pytest.approx(0.5 * 1.0 + 0.5 * 0.75)


@given(times, times, st.floats(0, 2e6), st.floats(0, 1e6))
def test_chance_is_a_probability_that_grows_with_the_limit(first, second, limit, more):
    parts = Distribution.of(first), Distribution.of(second)

    assert 0.0 <= chance_of_sum(*parts, limit) <= chance_of_sum(*parts, limit + more) + 1e-9 <= 1.0 + 2e-9


@given(times, st.floats(0.01, 0.99))
def test_quantile_is_the_smallest_value_that_holds_the_share(values, level):
    one = Distribution.of(values)
    at = one.quantile(level)

    assert one.at_most(at) >= level - 1e-6
    assert one.at_most(np.nextafter(at, -1)) < level + 1e-6


def test_new_prediction_gets_the_errors_of_the_nearest_ones():
    short, long = [(100, 200)] * 256, [(10_000, 5_000)] * 256
    past = PastPredictions(short + long, floor_s=1.0)

    assert np.allclose(past.actual_times(100), 200)
    assert np.allclose(past.actual_times(10_000), 5_000)
    assert past.actual_times(200).max() < 410


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), min_size=1, max_size=200), st.floats(0, 1e7))
def test_actual_times_are_finite_and_not_negative(pairs, predicted):
    actual = PastPredictions(pairs, floor_s=60.0).actual_times(predicted)

    assert len(actual) == len(pairs)
    assert np.isfinite(actual).all() and (actual >= 0).all()
