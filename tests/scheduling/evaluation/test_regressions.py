"""Which drops of a score are regressions, and which the size of the benchmark explains."""

from __future__ import annotations

from itertools import count

import pytest

from scheduling.evaluation.rules.regressions import (
    Score,
    find_regressions,
    score_scale,
    standard_error,
)


def scores(*values, samples):
    return [
        Score(step=step, value=value, samples=samples) for step, value in zip(count(1000, 1000), values, strict=False)
    ]


@pytest.mark.parametrize(
    ("value", "samples", "scale", "error"),
    [
        (0.5, 100, 1.0, 0.05),
        (50.0, 100, 100.0, 5.0),
        (0.0, 100, 1.0, 0.0),
        (1.0, 50, 1.0, 0.0),
        (0.5, 10_000, 1.0, 0.005),
    ],
)
def test_standard_error_falls_with_the_number_of_samples(value, samples, scale, error):
    assert standard_error(Score(step=1, value=value, samples=samples), scale) == pytest.approx(error)


@pytest.mark.parametrize(
    ("values", "samples", "steps"),
    [
        ([0.50, 0.45], 100, []),  # 0.14 is needed
        ([0.50, 0.45], 10_000, [2000]),
        ([0.50, 0.30], 100, [2000]),
        ([0.50, 0.55, 0.30], 100, [3000]),
        ([0.30, 0.50], 100, []),
        ([1.0, 0.98], 50, []),
        ([0.5], 100, []),
        ([], 100, []),
    ],
)
def test_a_drop_is_a_regression_if_it_exceeds_the_sampling_error(values, samples, steps):
    assert list(find_regressions(scores(*values, samples=samples), 1.0)) == steps


def test_a_regression_names_the_drop_and_what_sampling_explains():
    [found] = find_regressions(scores(0.5, 0.3, samples=100), 1.0).values()

    assert (found.since_step, found.drop) == (1000, pytest.approx(0.2))
    assert found.margin == pytest.approx(2 * (0.0025 + 0.0021) ** 0.5)


@pytest.mark.parametrize(
    ("metric", "values", "scale"),
    [
        ("accuracy", [0.2, 1.0], 1.0),
        ("accuracy", [0.9, 61.0], 100.0),
        ("exact_match,strict-match", [0.2], 1.0),
        ("perplexity", [12.0], None),
        ("word_perplexity", [0.5], None),
        ("accuracy", [1234.0], None),
        ("accuracy", [-0.1], None),
        ("accuracy", [], None),
    ],
)
def test_only_means_of_samples_have_a_known_sampling_error(metric, values, scale):
    assert score_scale(metric, values) == scale


def test_without_a_known_sampling_error_nothing_is_a_regression():
    assert find_regressions(scores(20.0, 5.0, samples=100), None) == {}
